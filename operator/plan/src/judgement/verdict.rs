//! The verdict on the pods of an attempt.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{LastFailure, TrainingJobStatus};
use lockstep_launch::Ending;
use lockstep_lifecycle::{Role, WorkerEnd};

use super::{
    failure::{deleted, failure_of},
    losses::{Ends, Losses, losses},
    pod_end::{is_alive, pod_end},
    pulse::{Pulse, is_reporting},
    situation::Situation,
};
use crate::{PodSeen, PodState};

/// Greatest distance in time between the end of a known lost worker and the ends of those that
/// drained with it. They save their state first.
const DRAIN: SignedDuration = SignedDuration::from_secs(60);
/// Time that the other pods have to end once the training is done.
const FINISH: SignedDuration = SignedDuration::from_secs(60);
/// Time that workers have to find a coordinator once it runs.
const FINDING: SignedDuration = SignedDuration::from_secs(30);

/// The outcome of an attempt, as far as its pods show it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The job goes on without the lost workers.
    GoesOn(Losses),
    /// The training reached its last step.
    Done(Box<Option<Ending>>),
    /// The input was refused. Another start would fail again.
    Refused(LastFailure),
    /// No worker is left that holds the state, so all must start again. The failure is that of the
    /// pod that took the others with it; none if the status knows it already.
    AllGone(Option<(WorkerEnd, LastFailure)>),
}

/// Judges the pods of the present attempt. `status` remembers what was judged before.
pub(crate) fn verdict(situation: &Situation<'_>, status: &TrainingJobStatus, pulse: Pulse) -> Verdict {
    let now = situation.now;
    let ends: Ends<'_> =
        situation.wanted_workers().filter_map(|(worker, pod)| Some((worker, pod, pod_end(pod)?))).collect();
    let coordinator = situation.coordinators().next();
    let coordinator_end = coordinator.and_then(|pod| Some((pod, pod_end(pod)?)));
    if let Some(pod) = first_refusal(situation, &ends, coordinator_end.as_ref()) {
        return Verdict::Refused(failure_of(pod, WorkerEnd::Fatal.word(), now));
    }
    if let Some((pod, WorkerEnd::Done)) = &coordinator_end {
        let others: Vec<&PodSeen> = situation.wanted_workers().map(|(_, pod)| pod).collect();
        return done_or_waiting(pod.ending(), &others, pod.ended_at(), now);
    }
    if ends.iter().any(|(_, _, end)| *end == WorkerEnd::Done) {
        // A worker ends after the end of all is recorded. The coordinator may still be writing.
        let coordinator = coordinator.filter(|_| coordinator_end.is_none());
        return workers_done(situation, &ends, coordinator);
    }
    let target = status.target_replicas;
    let is_there = |index: u32| situation.wanted_workers().any(|(worker, _)| worker == index);
    let missing: Vec<u32> = (0..target.min(situation.job.replicas.get())).filter(|index| !is_there(*index)).collect();
    let has_rested = matches!(&coordinator_end, Some((pod, WorkerEnd::Drained)) if pod.stuck_at.is_none());
    // A worker that is to go may still hold the state.
    let is_any_left = situation.workers().any(is_alive);
    let awaited = |pod: &PodSeen| awaits_coordinator(pod, coordinator);
    let all_await = missing.is_empty() && ends.iter().all(|(_, pod, _)| awaited(pod));
    let is_any_gone = !ends.is_empty() || !missing.is_empty();
    if (is_any_gone && !is_any_left && !all_await) || (has_rested && !ends.is_empty()) {
        return Verdict::AllGone(first_loss(situation, status, ends, missing));
    }
    // A worker that leaves and is wanted again leaves first.
    let leaves = |worker: u32, pod: &PodSeen| worker >= target && pod.stuck_at.is_some();
    let ends: Ends<'_> = ends.into_iter().filter(|(worker, pod, _)| !leaves(*worker, pod)).collect();
    let others_train =
        situation.holds_state() && is_reporting(status, now) && matches!(pulse, Pulse::Whole | Pulse::Lacking);
    // A newcomer that could not reach something may reach it next time. While others train, that
    // costs no training.
    let has_yet_to_join = |pod: &PodSeen| (others_train && !pod.was_ready) || awaited(pod);
    Verdict::GoesOn(losses(situation, &ends, &missing, has_yet_to_join, pulse))
}

