//! How pods ended, and what that means: for one worker while others keep the state, or for all of them.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{LastFailure, TrainingJobStatus, ValidJob};
use lockstep_launch::{Ending, Exit};

use crate::{
    Ended, PodSeen, PodState, Role, last_words::cause, phase::STANDSTILL_SECONDS, pod_name, status::reported_at,
};

/// The reason of a failure after which the worker asked to be started again: something that it needs was not there, or its group broke.
pub(crate) const RETRY: &str = "Retry";
/// Seconds that the others have to end too when one worker drained or asked for a restart: then all start anew, from what they saved.
const SETTLE_SECONDS: i64 = 5;
/// How far apart the ends may be of one that is told of and of those that drained with it, which save their state first.
const DRAIN_SECONDS: i64 = 60;
/// Seconds that the other pods have to end once the training is done.
const FINISH_SECONDS: i64 = 60;

/// Seconds after which a pod that does not answer is held for hung, where training stands still, or tells nothing, for want of it.
const HUNG_SECONDS: i64 = 60;

/// A pod that lived for less than this many seconds is replaced so many seconds after its end, another one at once: one
/// that fails whenever it starts is not made anew without pause.
pub(crate) const SHORT_LIFE: SignedDuration = SignedDuration::from_secs(10);

/// Seconds that workers have to find a coordinator once it runs.
const FINDING_SECONDS: i64 = 30;

/// Why the kubelet itself refuses or ends a pod for what its template says: another node would do the same.
const OWN_FAULTS: [&str; 3] = ["AppArmor", "DeadlineExceeded", "SysctlForbidden"];

/// Kubernetes' word for a container that the kernel killed.
const OUT_OF_MEMORY: &str = "OOMKilled";
/// What to say of one that left no word of what it needs.
const NO_MEMORY: &str =
    "the kernel killed it for want of memory; raise resources.limits.memory of its container in spec.template";

/// What the pods of an attempt amount to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The job goes on, without those that are gone.
    GoesOn(Losses),
    /// The training reached its last step.
    Done(Box<Option<Ending>>),
    /// Starting again would fail again.
    Refused(LastFailure),
    /// Nobody is left who holds the state: all must start again. Who went last, unless that was known before.
    AllGone(Option<(Cause, LastFailure)>),
}

/// Workers that have to be replaced while others keep the state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Losses {
    pub(crate) gone: Vec<Gone>,
    /// When to look again at what has not shown yet what it means.
    pub(crate) settles: Option<Timestamp>,
}

/// A worker that is gone, or will be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gone {
    /// Its number.
    pub(crate) worker: u32,
    /// The pod that was lost; none where it was gone before anybody looked.
    pub(crate) uid: Option<String>,
    pub(crate) cause: Cause,
    pub(crate) failure: LastFailure,
    /// Whether the next one waits a little: this one was gone soon after it was made, or could not come.
    pub(crate) next_waits: bool,
}

/// Whose fault a loss is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The job's own; it counts.
    Failed,
    /// Somebody else's.
    Lost,
}

/// Why one pod is no longer part of the group.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Done,
    Refused,
    Asked,
    Crashed,
    Drained,
    Lost(String),
}

/// How the group does, as far as it can be told from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// All workers that the job wants take part in steps.
    Whole,
    /// Steps are done by fewer, or not yet.
    Lacking,
    /// It trained, and no step was reported for a while; with all that run, or perhaps without some that had yet to join.
    Still { all: bool },
}

