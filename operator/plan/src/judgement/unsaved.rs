//! Steps that no checkpoint holds, and what they mean for a suspension.

use lockstep_api::{TrainingJobStatus, ValidJob};
use lockstep_launch::{Task, Unsaved};

use super::situation::Situation;

/// Returns why nothing is saved, while workers hold steps that no checkpoint holds.
pub(crate) fn unsaved<'a>(situation: &Situation<'_>, status: &'a TrainingJobStatus) -> Option<&'a Unsaved> {
    status.progress.as_ref()?.unsaved.as_ref().filter(|_| situation.holds_state())
}

/// True while a suspension waits. The steps since the newest checkpoint would be lost with the
/// workers' pods, and no annotation allows that.
pub(crate) fn suspension_waits(situation: &Situation<'_>, status: &TrainingJobStatus) -> bool {
    let job = situation.job;
    // A pod that is being deleted cannot save any more.
    let all_stay = situation.present.iter().all(|pod| pod.stuck_at.is_none());
    job.suspend && !job.suspend_unsaved && all_stay && unsaved(situation, status).is_some()
}

/// The number of reported steps that no checkpoint holds, once no pod is left.
pub(crate) fn lost_steps(job: &ValidJob, status: &TrainingJobStatus) -> u64 {
    let Task::Train(_) = job.task else { return 0 };
    let kept = status.last_checkpoint.as_ref().map_or(0, |mark| mark.step);
    status.progress.as_ref().map_or(0, |progress| progress.step.saturating_sub(kept))
}
