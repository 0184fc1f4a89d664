//! Lost workers while others keep the state. Each loss is counted once, each worker is replaced
//! after its pause, and its entry goes when the worker has joined again.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{LostWorker, TrainingJobStatus};

use super::{event::JobEvent, step::Step};
use crate::{
    PodSeen,
    judgement::{Loss, LossCause, RETRY, SHORT_LIFE, Situation, is_alive, kind_of_loss},
};

/// Failures within this time are one, because one cause may hit several workers.
const INCIDENT: SignedDuration = SignedDuration::from_secs(10);
/// Longest pause before one worker, or all of them, start again.
const MAX_PAUSE_SECONDS: i64 = 60;
/// Longest pause before another try, if something was not there.
const MAX_ABSENCE_SECONDS: i64 = 360;

/// Notes the lost workers, each once.
pub(crate) fn note_losses(mut status: TrainingJobStatus, losses: Vec<Loss>, now: Timestamp) -> Step {
    let mut events = Vec::new();
    for Loss { worker, uid, cause, failure, next_waits } in losses {
        let known = |entry: &&LostWorker| entry.worker == worker && (uid.is_none() || entry.uid == uid);
        if status.replacing.iter().find(known).is_some() {
            continue;
        }
        status.replacing.retain(|entry| entry.worker != worker);
        let counted = cause == LossCause::Job && is_another_failure(&status, now);
        status.failures += u32::from(counted);
        status.replacements += 1;
        status.worker_restarts.add(kind_of_loss(failure.reason.as_deref()));
        let pause = match cause {
            LossCause::Job => pause_after(status.failures),
            LossCause::Cluster => SignedDuration::ZERO,
        };
        let pause = match (cause, failure.reason.as_deref()) {
            (LossCause::Job, Some(RETRY)) if next_waits => pause_after_absence(status.failures),
            _ if next_waits => pause.max(SHORT_LIFE),
            _ => pause,
        };
        status.replacing.push(LostWorker {
            worker,
            uid,
            since: Time(now),
            not_before: Time(now + pause),
            failed: cause == LossCause::Job,
            counted,
        });
        events.push(JobEvent::worker_lost(&failure));
        status.last_failure = Some(failure);
    }
    status.replacing.sort_by_key(|entry| entry.worker);
    events.into_iter().fold(Step::from(status), Step::event)
}

/// True unless a failure was counted just before, to which this one belongs.
pub(crate) fn is_another_failure(status: &TrainingJobStatus, now: Timestamp) -> bool {
    !status.replacing.iter().any(|entry| entry.counted && now.duration_since(entry.since.0) < INCIDENT)
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
    let asked = failure.reason.as_deref() == Some(RETRY);
    let pause = if asked { pause_after_absence(status.failures) } else { pause_after(status.restarts) };
    (status.restarts > 0).then(|| failed + pause)
}

/// The pause after so many failures: 0, 1, 3, 7 … seconds.
fn pause_after(failures: u32) -> SignedDuration {
    let doublings = failures.saturating_sub(1).min(16);
    SignedDuration::from_secs(((1_i64 << doublings) - 1).min(MAX_PAUSE_SECONDS))
}

/// The pause after so many failures, if the last one was that something is not there: 10, 20, 40 …
/// seconds, as Kubernetes' own Jobs pause.
fn pause_after_absence(failures: u32) -> SignedDuration {
    let doublings = failures.saturating_sub(1).min(16);
    SignedDuration::from_secs((10_i64 << doublings).min(MAX_ABSENCE_SECONDS))
}

#[cfg(test)]
mod tests {
    use lockstep_api::LastFailure;

    use super::*;

    #[test]
    fn each_pause_after_an_absence_doubles_up_to_a_limit() {
        let pauses = [0, 1, 2, 3, 4, 5, 6, 7, 1000].map(|failures| pause_after_absence(failures).as_secs());
        assert_eq!(pauses, [10, 10, 20, 40, 80, 160, 320, 360, 360]);
    }

    #[test]
    fn a_worker_that_lacked_something_waits_longer_with_each_counted_failure() {
        let pause = |cause, failures| {
            let status = TrainingJobStatus { failures, ..TrainingJobStatus::default() };
            let failure = LastFailure { reason: Some(RETRY.to_owned()), ..LastFailure::default() };
            let loss = Loss { worker: 1, uid: None, cause, failure, next_waits: true };
            let step = note_losses(status, vec![loss], Timestamp::UNIX_EPOCH);
            step.status.replacing[0].not_before.0.duration_since(Timestamp::UNIX_EPOCH).as_secs()
        };
        assert_eq!([0, 1, 2].map(|before| pause(LossCause::Job, before)), [10, 20, 40]);
        assert_eq!(pause(LossCause::Cluster, 6), 10, "an uncounted loss waits as long as a short life");
    }
}