/// Judges the pods of one attempt by what `status` remembers of them.
pub(crate) fn verdict(
    job: &ValidJob,
    pods: &[&PodSeen],
    status: &TrainingJobStatus,
    pulse: Pulse,
    now: Timestamp,
) -> Verdict {
    let coordinator = pods.iter().find(|pod| pod.role == Role::Coordinator).copied();
    let workers: Vec<(u32, &PodSeen)> = wanted(job, pods).collect();
    let ends: Vec<(u32, &PodSeen, End)> =
        workers.iter().filter_map(|(worker, pod)| Some((*worker, *pod, end(pod)?))).collect();
    let of_coordinator = coordinator.and_then(|pod| Some((pod, end(pod)?)));

    let refused = |end: &End| *end == End::Refused;
    // Another one may do better than one that never held the state: training goes on meanwhile.
    let is_held = is_held(pods);
    let workers_refused = ends.iter().filter(|(_, _, end)| !is_held && refused(end)).map(|(_, pod, _)| *pod);
    let coordinator_refused = of_coordinator.as_ref().filter(|(_, end)| refused(end)).map(|(pod, _)| *pod);
    // The first is the cause. A coordinator that ends in the same second repeats what a worker told it.
    if let Some(pod) = workers_refused.chain(coordinator_refused).min_by_key(|pod| ended_at(pod)) {
        return Verdict::Refused(last_failure(pod, "Refused", now));
    }
    if let Some((pod, End::Done)) = &of_coordinator {
        let others: Vec<&PodSeen> = workers.iter().map(|(_, pod)| *pod).collect();
        return when_over(pod.ending(), &others, ended_at(pod), now);
    }
    let done: Vec<&PodSeen> = ends.iter().filter(|(_, _, end)| *end == End::Done).map(|(_, pod, _)| *pod).collect();
    if !done.is_empty() {
        // A worker is done once the end of all is recorded; the coordinator may still be writing down the result.
        let coordinator = coordinator.filter(|_| of_coordinator.is_none());
        let alive: Vec<&PodSeen> = workers.iter().map(|(_, pod)| *pod).chain(coordinator).collect();
        let last = done.iter().filter_map(|pod| ended_at(pod)).max();
        let says = |ending: &Ending| (ending.model_uri.is_some(), ending.progress.is_some());
        let ending = done.iter().filter_map(|pod| pod.ending()).max_by_key(says);
        return when_over(ending, &alive, last, now);
    }
    let target = status.target_replicas;
    let missing: Vec<u32> =
        (0..target.min(job.replicas.get())).filter(|index| workers.iter().all(|(worker, _)| worker != index)).collect();
    let rested = matches!(of_coordinator, Some((pod, End::Drained)) if pod.stuck_at.is_none());
    // One that is to go may still hold the state.
    let is_left = pods.iter().any(|pod| pod.role != Role::Coordinator && is_alive(pod));
    let awaited = |pod: &PodSeen| awaits_coordinator(pod, coordinator);
    let all_await = missing.is_empty() && ends.iter().all(|(_, pod, _)| awaited(pod));
    let is_anybody_gone = !ends.is_empty() || !missing.is_empty();
    let all_gone = is_anybody_gone && !is_left && !all_await;
    if all_gone || (rested && !ends.is_empty()) {
        let known = |worker: u32, uid: Option<&String>| {
            status.replacing.iter().any(|entry| entry.worker == worker && (uid.is_none() || entry.uid.as_ref() == uid))
        };
        let missing: Vec<_> = missing.into_iter().filter(|worker| !known(*worker, None)).collect();
        let mut ends: Vec<_> = ends.into_iter().filter(|(worker, pod, _)| !known(*worker, Some(&pod.uid))).collect();
        let told = status.replacing.iter().map(|entry| entry.since.0).max();
        let left_with_it = |pod: &PodSeen| {
            let ended = ended_at(pod).unwrap_or(now);
            told.is_some_and(|told| ended.duration_since(told).abs() < SignedDuration::from_secs(DRAIN_SECONDS))
        };
        ends.retain(|(_, pod, end)| *end != End::Drained || pod.stuck_at.is_some() || !left_with_it(pod));
        return Verdict::AllGone(the_first(job, &ends, &missing, now));
    }
    // Whoever was to go and is wanted again goes first.
    let leaves = |worker: u32, pod: &PodSeen| worker >= target && pod.stuck_at.is_some();
    let ends: Vec<_> = ends.into_iter().filter(|(worker, pod, _)| !leaves(*worker, pod)).collect();
    let has_yet_to_come = |pod: &PodSeen| {
        // What it could not reach may be there again: that costs those who train nothing.
        let others_train = is_held && is_fresh(status, now) && matches!(pulse, Pulse::Whole | Pulse::Lacking);
        (others_train && !pod.was_ready) || awaited(pod)
    };
    Verdict::GoesOn(losses(job, &workers, &ends, &missing, has_yet_to_come, pulse, now))
}

