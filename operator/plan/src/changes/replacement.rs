//! Lost workers while others keep the state. Each loss is counted once, each worker is replaced
//! after its pause, and its entry goes when the worker has joined again.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{LastFailure, LostWorker, TrainingJobStatus};
use lockstep_lifecycle::{Counted, Failures, Fault, Pauses, Replacement, WorkerEnd, is_forgiven};

use super::{event::JobEvent, step::Step};
use crate::{
    PodSeen,
    judgement::{Loss, Situation, is_alive},
};

/// Notes the lost workers, each once.
pub(crate) fn note_losses(mut status: TrainingJobStatus, losses: Vec<Loss>, now: Timestamp) -> Step {
    let mut events = Vec::new();
    for Loss { facts, uid, failure } in losses {
        let worker = facts.worker;
        let known = |entry: &&LostWorker| entry.worker == worker && (uid.is_none() || entry.uid == uid);
        if status.replacing.iter().find(known).is_some() {
            continue;
        }
        status.replacing.retain(|entry| entry.worker != worker);
        let mut failures = failures_of(&status);
        let Replacement { fault, counted, pause } = failures.lost(&facts, &Pauses::OF_PODS, now);
        status.failures = failures.count;
        status.replacements += 1;
        status.worker_restarts.add(facts.kind());
        status.replacing.push(LostWorker {
            worker,
            uid,
            since: Time(now),
            not_before: Time(now + pause),
            failed: fault == Fault::Job,
            counted,
        });
        events.push(JobEvent::worker_lost(&failure));
        status = with_failure(status, failure);
    }
    status.replacing.sort_by_key(|entry| entry.worker);
    events.into_iter().fold(Step::from(status), Step::event)
}

/// The failures that the status remembers.
pub(crate) fn failures_of(status: &TrainingJobStatus) -> Failures {
    let counted = status.replacing.iter().filter(|entry| entry.counted);
    let recent = counted.map(|entry| Counted { worker: entry.worker, at: entry.since.0 }).collect();
    Failures { count: status.failures, recent }
}

/// Notes the newest failure, with the furthest step before it.
pub(crate) fn with_failure(status: TrainingJobStatus, failure: LastFailure) -> TrainingJobStatus {
    let reported = status.progress.as_ref().map(|progress| progress.step);
    let known = status.last_failure.as_ref().and_then(|known| known.step);
    TrainingJobStatus { last_failure: Some(LastFailure { step: reported.max(known), ..failure }), ..status }
}

/// Sets the count of failures back once the job has trained well for long enough.
pub(crate) fn forgive(mut status: TrainingJobStatus, now: Timestamp) -> TrainingJobStatus {
    let Some((last, progress)) = status.last_failure.as_ref().zip(status.progress.as_ref()) else { return status };
    let lost_at = last.time.as_ref().map_or(now, |time| time.0);
    if status.replacing.is_empty() && is_forgiven(lost_at, last.step.unwrap_or_default(), progress.step, now) {
        status.failures = 0;
    }
    status
}

/// Removes the entries of workers that have joined again or are not wanted any more.
pub(crate) fn welcome(situation: &Situation<'_>, mut status: TrainingJobStatus) -> Step {
    let is_back = |entry: &LostWorker| {
        let successor = |(worker, pod): (u32, &PodSeen)| {
            worker == entry.worker && entry.uid.as_ref() != Some(&pod.uid) && pod.ready && is_alive(pod)
        };
        situation.wanted_workers().any(successor)
    };
    let (back, missing): (Vec<_>, Vec<_>) = std::mem::take(&mut status.replacing).into_iter().partition(is_back);
    let replicas = situation.job.replicas.get();
    status.replacing = missing.into_iter().filter(|entry| entry.worker < replicas).collect();
    let events = back.iter().map(|entry| JobEvent::worker_replaced(situation.job, entry, situation.now));
    events.fold(Step::from(status), Step::event)
}

/// The end of the pause before the present attempt, unless it is the first.
pub(crate) fn restart_pause_ends(status: &TrainingJobStatus) -> Option<Timestamp> {
    let failure = status.last_failure.as_ref()?;
    let failed = failure.time.as_ref()?.0;
    let asked = failure.reason.as_deref() == Some(WorkerEnd::Retry.word());
    let pauses = Pauses::OF_PODS;
    let pause = if asked { pauses.after_absence(status.failures) } else { pauses.after(status.restarts) };
    (status.restarts > 0).then(|| failed + pause)
}
