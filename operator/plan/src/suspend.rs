//! Rest and resumption: the workers save their state and go, then the coordinator; with new pods they go on from there.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{ConditionType, Phase, Reason, TrainingJobStatus, ValidJob};

use crate::{
    Observed, Plan, PodSeen, Role, Settings,
    carry_on::{create, take_lost_coordinator_away},
    failure::{Pulse, has_drained, is_held},
    phase::{deletion, enter, lacks_record, watch_terminating},
    status::{Note, beginning, set_condition},
    unsaved::lost_steps,
};

/// Sees to it that no pod is left, the coordinator last: it records where the workers rest.
#[allow(clippy::too_many_arguments, reason = "the parts of one plan, taken apart by the caller")]
pub(crate) fn suspend(
    job: &ValidJob,
    seen: &Observed,
    settings: &Settings,
    status: &mut TrainingJobStatus,
    plan: &mut Plan,
    present: &[&PodSeen],
    pulse: Pulse,
    now: Timestamp,
) {
    let pods = &seen.pods;
    let workers = || pods.iter().filter(|pod| pod.role != Role::Coordinator);
    let coordinators = || pods.iter().filter(|pod| pod.role == Role::Coordinator);
    watch_terminating(pods, plan, now);
    if !pods.is_empty() && status.phase == Some(Phase::Suspended) {
        let message = "pods are left";
        set_condition(status, ConditionType::Suspended, false, Reason::Suspending, message, now);
        status.phase = Some(Phase::Pending);
    }
    if workers().next().is_some() {
        plan.delete = workers().filter_map(|pod| deletion(pod, now)).collect();
        if is_held(present) && !coordinators().any(has_drained) {
            // A group that broke saves nothing before a coordinator has formed the next one.
            take_lost_coordinator_away(present, pulse, plan, now);
            if coordinators().next().is_none() && !lacks_record(seen, status, present) {
                create(job, seen, settings, status, plan, present, &[Role::Coordinator]);
            }
        }
        let left = workers().count();
        let message = format!("{left} workers finish a step, save the state and go");
        return enter(status, status.phase.unwrap_or(Phase::Pending), Reason::Suspending, &message, now);
    }
    if coordinators().next().is_some() {
        plan.delete = coordinators().filter_map(|pod| deletion(pod, now)).collect();
        let message = "the coordinator goes";
        return enter(status, status.phase.unwrap_or(Phase::Pending), Reason::Suspending, message, now);
    }
    if status.phase == Some(Phase::Suspended) {
        return;
    }
    status.replacing.clear();
    status.target_replicas = 0;
    (status.start_time, status.attempt_time) = (None, None);
    let lost = lost_steps(job, status);
    let unsaved = match status.progress.as_ref().and_then(|progress| progress.unsaved.as_ref()) {
        _ if lost == 0 => String::new(),
        Some(unsaved) => format!("; the {lost} steps after it were not saved: {}", unsaved.reason),
        None => format!("; of the {lost} steps after it no checkpoint was reported before the pods were gone"),
    };
    let message = match &status.last_checkpoint {
        Some(checkpoint) => format!("no pods are left; the state of step {} is kept{unsaved}", checkpoint.step),
        None if lost > 0 => format!("no pods are left; step 0 is where it begins again{unsaved}"),
        None => "there are no pods".to_owned(),
    };
    enter(status, Phase::Suspended, Reason::Suspended, &message, now);
    set_condition(status, ConditionType::Suspended, true, Reason::Suspended, &message, now);
    plan.events.push(if lost > 0 { Note::suspended_unsaved(&message) } else { Note::suspended(&message) });
}

/// Begins again with new pods.
pub(crate) fn resume(status: &mut TrainingJobStatus, events: &mut Vec<Note>, now: Timestamp) {
    let message = format!("from {}", beginning(status));
    status.attempt += 1;
    status.start_time = Some(Time(now));
    status.phase = Some(Phase::Pending);
    set_condition(status, ConditionType::Suspended, false, Reason::Resumed, &message, now);
    events.push(Note::resumed(&message));
}
