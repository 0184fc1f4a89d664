//! All pods start again: after a loss of all workers, of the record, or with another image.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{LastFailure, Phase, Reason, TrainingJobStatus, ValidJob};
use lockstep_lifecycle::{Fault, WorkerEnd};

use super::{
    cleanup::deletion,
    condition::{Explanation, enter},
    event::JobEvent,
    replacement::{failures_of, with_failure},
    step::{Actions, Step},
};
use crate::{
    PodRole,
    judgement::{Situation, describe, outdated_pods},
    pod_name,
};

/// Starts all again after no worker is left that holds the state. `last` is the newest loss, if the
/// status does not know it yet.
pub(crate) fn restart_all(
    situation: &Situation<'_>,
    mut status: TrainingJobStatus,
    last: Option<(WorkerEnd, LastFailure)>,
) -> Step {
    let mut failed = status.replacing.iter().any(|entry| entry.failed);
    let mut event = None;
    if let Some((end, failure)) = last {
        let mut failures = failures_of(&status);
        failed = failures.lost_all(&end, situation.now) == Fault::Job;
        status.failures = failures.count;
        event = Some(JobEvent::worker_lost(&failure));
        status.worker_restarts.add(end.kind());
        status = with_failure(status, failure);
    }
    let step = event.into_iter().fold(Step::from(status), Step::event);
    if situation.job.limits().after(step.status.failures).is_some() {
        return step;
    }
    let reason = if failed { Reason::WorkerFailed } else { Reason::WorkerLost };
    step.then(|status| restart(situation.job, status, reason, situation.now))
}

/// Starts all again after the record is gone that the workers know of.
pub(crate) fn begin_with_another_record(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    let failure = LastFailure {
        pod: Some(pod_name(situation.job, PodRole::Coordinator)),
        reason: Some("RecordDeleted".to_owned()),
        message: "the job's TrainingGroup is gone: leave it to Lockstep".to_owned(),
        time: Some(Time(situation.now)),
        ..LastFailure::default()
    };
    restart(situation.job, with_failure(status, failure), Reason::WorkerLost, situation.now)
}

/// Starts a job again that has not begun, if its pods cannot start and the operator's image has
/// changed since.
pub(crate) fn begin_with_another_image(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    if status.attempt != situation.attempt || status.trainer.is_some() {
        return status.into();
    }
    let Some(pod) = outdated_pods(situation, &status).first().copied() else { return status.into() };
    Step::from(next_attempt(status)).event(JobEvent::image_changed(pod, situation.default_image))
}

/// Deletes every pod.
pub(crate) fn delete_all(situation: &Situation<'_>) -> Actions {
    let pods = situation.present.iter().chain(&situation.earlier);
    Actions::delete(pods.filter_map(|pod| deletion(pod, situation.now)))
}

fn restart(job: &ValidJob, mut status: TrainingJobStatus, reason: Reason, now: Timestamp) -> Step {
    status.restarts += 1;
    let status = next_attempt(status);
    let event = JobEvent::restarting(job, &status);
    let after = status.last_failure.as_ref().map(describe).unwrap_or_default();
    let message = format!("restart {} after {after}", status.restarts);
    let why = Explanation::new(reason, message);
    Step::from(enter(status, Phase::Restarting, &why, now)).event(event)
}

fn next_attempt(status: TrainingJobStatus) -> TrainingJobStatus {
    TrainingJobStatus {
        attempt: status.attempt + 1,
        attempt_time: None,
        target_replicas: 0,
        replacing: Vec::new(),
        ..status
    }
}