/// The workers that the job still wants, by number.
pub(crate) fn wanted<'a>(job: &ValidJob, pods: &[&'a PodSeen]) -> impl Iterator<Item = (u32, &'a PodSeen)> {
    let replicas = job.replicas.get();
    pods.iter().filter_map(move |pod| match pod.role {
        Role::Worker(index) if index < replicas => Some((index, *pod)),
        Role::Worker(_) | Role::Coordinator => None,
    })
}

/// Whether a pod takes part, or will.
pub(crate) fn is_alive(pod: &PodSeen) -> bool {
    end(pod).is_none()
}

/// Whether a worker runs that was a member of the group, and may go on with what it holds: also one that is to go.
pub(crate) fn is_held(pods: &[&PodSeen]) -> bool {
    let may_hold = |pod: &&&PodSeen| pod.role != Role::Coordinator && pod.state == PodState::Running;
    pods.iter().filter(may_hold).any(|pod| pod.ready || pod.was_ready)
}

/// Whether its process stopped after a step, as it was asked to.
pub(crate) fn has_drained(pod: &PodSeen) -> bool {
    end(pod) == Some(End::Drained)
}

/// Whether a worker gave up before there was a coordinator for long enough that it could have been
/// found: nobody failed.
fn awaits_coordinator(pod: &PodSeen, coordinator: Option<&PodSeen>) -> bool {
    let found = |by: Timestamp| {
        let started = coordinator.and_then(|coordinator| coordinator.started);
        started.is_some_and(|started| by.duration_since(started) >= SignedDuration::from_secs(FINDING_SECONDS))
    };
    end(pod) == Some(End::Asked) && !pod.was_ready && ended_at(pod).is_some_and(|ended| !found(ended))
}

/// Of several that are gone the one that took the others with it.
fn the_first(
    job: &ValidJob,
    ends: &[(u32, &PodSeen, End)],
    missing: &[u32],
    now: Timestamp,
) -> Option<(Cause, LastFailure)> {
    let lost = |wanted: fn(&PodSeen) -> bool| {
        ends.iter().find_map(|(_, pod, end)| match end {
            End::Lost(reason) if wanted(pod) => Some((Cause::Lost, last_failure(pod, reason, now))),
            End::Drained if wanted(pod) => Some((Cause::Lost, last_failure(pod, "Drained", now))),
            _ => None,
        })
    };
    let earliest = |wanted: End, reason: &str| {
        let ended = ends.iter().filter(|(_, _, end)| *end == wanted).map(|(_, pod, _)| *pod);
        ended.min_by_key(|pod| ended_at(pod)).map(|pod| (Cause::Failed, last_failure(pod, reason, now)))
    };
    // All drain when one has to leave: that one is named, not those that left with it.
    lost(|pod| pod.stuck_at.is_some() || pod.disrupted.is_some())
        .or_else(|| missing.first().map(|worker| (Cause::Lost, deleted(job, *worker, now))))
        .or_else(|| lost(|_| true))
        .or_else(|| earliest(End::Crashed, "Crashed"))
        .or_else(|| earliest(End::Refused, "Refused"))
        .or_else(|| earliest(End::Asked, RETRY))
}

/// Whether steps are reported.
fn is_fresh(status: &TrainingJobStatus, now: Timestamp) -> bool {
    reported_at(status)
        .is_some_and(|reported| now.duration_since(reported) < SignedDuration::from_secs(STANDSTILL_SECONDS))
}

