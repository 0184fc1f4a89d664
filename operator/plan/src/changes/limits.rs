//! The limits of a job: how often it may fail, and how long it may take.

use jiff::SignedDuration;
use lockstep_api::{ConditionType, Reason, TrainingJobStatus};

use super::{
    condition::{Explanation, fail},
    step::{Actions, Step},
};
use crate::{
    PodRole, PodState,
    judgement::{Situation, attendance, describe, hindrance, is_done},
    pod_name,
};

/// Fails the job once it has failed more often than it may.
pub(crate) fn give_up_after_failures(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    let (failures, limit) = (status.failures, situation.job.failure_policy.backoff_limit);
    if failures <= limit {
        return status.into();
    }
    let last = status.last_failure.as_ref().map(describe).unwrap_or_default();
    let message = format!("failure {failures}, backoffLimit is {limit}; the last: {last}");
    fail(status, &Explanation::new(Reason::BackoffLimitExceeded, message), situation.now)
}

/// Fails the job when its time is over. Until then it looks again in time.
pub(crate) fn give_up_in_time(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    meet_deadline(situation, status).then_unless_finished(|status| await_workers(situation, status))
}

/// Keeps `activeDeadlineSeconds`.
fn meet_deadline(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    let Some((seconds, start)) = situation.job.active_deadline_seconds.zip(status.start_time.as_ref()) else {
        return status.into();
    };
    let end = start.0 + SignedDuration::from_secs(seconds.into());
    if end > situation.now {
        return Step::from(status).and(Actions::look_again_at(end));
    }
    // If the training is done, only the last pods have not ended yet.
    if is_done(&situation.present) {
        return status.into();
    }
    let message = format!("not complete {seconds} s after its start, activeDeadlineSeconds");
    fail(status, &Explanation::new(Reason::DeadlineExceeded, message), situation.now)
}

/// Keeps `failurePolicy.startupTimeoutSeconds`, from the request for pods or the end of training.
fn await_workers(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    let running = ConditionType::Running.to_string();
    let stopped = status.conditions.iter().find(|condition| condition.type_ == running && condition.status == "False");
    let Some((stopped, asked)) = stopped.zip(status.attempt_time.as_ref()) else { return status.into() };
    if is_done(&situation.present) {
        return status.into();
    }
    let seconds = situation.job.failure_policy.startup_timeout_seconds;
    let end = asked.0.max(stopped.last_transition_time.0) + SignedDuration::from_secs(seconds.into());
    if end > situation.now {
        return Step::from(status).and(Actions::look_again_at(end));
    }
    let message = format!(
        "{} within {seconds} s, failurePolicy.startupTimeoutSeconds: {}",
        attendance(situation),
        laggard(situation, &status)
    );
    fail(status, &Explanation::new(Reason::StartupTimeout, message), situation.now)
}

/// The first worker that has not joined, and why.
fn laggard(situation: &Situation<'_>, status: &TrainingJobStatus) -> String {
    let hindrance = hindrance(situation, status).map(|(_, message)| message);
    if let Some(message) = hindrance.or_else(|| situation.seen.refused.clone()) {
        return message;
    }
    let pod = |index: u32| situation.present.iter().find(|pod| pod.role == PodRole::Worker(index));
    let has_joined = |index: &u32| pod(*index).is_some_and(|pod| pod.ready);
    let Some(index) = (0..situation.job.replicas.get()).find(|index| !has_joined(index)) else {
        return "none is left".to_owned();
    };
    let name = pod_name(situation.job, PodRole::Worker(index));
    match pod(index).map(|pod| &pod.state) {
        None => format!("pod {name} does not exist; see the events of the job"),
        Some(PodState::Pending(_)) => format!("pod {name} does not run; see its events"),
        Some(PodState::Running | PodState::Ended(_)) => {
            format!(
                "pod {name} runs but has not joined the group; to keep its log for `kubectl logs`, run the job again \
                 with cleanPodPolicy: None"
            )
        }
    }
}
