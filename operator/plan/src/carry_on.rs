//! A job that goes on: what is missing is made, what is too much is taken away, and how far it is is said.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{ConditionType, Phase, Reason, Replacing, TrainingJobStatus, ValidJob};

use crate::{
    Child, Observed, Plan, PodSeen, PodState, Role, Settings,
    children::children,
    failure::{Pulse, is_alive, last_failure, replaces_coordinator, wanted},
    hindrance::hindrance,
    image,
    phase::{deletion, enter, restart_pause_ends, tell_not_degraded},
    pod_name,
    pods::pod,
    status::{Note, at_work, set_condition, told},
};

/// Makes what is missing, takes away what is too much, and says how far the job is.
#[allow(clippy::too_many_arguments, reason = "the parts of one plan, taken apart by the caller")]
pub(crate) fn carry_on(
    job: &ValidJob,
    seen: &Observed,
    settings: &Settings,
    status: &mut TrainingJobStatus,
    plan: &mut Plan,
    (present, earlier): (&[&PodSeen], &[&PodSeen]),
    pulse: Pulse,
    now: Timestamp,
) {
    resize(job, status, (seen, present), &mut plan.events);
    let may_go = unwanted_may_go(job, present);
    let unwanted = present.iter().filter(|pod| matches!(pod.role, Role::Worker(index) if index >= job.replicas.get()));
    let unwanted = unwanted.filter(|_| may_go);
    plan.delete = earlier.iter().chain(unwanted).filter_map(|pod| deletion(pod, now)).collect();
    for (worker, pod) in wanted(job, present) {
        let lost = |entry: &&Replacing| entry.worker == worker && entry.uid.as_ref() == Some(&pod.uid);
        let Some(entry) = status.replacing.iter().find(lost) else {
            // One that goes for another reason may be stuck all the same.
            plan.delete.extend(deletion(pod, now).filter(|deletion| deletion.by_force));
            continue;
        };
        // One that ended is left to be looked at until its successor is due.
        if matches!(pod.state, PodState::Ended(_)) && entry.not_before.0 > now {
            plan.look_again_at(entry.not_before.0, now);
        } else {
            plan.delete.extend(deletion(pod, now));
        }
    }
    take_lost_coordinator_away(present, pulse, plan, now);
    let outdated = image::outdated(job, status, present, settings);
    plan.delete.extend(outdated.into_iter().filter(|pod| pod.stuck_at.is_none()).filter_map(|pod| deletion(pod, now)));
    let pause = restart_pause_ends(status).filter(|_| present.is_empty());
    match pause.filter(|end| *end > now) {
        Some(end) => plan.look_again_at(end, now),
        None if earlier.is_empty() => create_missing(job, seen, settings, status, plan, present, now),
        None => {}
    }
    let was_replacing = !seen.status.replacing.is_empty();
    let (phase, reason, message) = progress_of(job, status, (seen, present));
    if phase == Phase::Running && status.phase != Some(Phase::Running) && !was_replacing {
        plan.events.push(Note::started(job, status, now));
    }
    enter(status, phase, reason, &message, now);
    tell_whether_degraded(job, status, present, now);
}

/// Makes room for another coordinator, once it is due.
pub(crate) fn take_lost_coordinator_away(present: &[&PodSeen], pulse: Pulse, plan: &mut Plan, now: Timestamp) {
    for pod in present.iter().filter(|pod| pod.role == Role::Coordinator) {
        let Some((due, reason)) = replaces_coordinator(pod, pulse, now) else { continue };
        if due > now {
            plan.look_again_at(due, now);
            continue;
        }
        if pod.stuck_at.is_none() {
            plan.events.push(Note::coordinator_lost(&last_failure(pod, reason, now)));
        }
        plan.delete.extend(deletion(pod, now));
    }
}

/// Whether workers that are not wanted any more may go: those that are to stay copy the state from them first, of which the coordinator
/// tells, unless they have the room that one that is to stay needs.
fn unwanted_may_go(job: &ValidJob, present: &[&PodSeen]) -> bool {
    let is_ready = |role: fn(Role) -> bool| present.iter().any(|pod| pod.ready && role(pod.role));
    let lacks_room = |pod: &PodSeen| matches!(&pod.state, PodState::Pending(Some(waiting)) if waiting.reason == Reason::Unschedulable);
    match joined(job, present) {
        0 if is_ready(|role| role != Role::Coordinator) => wanted(job, present).any(|(_, pod)| lacks_room(pod)),
        0 => true,
        _ => is_ready(|role| role == Role::Coordinator),
    }
}

/// Follows `spec.replicas`.
fn resize(
    job: &ValidJob,
    status: &mut TrainingJobStatus,
    (seen, present): (&Observed, &[&PodSeen]),
    events: &mut Vec<Note>,
) {
    let replicas = job.replicas.get();
    let exists = |index: u32| present.iter().any(|pod| pod.role == Role::Worker(index));
    let target = status.target_replicas;
    // Until the new pods are seen.
    let is_news = seen.status.observed_generation != seen.generation;
    if replicas < target || (is_news && 0 < target && target < replicas && !(target..replicas).any(exists)) {
        events.push(Note::resizing(target, replicas));
    }
    let stays = |index: u32| present.iter().any(|pod| pod.role == Role::Worker(index) && pod.stuck_at.is_none());
    status.target_replicas = if (0..replicas).all(stays) { replicas } else { target.min(replicas) };
}

