//! The limits of a job: how often it may fail, and how long it may take.

use lockstep_api::{ConditionType, Reason, TrainingJobStatus};
use lockstep_lifecycle::JobFailure;

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
    let Some(failure) = situation.job.limits().after(status.failures) else { return status.into() };
    let last = status.last_failure.as_ref().map(describe).unwrap_or_default();
    fail(status, &why(failure, &last), situation.now)
}

/// Fails the job when its time is over. Until then it looks again in time.
pub(crate) fn give_up_in_time(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    meet_deadline(situation, status).then_unless_finished(|status| await_workers(situation, status))
}

/// Keeps `activeDeadlineSeconds`.
fn meet_deadline(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    let (limits, start) = (situation.job.limits(), status.start_time.as_ref().map(|start| start.0));
    match start.and_then(|start| limits.at_deadline(start, situation.now)) {
        None => Step::from(status).and(Actions::look_again_at(start.and_then(|start| limits.deadline(start)))),
        // If the training is done, only the last pods have not ended yet.
        Some(_) if is_done(&situation.present) => status.into(),
        Some(failure) => fail(status, &why(failure, ""), situation.now),
    }
}

/// Keeps `failurePolicy.startupTimeoutSeconds`, from the request for pods or the end of training.
fn await_workers(situation: &Situation<'_>, status: TrainingJobStatus) -> Step {
    let running = ConditionType::Running.to_string();
    let stopped = status.conditions.iter().find(|condition| condition.type_ == running && condition.status == "False");
    let Some((stopped, asked)) = stopped.zip(status.attempt_time.as_ref()) else { return status.into() };
    if is_done(&situation.present) {
        return status.into();
    }
    let limits = situation.job.limits();
    let end = limits.patience_ends(asked.0, stopped.last_transition_time.0);
    if end > situation.now {
        return Step::from(status).and(Actions::look_again_at(end));
    }
    let failure = limits.out_of_patience(attendance(situation));
    let why = why(failure, &laggard(situation, &status));
    fail(status, &why, situation.now)
}

/// The reason and the words of a failure.
pub(crate) fn why(failure: JobFailure, detail: &str) -> Explanation {
    let reason = match failure {
        JobFailure::InvalidInput => Reason::InvalidInput,
        JobFailure::BackoffLimitExceeded { .. } => Reason::BackoffLimitExceeded,
        JobFailure::StartupTimeout { .. } => Reason::StartupTimeout,
        JobFailure::DeadlineExceeded { .. } => Reason::DeadlineExceeded,
    };
    Explanation::new(reason, failure.message(detail))
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
