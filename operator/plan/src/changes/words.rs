//! Phrases that events, conditions and columns share.

use lockstep_api::{Reason, TrainingJobStatus, ValidJob};
use lockstep_launch::Task;

/// The reason and the verb for workers that do the job's work.
pub(crate) fn at_work(job: &ValidJob) -> (Reason, &'static str) {
    match job.task {
        Task::Train(_) => (Reason::Training, "train"),
        Task::Benchmark { .. } => (Reason::Measuring, "measure"),
    }
}

/// The state with which new pods begin. Workers that leave save their state, and the operator may
/// not know of it yet.
pub(crate) fn beginning(status: &TrainingJobStatus) -> String {
    match &status.last_checkpoint {
        Some(checkpoint) => format!("the newest checkpoint, of step {} or later", checkpoint.step),
        None => "the newest checkpoint, if there is one".to_owned(),
    }
}
