//! A job that goes on. Missing pods are made, pods that are too many are deleted, and the phase
//! says how far the job is.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{ConditionType, LostWorker, Phase, Reason, TrainingJobStatus};

use super::{
    cleanup::deletion,
    condition::{Explanation, enter, not_degraded, with_condition},
    event::JobEvent,
    lost_nodes::avoided_nodes,
    replacement::restart_pause_ends,
    step::{Actions, Step},
    words::at_work,
};
use crate::{
    Child, PodRole, PodSeen, PodState,
    judgement::{
        Pulse, Situation, attendance, describe, failure_of, hindrance, image_of_new_pods, joined, least_workers,
        outdated_pods, replaces_coordinator,
    },
    objects::{pod, surroundings},
    pod_name,
};

/// Lets the job go on.
pub(crate) fn go_on(situation: &Situation<'_>, status: TrainingJobStatus, pulse: Pulse) -> Step {
    let now = situation.now;
    let resized = resize(situation, status);
    let actions = delete_unwanted(situation)
        .and(delete_lost(situation, &resized.status))
        .and(take_lost_coordinator_away(situation, pulse))
        .and(delete_outdated(situation, &resized.status));
    let made = resized.and(actions).then(|status| make_missing(situation, status));
    made.then(|status| {
        let was_replacing = !situation.seen.status.replacing.is_empty();
        let (phase, why) = phase_of(situation, &status);
        let starts = phase == Phase::Running && status.phase != Some(Phase::Running) && !was_replacing;
        let event = starts.then(|| JobEvent::started(situation.job, &status, now));
        let status = tell_of_missing_workers(situation, enter(status, phase, &why, now));
        event.into_iter().fold(Step::from(status), Step::event)
    })
}

/// Follows `spec.replicas`.
fn resize(situation: &Situation<'_>, mut status: TrainingJobStatus) -> Step {
    let replicas = situation.job.replicas.get();
    let exists = |index: u32| situation.present.iter().any(|pod| pod.role == PodRole::Worker(index));
    let target = status.target_replicas;
    // The event is published before the new pods are seen.
    let is_new = situation.seen.status.observed_generation != situation.seen.generation;
    let grows = is_new && 0 < target && target < replicas && !(target..replicas).any(exists);
    let event = (replicas < target || grows).then(|| JobEvent::resizing(target, replicas));
    let stays =
        |index: u32| situation.present.iter().any(|pod| pod.role == PodRole::Worker(index) && pod.stuck_at.is_none());
    status.target_replicas = if (0..replicas).all(stays) { replicas } else { target.min(replicas) };
    event.into_iter().fold(Step::from(status), Step::event)
}

/// Deletes pods of earlier attempts, and workers that are not wanted any more.
fn delete_unwanted(situation: &Situation<'_>) -> Actions {
    let may_go = unwanted_may_go(situation);
    let replicas = situation.job.replicas.get();
    let unwanted =
        situation.present.iter().filter(|pod| matches!(pod.role, PodRole::Worker(index) if index >= replicas));
    let pods = situation.earlier.iter().chain(unwanted.filter(|_| may_go));
    Actions::delete(pods.filter_map(|pod| deletion(pod, situation.now)))
}

/// True if workers that are not wanted any more may go. The workers that stay copy the state from
/// them first, and the coordinator arranges that. They go at once if a worker that stays needs
/// their room.
fn unwanted_may_go(situation: &Situation<'_>) -> bool {
    let is_ready = |role: fn(PodRole) -> bool| situation.present.iter().any(|pod| pod.ready && role(pod.role));
    let lacks_room = |pod: &PodSeen| matches!(&pod.state, PodState::Pending(Some(waiting)) if waiting.reason == Reason::Unschedulable);
    match joined(situation) {
        0 if is_ready(|role| role != PodRole::Coordinator) => {
            situation.wanted_workers().any(|(_, pod)| lacks_room(pod))
        }
        0 => true,
        _ => is_ready(|role| role == PodRole::Coordinator),
    }
}

