//! Workers that are lost while others keep the state: each is counted once, replaced after its pause, and welcomed back.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{Replacing, TrainingJobStatus, ValidJob};

use crate::{
    PodSeen,
    failure::{Cause, Gone, RETRY, SHORT_LIFE, is_alive, wanted},
    status::Note,
};

/// Failures within so many seconds are one: what befell one worker befell the others too.
const INCIDENT: SignedDuration = SignedDuration::from_secs(10);
/// Longest pause before a worker, or all of them, start again.
const MAX_PAUSE_SECONDS: i64 = 60;

/// Longest pause before somebody looks again whether something is there.
const MAX_ABSENCE_SECONDS: i64 = 360;

/// Notes who was lost, each once.
pub(crate) fn lose(status: &mut TrainingJobStatus, events: &mut Vec<Note>, losses: Vec<Gone>, now: Timestamp) {
    for Gone { worker, uid, cause, failure, next_waits } in losses {
        let known = |entry: &&Replacing| entry.worker == worker && (uid.is_none() || entry.uid == uid);
        if status.replacing.iter().find(known).is_some() {
            continue;
        }
        status.replacing.retain(|entry| entry.worker != worker);
        let counted = cause == Cause::Failed && count_failure(status, now);
        status.replacements += 1;
        let pause = match cause {
            Cause::Failed => pause_after(status.failures),
            Cause::Lost => SignedDuration::ZERO,
        };
        let pause = match (cause, failure.reason.as_deref()) {
            (Cause::Failed, Some(RETRY)) if next_waits => pause_until_there(status.failures),
            _ if next_waits => pause.max(SHORT_LIFE),
            _ => pause,
        };
        status.replacing.push(Replacing {
            worker,
            uid,
            since: Time(now),
            not_before: Time(now + pause),
            failed: cause == Cause::Failed,
            counted,
        });
        events.push(Note::worker_lost(&failure));
        status.last_failure = Some(failure);
    }
    status.replacing.sort_by_key(|entry| entry.worker);
}

/// Counts a failure, unless it belongs to one that was counted just before. Says whether it did.
pub(crate) fn count_failure(status: &mut TrainingJobStatus, now: Timestamp) -> bool {
    let recent = |entry: &Replacing| entry.counted && now.duration_since(entry.since.0) < INCIDENT;
    let counts = !status.replacing.iter().any(recent);
    status.failures += u32::from(counts);
    counts
}

/// Crosses out who has joined again, or is not wanted any more.
pub(crate) fn welcome(
    job: &ValidJob,
    status: &mut TrainingJobStatus,
    present: &[&PodSeen],
    events: &mut Vec<Note>,
    now: Timestamp,
) {
    let replicas = job.replicas.get();
    status.replacing.retain(|entry| {
        let is_back = |(worker, pod): (u32, &PodSeen)| {
            worker == entry.worker && entry.uid.as_ref() != Some(&pod.uid) && pod.ready && is_alive(pod)
        };
        let back = wanted(job, present).any(is_back);
        if back {
            events.push(Note::worker_replaced(job, entry, now));
        }
        !back && entry.worker < replicas
    });
}

/// The pause before the start that follows so many failures: 0, 1, 3, 7 … seconds.
pub(crate) fn pause_after(failures: u32) -> SignedDuration {
    let doublings = failures.saturating_sub(1).min(16);
    SignedDuration::from_secs(((1_i64 << doublings) - 1).min(MAX_PAUSE_SECONDS))
}

/// The pause before the start that follows so many failures, where the last was that something is not there: 10, 20, 40 … seconds, as
/// Kubernetes' own Jobs pause.
pub(crate) fn pause_until_there(failures: u32) -> SignedDuration {
    let doublings = failures.saturating_sub(1).min(16);
    SignedDuration::from_secs((10_i64 << doublings).min(MAX_ABSENCE_SECONDS))
}

#[cfg(test)]
mod tests {
    use lockstep_api::LastFailure;

    use super::*;

    #[test]
    fn each_pause_until_something_is_there_is_twice_the_one_before_up_to_a_limit() {
        let pauses = [0, 1, 2, 3, 4, 5, 6, 7, 1000].map(|failures| pause_until_there(failures).as_secs());
        assert_eq!(pauses, [10, 10, 20, 40, 80, 160, 320, 360, 360]);
    }

    #[test]
    fn who_lacked_something_waits_longer_each_time_it_counts_and_else_as_long_as_a_short_life() {
        let pause = |cause, failures| {
            let mut status = TrainingJobStatus { failures, ..TrainingJobStatus::default() };
            let failure = LastFailure { reason: Some(RETRY.to_owned()), ..LastFailure::default() };
            let gone = Gone { worker: 1, uid: None, cause, failure, next_waits: true };
            lose(&mut status, &mut Vec::new(), vec![gone], Timestamp::UNIX_EPOCH);
            status.replacing[0].not_before.0.duration_since(Timestamp::UNIX_EPOCH).as_secs()
        };
        assert_eq!([0, 1, 2].map(|before| pause(Cause::Failed, before)), [10, 20, 40]);
        assert_eq!(pause(Cause::Lost, 6), 10);
    }
}
