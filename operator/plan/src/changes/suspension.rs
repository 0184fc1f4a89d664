//! Suspension and resumption. The workers save their state and go, then the coordinator. After the
//! resumption new pods go on from there.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{ConditionType, Phase, Reason, TrainingJobStatus};

use super::{
    cleanup::{deletion, watch_terminating},
    condition::{Explanation, enter, with_condition},
    event::JobEvent,
    going_on::{create, take_lost_coordinator_away},
    step::{Actions, Step},
    words::beginning,
};
use crate::{
    PodRole, PodSeen,
    judgement::{Pulse, Situation, has_drained, lacks_record, lost_steps},
};

/// Removes all pods. The coordinator goes last, because it records where the workers rest.
pub(crate) fn suspend(situation: &Situation<'_>, status: TrainingJobStatus, pulse: Pulse) -> Step {
    let (pods, now) = (&situation.seen.pods, situation.now);
    let (coordinators, workers): (Vec<&PodSeen>, Vec<&PodSeen>) =
        pods.iter().partition(|pod| pod.role == PodRole::Coordinator);
    if pods.is_empty() {
        return if status.phase == Some(Phase::Suspended) { status.into() } else { rest(situation, status) };
    }
    let status = not_suspended(status, now);
    let (deleted, more, message) = if workers.is_empty() {
        (coordinators, Actions::default(), "the coordinator goes".to_owned())
    } else {
        let message = format!("{} workers finish a step, save the state and go", workers.len());
        let more = help_to_save(situation, &status, &coordinators, pulse);
        (workers, more, message)
    };
    let deletions = Actions::delete(deleted.into_iter().filter_map(|pod| deletion(pod, now)));
    let why = Explanation::new(Reason::Suspending, message);
    let phase = status.phase.unwrap_or(Phase::Pending);
    let step = Step::from(enter(status, phase, &why, now));
    step.and(watch_terminating(pods, now)).and(deletions).and(more)
}

/// Withdraws that the job is suspended, if pods of it have appeared since.
fn not_suspended(status: TrainingJobStatus, now: Timestamp) -> TrainingJobStatus {
    if status.phase != Some(Phase::Suspended) {
        return status;
    }
    let why = Explanation::new(Reason::Suspending, "pods are left");
    let status = with_condition(status, ConditionType::Suspended, false, &why, now);
    TrainingJobStatus { phase: Some(Phase::Pending), ..status }
}

/// Replaces a lost coordinator while workers hold the state. A broken group saves nothing before a
/// coordinator has formed the next one.
fn help_to_save(
    situation: &Situation<'_>,
    status: &TrainingJobStatus,
    coordinators: &[&PodSeen],
    pulse: Pulse,
) -> Actions {
    if !situation.holds_state() || coordinators.iter().any(|pod| has_drained(pod)) {
        return Actions::default();
    }
    let actions = take_lost_coordinator_away(situation, pulse);
    if !coordinators.is_empty() || lacks_record(situation, status) {
        return actions;
    }
    actions.and(create(situation, status, &[PodRole::Coordinator]))
}

/// The job rests without pods.
fn rest(situation: &Situation<'_>, mut status: TrainingJobStatus) -> Step {
    let now = situation.now;
    status.replacing.clear();
    status.target_replicas = 0;
    (status.start_time, status.attempt_time) = (None, None);
    let lost = lost_steps(situation.job, &status);
    let unsaved = match status.progress.as_ref().and_then(|progress| progress.unsaved.as_ref()) {
        _ if lost == 0 => String::new(),
        Some(unsaved) => format!("; the {lost} steps after it were not saved: {}", unsaved.reason),
        None => format!("; no checkpoint of the {lost} steps after it was reported before the pods were gone"),
    };
    let message = match &status.last_checkpoint {
        Some(checkpoint) => format!("no pods are left; the state of step {} is kept{unsaved}", checkpoint.step),
        None if lost > 0 => format!("no pods are left; the job begins again at step 0{unsaved}"),
        None => "there are no pods".to_owned(),
    };
    let event = if lost > 0 { JobEvent::suspended_unsaved(&message) } else { JobEvent::suspended(&message) };
    let why = Explanation::new(Reason::Suspended, message);
    let status = enter(status, Phase::Suspended, &why, now);
    Step::from(with_condition(status, ConditionType::Suspended, true, &why, now)).event(event)
}

/// Begins again with new pods.
pub(crate) fn resume(mut status: TrainingJobStatus, now: Timestamp) -> Step {
    let why = Explanation::new(Reason::Resumed, format!("from {}", beginning(&status)));
    status.attempt += 1;
    status.start_time = Some(Time(now));
    status.phase = Some(Phase::Pending);
    let event = JobEvent::resumed(&why.message);
    Step::from(with_condition(status, ConditionType::Suspended, false, &why, now)).event(event)
}