/// Deletes the pods of lost workers. An ended pod stays for a look at it until its successor is
/// due.
fn delete_lost(situation: &Situation<'_>, status: &TrainingJobStatus) -> Actions {
    let now = situation.now;
    let one = |(worker, pod): (u32, &PodSeen)| {
        let lost = |entry: &&LostWorker| entry.worker == worker && entry.uid.as_ref() == Some(&pod.uid);
        match status.replacing.iter().find(lost) {
            // A pod that goes for another reason may be stuck all the same.
            None => Actions::delete(deletion(pod, now).filter(|deletion| deletion.by_force)),
            Some(entry) if matches!(pod.state, PodState::Ended(_)) && entry.not_before.0 > now => {
                Actions::look_again_at(entry.not_before.0)
            }
            Some(_) => Actions::delete(deletion(pod, now)),
        }
    };
    situation.wanted_workers().map(one).fold(Actions::default(), Actions::and)
}

/// Makes room for another coordinator, once it is due.
pub(crate) fn take_lost_coordinator_away(situation: &Situation<'_>, pulse: Pulse) -> Actions {
    let now = situation.now;
    let one = |pod: &PodSeen| match replaces_coordinator(pod, pulse, now) {
        None => Actions::default(),
        Some((due, _)) if due > now => Actions::look_again_at(due),
        Some((_, reason)) => {
            let is_new = pod.stuck_at.is_none();
            let events = is_new.then(|| JobEvent::coordinator_lost(&failure_of(pod, reason, now)));
            Actions { events: events.into_iter().collect(), ..Actions::delete(deletion(pod, now)) }
        }
    };
    situation.coordinators().map(one).fold(Actions::default(), Actions::and)
}

/// Deletes pods that cannot start because of an image that is not the job's any more.
fn delete_outdated(situation: &Situation<'_>, status: &TrainingJobStatus) -> Actions {
    let pods = outdated_pods(situation, status).into_iter().filter(|pod| pod.stuck_at.is_none());
    Actions::delete(pods.filter_map(|pod| deletion(pod, situation.now)))
}

/// Makes the missing pods once all pods of earlier attempts are gone and the pause is over.
fn make_missing(situation: &Situation<'_>, mut status: TrainingJobStatus) -> Step {
    let now = situation.now;
    let pause = restart_pause_ends(&status).filter(|end| situation.present.is_empty() && *end > now);
    if let Some(end) = pause {
        return Step::from(status).and(Actions::look_again_at(end));
    }
    if !situation.earlier.is_empty() {
        return status.into();
    }
    let present: BTreeSet<PodRole> = situation.present.iter().map(|pod| pod.role).collect();
    let wanted = std::iter::once(PodRole::Coordinator).chain((0..situation.job.replicas.get()).map(PodRole::Worker));
    let (mut missing, mut look_again) = (Vec::new(), None);
    for role in wanted.filter(|role| !present.contains(role)) {
        let entry = status.replacing.iter().find(|entry| PodRole::Worker(entry.worker) == role);
        match entry.map(|entry| entry.not_before.0).filter(|end| *end > now) {
            Some(end) => look_again = Some(look_again.map_or(end, |earlier: jiff::Timestamp| earlier.min(end))),
            None => missing.push(role),
        }
    }
    let mut actions = Actions::look_again_at(look_again);
    if !missing.is_empty() {
        actions = actions.and(create(situation, &status, &missing));
        status.attempt_time.get_or_insert(Time(now));
    }
    Step::from(status).and(actions)
}

/// Makes the pods of these roles, and the objects that a coordinator needs before it.
pub(crate) fn create(situation: &Situation<'_>, status: &TrainingJobStatus, missing: &[PodRole]) -> Actions {
    let (job, seen) = (situation.job, situation.seen);
    let mut create = Vec::new();
    if missing.contains(&PodRole::Coordinator) {
        create = surroundings(job, seen.group.is_none(), seen.egress_denied);
    }
    let image = image_of_new_pods(situation, status);
    let avoided = avoided_nodes(status);
    create.extend(missing.iter().map(|role| Child::Pod(Box::new(pod(job, &image, *role, status.attempt, &avoided)))));
    Actions { create, ..Actions::default() }
}

