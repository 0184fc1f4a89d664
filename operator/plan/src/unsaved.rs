//! Saves that fail: the condition that says so, and a suspension that waits for them.

use jiff::Timestamp;
use lockstep_api::{ConditionType, Reason, TrainingJobStatus, ValidJob, label};
use lockstep_launch::{Task, Unsaved};

use crate::{
    PodSeen,
    failure::is_held,
    status::{Note, set_condition},
};

/// Why nothing is saved, while workers hold steps that no checkpoint holds.
pub(crate) fn unsaved<'a>(status: &'a TrainingJobStatus, present: &[&PodSeen]) -> Option<&'a Unsaved> {
    status.progress.as_ref()?.unsaved.as_ref().filter(|_| is_held(present))
}

/// Says whether saves fail. A job whose saves never failed has no such condition.
pub(crate) fn tell_whether_saved(job: &ValidJob, status: &mut TrainingJobStatus, present: &[&PodSeen], now: Timestamp) {
    let type_ = ConditionType::CheckpointsFailing;
    if let Some(unsaved) = unsaved(status, present) {
        let message = format!("{unsaved}; {}", way_out(job, unsaved));
        return set_condition(status, type_, true, Reason::SaveFailed, &message, now);
    }
    if status.conditions.iter().any(|condition| condition.type_ == type_.to_string()) {
        let message = match &status.last_checkpoint {
            Some(mark) => format!("the newest checkpoint holds step {}", mark.step),
            None => "no worker holds steps that are not saved".to_owned(),
        };
        set_condition(status, type_, false, Reason::Saved, &message, now);
    }
}

/// How to give up what is not saved.
fn way_out(job: &ValidJob, unsaved: &Unsaved) -> String {
    let name = &job.name;
    let goes_on = if unsaved.waits { "they go on once the storage takes it; " } else { "" };
    format!("{goes_on}to suspend without these steps: kubectl annotate tj {name} {}=true", label::SUSPEND_UNSAVED)
}

/// Whether a suspension waits: with the workers' pods the steps since the newest checkpoint would
/// go, and nobody said that they may.
pub(crate) fn suspension_waits(job: &ValidJob, status: &TrainingJobStatus, present: &[&PodSeen]) -> bool {
    // Pods that go already are past saving.
    let stay = present.iter().all(|pod| pod.stuck_at.is_none());
    job.suspend && !job.suspend_unsaved && stay && unsaved(status, present).is_some()
}

/// Says that the suspension waits, by an event the first time.
pub(crate) fn tell_of_waiting_suspension(
    job: &ValidJob,
    status: &mut TrainingJobStatus,
    present: &[&PodSeen],
    events: &mut Vec<Note>,
    now: Timestamp,
) {
    let Some(unsaved) = unsaved(status, present) else { return };
    let message =
        format!("spec.suspend: the pods stay until their state is saved. {unsaved}; {}", way_out(job, unsaved));
    let (type_, reason) = (ConditionType::Suspended, Reason::SaveFailed);
    let is_told =
        status.conditions.iter().any(|known| known.type_ == type_.to_string() && known.reason == reason.to_string());
    if !is_told {
        events.push(Note::suspension_waits(&message));
    }
    set_condition(status, type_, false, reason, &message, now);
}

/// The steps that were reported and that no checkpoint holds, once no pod is left.
pub(crate) fn lost_steps(job: &ValidJob, status: &TrainingJobStatus) -> u64 {
    let Task::Train(_) = job.task else { return 0 };
    let kept = status.last_checkpoint.as_ref().map_or(0, |mark| mark.step);
    status.progress.as_ref().map_or(0, |progress| progress.step.saturating_sub(kept))
}
