use jiff::{SignedDuration, Timestamp};
use lockstep_api::{Phase, TrainingJobStatus};

use super::event::JobEvent;
use crate::{Child, Deletion, JobPlan};

/// Shortest time between two looks at a job that nothing changed.
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_millis(100);

/// The result of a decision: the status as it shall be, and what shall be done. Decisions follow
/// one another; each begins with the status that the one before wants.
pub(crate) struct Step {
    pub(crate) status: TrainingJobStatus,
    pub(crate) actions: Actions,
}

/// The actions beside writing the status.
#[derive(Default)]
pub(crate) struct Actions {
    pub(crate) delete: Vec<Deletion>,
    pub(crate) create: Vec<Child>,
    pub(crate) events: Vec<JobEvent>,
    /// When to look again.
    pub(crate) look_again: Option<Timestamp>,
}

impl From<TrainingJobStatus> for Step {
    fn from(status: TrainingJobStatus) -> Self {
        Self { status, actions: Actions::default() }
    }
}

impl Step {
    /// Goes on with another decision.
    pub(crate) fn then(self, decide: impl FnOnce(TrainingJobStatus) -> Self) -> Self {
        let Self { status, actions } = self;
        let next = decide(status);
        Self { status: next.status, actions: actions.and(next.actions) }
    }

    /// Goes on with another decision, unless the job is finished.
    pub(crate) fn then_unless_finished(self, decide: impl FnOnce(TrainingJobStatus) -> Self) -> Self {
        if self.is_finished() { self } else { self.then(decide) }
    }

    /// True once nothing more happens to the job.
    pub(crate) fn is_finished(&self) -> bool {
        self.status.phase.is_some_and(Phase::is_finished)
    }

    /// Adds actions.
    pub(crate) fn and(self, more: Actions) -> Self {
        Self { actions: self.actions.and(more), ..self }
    }

    /// Adds an event.
    pub(crate) fn event(self, event: JobEvent) -> Self {
        self.and(Actions { events: vec![event], ..Actions::default() })
    }

    /// Keeps only the events of what was to be done.
    pub(crate) fn events_only(self) -> Self {
        Self { status: self.status, actions: Actions { events: self.actions.events, ..Actions::default() } }
    }

    /// Returns the plan. A status that is `present` already is not written again.
    pub(crate) fn into_plan(self, present: &TrainingJobStatus, now: Timestamp) -> JobPlan {
        let status = Some(self.status).filter(|status| status != present);
        JobPlan { status, ..self.actions.into_plan(now) }
    }
}

impl Actions {
    /// Deletes these pods.
    pub(crate) fn delete(deletions: impl IntoIterator<Item = Deletion>) -> Self {
        Self { delete: deletions.into_iter().collect(), ..Self::default() }
    }

    /// Looks at the job again at this time, if there is one.
    pub(crate) fn look_again_at(time: impl Into<Option<Timestamp>>) -> Self {
        Self { look_again: time.into(), ..Self::default() }
    }

    /// Both, with the earlier time of the next look.
    pub(crate) fn and(mut self, more: Self) -> Self {
        let Self { delete, create, events, look_again } = more;
        self.delete.extend(delete);
        self.create.extend(create);
        self.events.extend(events);
        self.look_again = [self.look_again, look_again].into_iter().flatten().min();
        self
    }

    /// Returns the plan that writes no status.
    pub(crate) fn into_plan(self, now: Timestamp) -> JobPlan {
        let Self { delete, create, events, look_again } = self;
        let check_again = look_again.map(|time| time.duration_since(now).max(SHORTEST_WAIT));
        JobPlan { status: None, delete, create, events, check_again, delete_job: false }
    }
}
