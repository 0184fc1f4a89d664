use jiff::Timestamp;
use lockstep_api::{LastFailure, LostWorker, Reason, TrainingJobStatus, ValidJob};
use lockstep_launch::{DamagedCheckpoint, GroupChange, ShortGrace, Straggler, Unsaved};

use super::words::{at_work, beginning};
use crate::{DefaultImage, PodRole, PodSeen, judgement::describe, pod_name};

/// An event of a job: a fixed reason, and a text with the figures that explain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// True if a person should look.
    pub warning: bool,
    /// One of Created, Started, WorkerLost, WorkerReplaced, Restarting, Resizing, Resized,
    /// RolledBack, ImageChanged, CheckpointSaved, CheckpointFailed, SuspensionWaits,
    /// CheckpointDamaged, Straggler, ShortGrace, Suspended, Resumed, Complete, Failed.
    pub reason: &'static str,
    /// For people.
    pub text: String,
}

impl JobEvent {
    pub(crate) fn created(job: &ValidJob) -> Self {
        Self::normal("Created", format!("1 coordinator and {} workers", job.replicas))
    }

    pub(crate) fn started(job: &ValidJob, status: &TrainingJobStatus, now: Timestamp) -> Self {
        let after = status.attempt_time.as_ref().map_or(0, |asked| now.duration_since(asked.0).as_secs());
        let (_, work) = at_work(job);
        let workers = status.membership.as_ref().map_or(job.replicas.get(), |membership| membership.world_size);
        Self::normal("Started", format!("{workers} workers {work}, {after} s after their pods were asked for"))
    }

    pub(crate) fn worker_lost(failure: &LastFailure) -> Self {
        Self::warning("WorkerLost", describe(failure))
    }

    pub(crate) fn coordinator_lost(failure: &LastFailure) -> Self {
        let pod = failure.pod.clone().unwrap_or_default();
        let failure = describe(failure);
        Self::warning("Restarting", format!("pod {pod} is replaced; training goes on meanwhile. {failure}"))
    }

    pub(crate) fn worker_replaced(job: &ValidJob, lost: &LostWorker, now: Timestamp) -> Self {
        let (pod, seconds) = (pod_name(job, PodRole::Worker(lost.worker)), now.duration_since(lost.since.0).as_secs());
        Self::normal("WorkerReplaced", format!("{pod} has joined again, {seconds} s after it was lost"))
    }

    /// All workers start again; `status` has counted the restart.
    pub(crate) fn restarting(job: &ValidJob, status: &TrainingJobStatus) -> Self {
        let beginning = beginning(status);
        let limit = job.failure_policy.backoff_limit;
        let (restarts, failures) = (status.restarts, status.failures);
        let text = format!("restart {restarts} from {beginning}; {failures} of {limit} failures used");
        Self::warning("Restarting", text)
    }

    pub(crate) fn image_changed(pod: &PodSeen, image: &DefaultImage) -> Self {
        let before = pod.image.as_ref().map(|image| image.name.as_str()).unwrap_or_default();
        let DefaultImage { name, pull_policy } = image;
        let text = format!(
            "pods that could not start with image {before} are replaced by pods with the operator's present image, \
             {name} ({pull_policy})"
        );
        Self::normal("ImageChanged", text)
    }

    pub(crate) fn resizing(from: u32, to: u32) -> Self {
        Self::normal("Resizing", format!("from {from} to {to} workers; training goes on"))
    }

    /// The group changed: in place, or back to a checkpoint.
    pub(crate) fn regrouped(text: &str, change: &GroupChange) -> Self {
        let text = format!("{text}; agreed on in {:.2} s", change.seconds);
        if change.rollback { Self::warning("RolledBack", text) } else { Self::normal("Resized", text) }
    }

    pub(crate) fn straggler(straggler: &Straggler) -> Self {
        Self::warning("Straggler", format!("{straggler}, 20 times in a row"))
    }

    pub(crate) fn checkpoint_saved(step: u64, uri: &str) -> Self {
        Self::normal("CheckpointSaved", format!("step {step} in {uri}"))
    }

    pub(crate) fn checkpoint_damaged(damaged: &DamagedCheckpoint) -> Self {
        Self::warning("CheckpointDamaged", damaged.to_string())
    }

    pub(crate) fn checkpoint_failed(unsaved: &Unsaved) -> Self {
        Self::warning("CheckpointFailed", unsaved.to_string())
    }

    pub(crate) fn short_grace(short: &ShortGrace) -> Self {
        Self::warning("ShortGrace", short.to_string())
    }

    pub(crate) fn suspension_waits(message: &str) -> Self {
        Self::warning("SuspensionWaits", message.to_owned())
    }

    pub(crate) fn suspended(message: &str) -> Self {
        Self::normal("Suspended", message.to_owned())
    }

    pub(crate) fn suspended_unsaved(message: &str) -> Self {
        Self::warning("Suspended", message.to_owned())
    }

    pub(crate) fn resumed(message: &str) -> Self {
        Self::normal("Resumed", message.to_owned())
    }

    pub(crate) fn complete(message: &str) -> Self {
        Self::normal("Complete", message.to_owned())
    }

    pub(crate) fn failed(reason: Reason, message: &str) -> Self {
        Self::warning("Failed", format!("{reason}: {message}"))
    }

    fn normal(reason: &'static str, text: String) -> Self {
        Self { warning: false, reason, text }
    }

    fn warning(reason: &'static str, text: String) -> Self {
        Self { warning: true, reason, text }
    }
}