/// The phase of a job that goes on, and why.
fn phase_of(situation: &Situation<'_>, status: &TrainingJobStatus) -> (Phase, Explanation) {
    let (all, least, joined) = (situation.job.replicas.get(), least_workers(situation.job), joined(situation));
    let hindrance = hindrance(situation, status);
    let awaited = hindrance.as_ref().map(|(_, message)| message).or(situation.seen.refused.as_ref());
    let awaited = awaited.map(|message| format!("; {message}")).unwrap_or_default();
    let is_none_missing = status.replacing.is_empty();
    let (at_work, work) = work(situation, status);
    // A probe that fails for a moment ends nothing.
    if joined == all || (is_none_missing && status.phase == Some(Phase::Running) && joined < least) {
        return (Phase::Running, Explanation::new(at_work, format!("{all} workers {work}{awaited}")));
    }
    if joined >= least {
        return (Phase::Running, Explanation::new(at_work, format!("{joined} of {all} workers {work}{awaited}")));
    }
    let is_lost = |uid: &String| status.replacing.iter().any(|entry| entry.uid.as_ref() == Some(uid));
    let up = situation
        .wanted_workers()
        .filter(|(_, pod)| !matches!(pod.state, PodState::Pending(_)) && !is_lost(&pod.uid))
        .count();
    if up == all as usize {
        let reason = hindrance.map_or(Reason::WorkersJoining, |(reason, _)| reason);
        return (Phase::Starting, Explanation::new(reason, format!("{}{awaited}", attendance(situation))));
    }
    let begins = is_none_missing && status.restarts == 0;
    let phase = if begins { Phase::Pending } else { Phase::Restarting };
    if let Some((reason, message)) = hindrance {
        let message = if least < all { format!("{}; {message}", attendance(situation)) } else { message };
        return (phase, Explanation::new(reason, message));
    }
    if let Some(refused) = &situation.seen.refused {
        return (phase, Explanation::new(Reason::PodsPending, refused.clone()));
    }
    let message = format!("{up} of {all} workers' pods run");
    (
        phase,
        if begins { Explanation::new(Reason::PodsPending, message) } else { why_it_waits(situation, status, &message) },
    )
}

/// The reason and the verb for workers that have joined.
fn work(situation: &Situation<'_>, status: &TrainingJobStatus) -> (Reason, &'static str) {
    let unsaved = status.progress.as_ref().and_then(|progress| progress.unsaved.as_ref());
    match unsaved.is_some_and(|unsaved| unsaved.waits) {
        true => (Reason::SaveFailed, "wait for the storage"),
        false => at_work(situation.job),
    }
}

/// Why training waits for workers after a failure.
fn why_it_waits(situation: &Situation<'_>, status: &TrainingJobStatus, message: &str) -> Explanation {
    let Some(failure) = &status.last_failure else { return Explanation::new(Reason::PodsPending, message) };
    let missing: Vec<String> =
        status.replacing.iter().map(|entry| pod_name(situation.job, PodRole::Worker(entry.worker))).collect();
    let reason = match status.reason.as_deref() {
        Some("WorkerLost") if missing.is_empty() => Reason::WorkerLost,
        _ if missing.is_empty() => Reason::WorkerFailed,
        _ => reason_of_losses(status),
    };
    let consequence = if missing.is_empty() {
        format!("restart {}", status.restarts)
    } else {
        format!("training waits for {}", missing.join(", "))
    };
    Explanation::new(reason, format!("{consequence} after {}; {message}", describe(failure)))
}

/// Says whether workers are missing.
fn tell_of_missing_workers(situation: &Situation<'_>, status: TrainingJobStatus) -> TrainingJobStatus {
    let all = situation.job.replicas.get();
    if status.replacing.is_empty() {
        let why = Explanation::new(Reason::AllWorkersJoined, format!("none of {all} workers is missing"));
        return not_degraded(status, &why, situation.now);
    }
    let missing: Vec<String> = status.replacing.iter().map(|entry| entry.worker.to_string()).collect();
    let (joined, missing) = (joined(situation), missing.join(", "));
    let message = format!("{joined} of {all} workers are there; being replaced: worker {missing}");
    let why = Explanation::new(reason_of_losses(&status), message);
    with_condition(status, ConditionType::Degraded, true, &why, situation.now)
}

fn reason_of_losses(status: &TrainingJobStatus) -> Reason {
    let failed = status.replacing.iter().any(|entry| entry.failed);
    if failed { Reason::WorkerFailed } else { Reason::WorkerLost }
}