fn losses(
    job: &ValidJob,
    workers: &[(u32, &PodSeen)],
    ends: &[(u32, &PodSeen, End)],
    missing: &[u32],
    has_yet_to_come: impl Fn(&PodSeen) -> bool,
    pulse: Pulse,
    now: Timestamp,
) -> Losses {
    let mut losses = Losses::default();
    let gone = |worker: u32, pod: &PodSeen, cause: Cause, reason: &str| Gone {
        worker,
        uid: Some(pod.uid.clone()),
        cause,
        failure: last_failure(pod, reason, now),
        next_waits: pod.created.is_some_and(|created| now.duration_since(created) < SHORT_LIFE),
    };
    for (worker, pod, end) in ends {
        let wait = SignedDuration::from_secs(SETTLE_SECONDS);
        // From an end far ahead of now, by its node's clock, nothing can be reckoned.
        let settled = ended_at(pod).filter(|at| *at <= now + wait).map_or(now, |at| at + wait);
        let may_go_together =
            matches!(end, End::Drained | End::Asked) && pod.stuck_at.is_none() && pod.disrupted.is_none();
        if may_go_together && settled > now {
            losses.settles = Some(losses.settles.map_or(settled, |earlier| earlier.min(settled)));
            continue;
        }
        losses.gone.extend(match end {
            End::Done => None,
            End::Refused => Some(gone(*worker, pod, Cause::Failed, "Refused")),
            End::Asked if has_yet_to_come(pod) => {
                Some(Gone { next_waits: true, ..gone(*worker, pod, Cause::Lost, RETRY) })
            }
            // What it lacked may take longer to be there than the pod lived.
            End::Asked => {
                let lost = gone(*worker, pod, Cause::Failed, RETRY);
                Some(Gone { next_waits: lost.next_waits || !pod.was_ready, ..lost })
            }
            End::Crashed => Some(gone(*worker, pod, Cause::Failed, "Crashed")),
            End::Drained => Some(gone(*worker, pod, Cause::Lost, "Drained")),
            End::Lost(reason) => Some(gone(*worker, pod, Cause::Lost, reason)),
        });
    }
    // A node that stopped reporting may well run its pods on: only one that the group lacks is given up.
    for (worker, pod) in workers.iter().filter(|(_, pod)| is_alive(pod) && pulse != Pulse::Whole) {
        if pod.unreachable {
            losses.gone.push(gone(*worker, pod, Cause::Lost, "NodeLost"));
        } else if let (Pulse::Still { all }, Some(hung)) = (pulse, hung_at(pod)) {
            if !all && !pod.was_ready {
                continue;
            }
            if hung <= now {
                // One that trained, and that its node never called ready, was lost with that: a process that hangs had answered before.
                let cause = if pod.was_ready { Cause::Failed } else { Cause::Lost };
                losses.gone.push(gone(*worker, pod, cause, "Hung"));
            } else {
                losses.settles = Some(losses.settles.map_or(hung, |earlier| earlier.min(hung)));
            }
        }
    }
    losses.gone.extend(missing.iter().map(|worker| Gone {
        worker: *worker,
        uid: None,
        cause: Cause::Lost,
        failure: deleted(job, *worker, now),
        next_waits: false,
    }));
    losses
}

fn deleted(job: &ValidJob, worker: u32, now: Timestamp) -> LastFailure {
    LastFailure {
        pod: Some(pod_name(job, Role::Worker(worker))),
        reason: Some("Deleted".to_owned()),
        message: "the pod was deleted".to_owned(),
        time: Some(time(now)),
        ..LastFailure::default()
    }
}

/// When a coordinator is to be replaced, and why; training goes on without it meanwhile. While the whole group's steps are reported, one
/// that lives does its work.
pub(crate) fn replaces_coordinator(pod: &PodSeen, pulse: Pulse, now: Timestamp) -> Option<(Timestamp, &'static str)> {
    let was_at_work = pod.was_ready || matches!(pulse, Pulse::Still { .. });
    match end(pod) {
        Some(End::Done | End::Refused) => None,
        Some(End::Asked | End::Crashed | End::Drained | End::Lost(_)) => {
            Some((replaced_at(pod, now).unwrap_or(now), "Lost"))
        }
        None if pulse == Pulse::Whole => None,
        None if pod.unreachable => Some((now, "NodeLost")),
        None => hung_at(pod).filter(|_| was_at_work).map(|hung| (hung, "Hung")),
    }
}

/// When a pod whose probe fails is held for hung.
fn hung_at(pod: &PodSeen) -> Option<Timestamp> {
    Some(pod.unready_since? + SignedDuration::from_secs(HUNG_SECONDS))
}

/// When a coordinator that is gone may be replaced, if not at once.
fn replaced_at(pod: &PodSeen, now: Timestamp) -> Option<Timestamp> {
    match &pod.state {
        PodState::Ended(Ended { ran: Some(ran), .. }) if *ran >= SHORT_LIFE => None,
        PodState::Ended(Ended { at: Some(at), ran: Some(_), .. }) if *at <= now => Some(*at + SHORT_LIFE),
        // It never ran, since the node refused it and may refuse the next one, or ended in the future by its node's clock.
        PodState::Ended(_) => pod.created.map(|created| created + SHORT_LIFE),
        PodState::Pending(_) | PodState::Running => None,
    }
}