fn create_missing(
    job: &ValidJob,
    seen: &Observed,
    settings: &Settings,
    status: &mut TrainingJobStatus,
    plan: &mut Plan,
    present: &[&PodSeen],
    now: Timestamp,
) {
    let there: BTreeSet<Role> = present.iter().map(|pod| pod.role).collect();
    let wanted = std::iter::once(Role::Coordinator).chain((0..job.replicas.get()).map(Role::Worker));
    let mut missing = Vec::new();
    for role in wanted.filter(|role| !there.contains(role)) {
        let pause =
            status.replacing.iter().find(|entry| Role::Worker(entry.worker) == role).map(|entry| entry.not_before.0);
        match pause.filter(|end| *end > now) {
            Some(end) => plan.look_again_at(end, now),
            None => missing.push(role),
        }
    }
    if !missing.is_empty() {
        create(job, seen, settings, status, plan, present, &missing);
        status.attempt_time.get_or_insert(Time(now));
    }
}

/// Makes the pods of these roles, and what a coordinator needs before it.
pub(crate) fn create(
    job: &ValidJob,
    seen: &Observed,
    settings: &Settings,
    status: &TrainingJobStatus,
    plan: &mut Plan,
    present: &[&PodSeen],
    missing: &[Role],
) {
    if missing.contains(&Role::Coordinator) {
        plan.create = children(job, seen.group.is_none(), seen.egress_denied);
    }
    let settings = image::of_new_pods(status, present, settings);
    plan.create.extend(missing.iter().map(|role| Child::Pod(Box::new(pod(job, &settings, *role, status.attempt)))));
}

/// How many workers have joined.
fn joined(job: &ValidJob, present: &[&PodSeen]) -> u32 {
    wanted(job, present).filter(|(_, pod)| pod.ready && is_alive(pod)).count() as u32
}

/// With how many workers it trains.
fn least(job: &ValidJob) -> u32 {
    job.elastic.min_replicas.min(job.replicas.get())
}

/// How many workers have joined of those without which nobody trains.
pub(crate) fn attendance(job: &ValidJob, present: &[&PodSeen]) -> String {
    let (all, least, joined) = (job.replicas.get(), least(job), joined(job, present));
    if least < all {
        format!("{joined} of at least {least} workers, spec.elastic.minReplicas, have joined")
    } else {
        format!("{joined} of {all} workers have joined")
    }
}

/// Phase, reason and message of a job that goes on.
fn progress_of(
    job: &ValidJob,
    status: &TrainingJobStatus,
    (seen, present): (&Observed, &[&PodSeen]),
) -> (Phase, Reason, String) {
    let (all, least, joined) = (job.replicas.get(), least(job), joined(job, present));
    let waits = status.progress.as_ref().and_then(|progress| progress.unsaved.as_ref()).is_some_and(|told| told.waits);
    let (at_work, work) = if waits { (Reason::SaveFailed, "wait for the storage") } else { at_work(job) };
    let missing: Vec<String> = status.replacing.iter().map(|entry| pod_name(job, Role::Worker(entry.worker))).collect();
    let hindrance = hindrance(job, status, present);
    let awaited = hindrance.as_ref().map(|(_, message)| format!("; {message}")).unwrap_or_default();
    // A probe that fails for a moment ends nothing.
    if joined == all || (missing.is_empty() && status.phase == Some(Phase::Running) && joined < least) {
        return (Phase::Running, at_work, format!("{all} workers {work}{awaited}"));
    }
    if joined >= least {
        return (Phase::Running, at_work, format!("{joined} of {all} workers {work}{awaited}"));
    }
    let is_lost = |uid: &String| status.replacing.iter().any(|entry| entry.uid.as_ref() == Some(uid));
    let up = wanted(job, present)
        .filter(|(_, pod)| !matches!(pod.state, PodState::Pending(_)) && !is_lost(&pod.uid))
        .count();
    if up == all as usize {
        let reason = hindrance.map_or(Reason::WorkersJoining, |(reason, _)| reason);
        return (Phase::Starting, reason, format!("{}{awaited}", attendance(job, present)));
    }
    let begins = missing.is_empty() && status.restarts == 0;
    let phase = if begins { Phase::Pending } else { Phase::Restarting };
    if let Some((reason, message)) = hindrance {
        let message = if least < all { format!("{}; {message}", attendance(job, present)) } else { message };
        return (phase, reason, message);
    }
    if let Some(refused) = &seen.refused {
        return (phase, Reason::PodsPending, refused.clone());
    }
    let message = format!("{up} of {all} workers' pods run");
    let Some(failure) = status.last_failure.as_ref().filter(|_| !begins) else {
        return (phase, Reason::PodsPending, message);
    };
    let failed = status.replacing.iter().any(|entry| entry.failed);
    let reason = match status.reason.as_deref() {
        Some("WorkerLost") if missing.is_empty() => Reason::WorkerLost,
        _ if missing.is_empty() || failed => Reason::WorkerFailed,
        _ => Reason::WorkerLost,
    };
    let what = if missing.is_empty() {
        format!("restart {}", status.restarts)
    } else {
        format!("training waits for {}", missing.join(", "))
    };
    (phase, reason, format!("{what} after {}; {message}", told(failure)))
}

fn tell_whether_degraded(job: &ValidJob, status: &mut TrainingJobStatus, present: &[&PodSeen], now: Timestamp) {
    let all = job.replicas.get();
    if status.replacing.is_empty() {
        let message = format!("none of {all} workers is missing");
        return tell_not_degraded(status, Reason::AllWorkersJoined, &message, now);
    }
    let missing: Vec<String> = status.replacing.iter().map(|entry| entry.worker.to_string()).collect();
    let message =
        format!("{} of {all} workers are there; being replaced: worker {}", joined(job, present), missing.join(", "));
    let failed = status.replacing.iter().any(|entry| entry.failed);
    let reason = if failed { Reason::WorkerFailed } else { Reason::WorkerLost };
    set_condition(status, ConditionType::Degraded, true, reason, &message, now);
}