/// The pod that refused its input first. A refusing worker counts only while no other holds the
/// state, because another pod may do better.
fn first_refusal<'a>(
    situation: &Situation<'_>,
    ends: &Ends<'a>,
    coordinator_end: Option<&(&'a PodSeen, WorkerEnd)>,
) -> Option<&'a PodSeen> {
    let is_held = situation.holds_state();
    let fails = |end: &WorkerEnd| end.fails_the_job(Role::Worker, is_held);
    let workers = ends.iter().filter(|(_, _, end)| fails(end)).map(|(_, pod, _)| *pod);
    let coordinator = coordinator_end.filter(|(_, end)| end.fails_the_job(Role::Coordinator, is_held));
    let coordinator = coordinator.map(|(pod, _)| *pod);
    // A coordinator that ends in the same second repeats the words of a worker, which comes first.
    workers.chain(coordinator).min_by_key(|pod| pod.ended_at())
}

/// The verdict once a worker has seen the end of the training.
fn workers_done(situation: &Situation<'_>, ends: &Ends<'_>, coordinator: Option<&PodSeen>) -> Verdict {
    let done = || ends.iter().filter(|(_, _, end)| *end == WorkerEnd::Done).map(|(_, pod, _)| *pod);
    let others: Vec<&PodSeen> = situation.wanted_workers().map(|(_, pod)| pod).chain(coordinator).collect();
    let last = done().filter_map(PodSeen::ended_at).max();
    let content = |ending: &Ending| (ending.model_uri.is_some(), ending.progress.is_some());
    let ending = done().filter_map(PodSeen::ending).max_by_key(content);
    done_or_waiting(ending, &others, last, situation.now)
}

/// Waits for the others, but not for ever.
fn done_or_waiting(ending: Option<Ending>, others: &[&PodSeen], last: Option<Timestamp>, now: Timestamp) -> Verdict {
    let patience = last.unwrap_or(now) + FINISH;
    if patience > now && others.iter().any(|pod| !matches!(pod.state, PodState::Ended(_))) {
        return Verdict::GoesOn(Losses { lost: Vec::new(), settles: Some(patience) });
    }
    Verdict::Done(Box::new(ending))
}

/// True if a worker gave up before it had enough time to find a coordinator. Then nobody failed.
fn awaits_coordinator(pod: &PodSeen, coordinator: Option<&PodSeen>) -> bool {
    let found = |by: Timestamp| {
        let started = coordinator.and_then(|coordinator| coordinator.started);
        started.is_some_and(|started| by.duration_since(started) >= FINDING)
    };
    pod_end(pod) == Some(WorkerEnd::Retry) && !pod.was_ready && pod.ended_at().is_some_and(|ended| !found(ended))
}

/// The loss that took all others with it, unless the status knows it already.
fn first_loss(
    situation: &Situation<'_>,
    status: &TrainingJobStatus,
    mut ends: Ends<'_>,
    mut missing: Vec<u32>,
) -> Option<(WorkerEnd, LastFailure)> {
    let now = situation.now;
    let known = |worker: u32, uid: Option<&String>| {
        status.replacing.iter().any(|entry| entry.worker == worker && (uid.is_none() || entry.uid.as_ref() == uid))
    };
    missing.retain(|worker| !known(*worker, None));
    ends.retain(|(worker, pod, _)| !known(*worker, Some(&pod.uid)));
    let known_since = status.replacing.iter().map(|entry| entry.since.0).max();
    let left_with_it = |pod: &PodSeen| {
        let ended = pod.ended_at().unwrap_or(now);
        known_since.is_some_and(|known| ended.duration_since(known).abs() < DRAIN)
    };
    ends.retain(|(_, pod, end)| *end != WorkerEnd::Drained || pod.stuck_at.is_some() || !left_with_it(pod));

    let failure = |end: &WorkerEnd, pod: &PodSeen| (end.clone(), failure_of(pod, end.word(), now));
    let lost = |wanted: fn(&PodSeen) -> bool| {
        let was_asked = |end: &WorkerEnd| matches!(end, WorkerEnd::TakenAway(_) | WorkerEnd::Drained);
        ends.iter().find(|(_, pod, end)| was_asked(end) && wanted(pod)).map(|(_, pod, end)| failure(end, pod))
    };
    let is_deleted = |worker: &u32| (WorkerEnd::TakenAway("Deleted".to_owned()), deleted(situation.job, *worker, now));
    // All drain if one has to leave. The failure names that one, not those that left with it.
    lost(|pod| pod.stuck_at.is_some() || pod.disrupted.is_some())
        .or_else(|| missing.first().map(is_deleted))
        .or_else(|| lost(|_| true))
        .or_else(|| {
            let first = ends.iter().min_by_key(|(_, pod, end)| (end.depth(), pod.ended_at()));
            first.map(|(_, pod, end)| failure(end, pod))
        })
}