fn when_over(ending: Option<Ending>, others: &[&PodSeen], last: Option<Timestamp>, now: Timestamp) -> Verdict {
    let patience = last.unwrap_or(now) + SignedDuration::from_secs(FINISH_SECONDS);
    if patience > now && others.iter().any(|pod| !matches!(pod.state, PodState::Ended(_))) {
        return Verdict::GoesOn(Losses { gone: Vec::new(), settles: Some(patience) });
    }
    Verdict::Done(Box::new(ending))
}

/// Whether one of them saw the training to its end.
pub(crate) fn is_done(pods: &[&PodSeen]) -> bool {
    pods.iter().any(|pod| end(pod) == Some(End::Done))
}

fn end(pod: &PodSeen) -> Option<End> {
    let lost = |reason: &Option<String>| End::Lost(reason.clone().unwrap_or_else(|| "Lost".to_owned()));
    match &pod.state {
        PodState::Ended(Ended { code: Some(code), .. }) => match Exit::from_code(*code) {
            Some(Exit::Done) => Some(End::Done),
            Some(Exit::Fatal) => Some(End::Refused),
            Some(Exit::Drained) if pod.disrupted.is_some() => Some(lost(&pod.disrupted)),
            Some(Exit::Drained) => Some(End::Drained),
            Some(Exit::Retry) | None if pod.disrupted.is_some() => Some(lost(&pod.disrupted)),
            Some(Exit::Retry) => Some(End::Asked),
            // Killed by its own deletion, not by a fault of its own.
            None if pod.stuck_at.is_some() => Some(End::Lost("Deleted".to_owned())),
            None => Some(End::Crashed),
        },
        PodState::Ended(Ended { code: None, reason: Some(reason), .. })
            if pod.disrupted.is_none() && OWN_FAULTS.contains(&reason.as_str()) =>
        {
            Some(End::Crashed)
        }
        PodState::Ended(Ended { code: None, reason, .. }) => Some(lost(reason)),
        PodState::Pending(_) | PodState::Running if pod.disrupted.is_some() => Some(lost(&pod.disrupted)),
        PodState::Pending(_) | PodState::Running if pod.stuck_at.is_some() => Some(End::Lost("Deleted".to_owned())),
        PodState::Pending(_) | PodState::Running => None,
    }
}

/// Why a pod is gone: in Kubernetes' words or its own, else for `reason`.
pub(crate) fn last_failure(pod: &PodSeen, reason: &str, now: Timestamp) -> LastFailure {
    let ended = match &pod.state {
        PodState::Ended(ended) => ended.clone(),
        PodState::Pending(_) | PodState::Running => Ended::default(),
    };
    let said = pod.ending().map(|ending| ending.message).filter(|message| !message.is_empty());
    // Kubernetes says Error for every code that is not 0; a word of ours says more.
    let better = ended.reason.filter(|reason| !matches!(reason.as_str(), "Error" | "Completed"));
    let log = if Ending::from_line(&ended.message).is_some() { String::new() } else { ended.message };
    let memory = || (better.as_deref() == Some(OUT_OF_MEMORY)).then(|| NO_MEMORY.to_owned());
    let message = said.or_else(memory).unwrap_or_else(|| cause(&log));
    // One line is told already.
    let log = if log.trim().lines().count() > 1 { log } else { String::new() };
    LastFailure {
        pod: Some(pod.name.clone()),
        node: pod.node.clone(),
        exit_code: ended.code,
        reason: Some(pod.disrupted.clone().or(better).unwrap_or_else(|| reason.to_owned())),
        message,
        log,
        time: Some(time(now)),
    }
}

pub(crate) fn ended_at(pod: &PodSeen) -> Option<Timestamp> {
    match &pod.state {
        PodState::Ended(ended) => ended.at,
        PodState::Pending(_) | PodState::Running => None,
    }
}

fn time(now: Timestamp) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now)
}
