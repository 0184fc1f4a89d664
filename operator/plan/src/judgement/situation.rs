use jiff::Timestamp;
use lockstep_api::ValidJob;

use crate::{DefaultImage, Observed, PodRole, PodSeen, PodState};

/// Everything that a decision about a job looks at, except the status that the decision changes.
pub(crate) struct Situation<'a> {
    pub(crate) job: &'a ValidJob,
    pub(crate) seen: &'a Observed,
    pub(crate) default_image: &'a DefaultImage,
    pub(crate) now: Timestamp,
    /// The present attempt.
    pub(crate) attempt: u32,
    /// The pods of the present attempt.
    pub(crate) present: Vec<&'a PodSeen>,
    /// The pods of earlier attempts.
    pub(crate) earlier: Vec<&'a PodSeen>,
}

impl<'a> Situation<'a> {
    /// Sorts the pods by attempt. The status knows of the attempt `known`; a pod may know a newer
    /// one.
    pub(crate) fn of(
        job: &'a ValidJob,
        seen: &'a Observed,
        default_image: &'a DefaultImage,
        known: u32,
        now: Timestamp,
    ) -> Self {
        let newest = seen.pods.iter().map(|pod| pod.attempt).max().unwrap_or_default();
        let attempt = newest.max(known).max(seen.status.restarts);
        let (present, earlier) = seen.pods.iter().partition(|pod| pod.attempt == attempt);
        Self { job, seen, default_image, now, attempt, present, earlier }
    }

    /// The present coordinators; there is at most one.
    pub(crate) fn coordinators(&self) -> impl Iterator<Item = &'a PodSeen> {
        self.present.iter().copied().filter(|pod| pod.role == PodRole::Coordinator)
    }

    /// All present workers, also those that the job does not want any more.
    pub(crate) fn workers(&self) -> impl Iterator<Item = &'a PodSeen> {
        self.present.iter().copied().filter(|pod| pod.role != PodRole::Coordinator)
    }

    /// The present workers that the job wants, by number.
    pub(crate) fn wanted_workers(&self) -> impl Iterator<Item = (u32, &'a PodSeen)> {
        let replicas = self.job.replicas.get();
        self.present.iter().filter_map(move |pod| match pod.role {
            PodRole::Worker(index) if index < replicas => Some((index, *pod)),
            PodRole::Worker(_) | PodRole::Coordinator => None,
        })
    }

    /// True while a running worker was a member of the group and may go on with the state that it
    /// holds. A worker that is to go counts too.
    pub(crate) fn holds_state(&self) -> bool {
        self.workers().filter(|pod| pod.state == PodState::Running).any(|pod| pod.ready || pod.was_ready)
    }
}
