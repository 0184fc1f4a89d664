//! Deletions: of single pods, and of all pods of a finished job.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{CleanPodPolicy, ValidJob};

use super::step::Actions;
use crate::{Deletion, JobPlan, Observed, PodSeen};

/// Time that a node has to end a pod after its trainer has ended. A pod that is deleted before
/// takes its log with it.
const CLOSING: SignedDuration = SignedDuration::from_secs(30);
/// Time between two deletions by force of a pod that something holds back.
const HELD: SignedDuration = SignedDuration::from_secs(10);

/// Plans for a finished job. Nothing is ever made for it again.
pub(crate) fn after_the_end(job: &ValidJob, seen: &Observed, now: Timestamp) -> JobPlan {
    let ended = seen.status.completion_time.as_ref();
    let due =
        job.ttl_seconds_after_finished.zip(ended).map(|(ttl, ended)| ended.0 + SignedDuration::from_secs(ttl.into()));
    let again = Actions::look_again_at(due.filter(|due| *due > now));
    let actions = clean_up(job, &seen.pods, now).and(watch_terminating(&seen.pods, now)).and(again);
    JobPlan { delete_job: due.is_some_and(|due| due <= now), ..actions.into_plan(now) }
}

/// Deletes the pods of a finished job by its `cleanPodPolicy`.
pub(crate) fn clean_up(job: &ValidJob, pods: &[PodSeen], now: Timestamp) -> Actions {
    let one = |pod: &PodSeen| {
        let closed = pod.ended_at().map(|ended| ended + CLOSING);
        match (job.clean_pod_policy, closed.filter(|closed| *closed > now)) {
            (CleanPodPolicy::Running, Some(closed)) if !pod.over => Actions::look_again_at(closed),
            (CleanPodPolicy::Running, _) if pod.over => Actions::default(),
            (CleanPodPolicy::All | CleanPodPolicy::Running, _) => Actions::delete(deletion(pod, now)),
            (CleanPodPolicy::None, _) => Actions::default(),
        }
    };
    pods.iter().map(one).fold(Actions::default(), Actions::and)
}

/// The deletion of a pod. There is none while its node still has time for one that was asked for.
pub(crate) fn deletion(pod: &PodSeen, now: Timestamp) -> Option<Deletion> {
    let by_force = pod.stuck_at.is_some_and(|time| time <= now);
    (pod.stuck_at.is_none() || by_force).then(|| Deletion { pod: pod.name.clone(), uid: pod.uid.clone(), by_force })
}

/// Looks again at pods that are being deleted.
pub(crate) fn watch_terminating(pods: &[PodSeen], now: Timestamp) -> Actions {
    // A finalizer may hold a pod. If its owner lets go, the watch of pods says so.
    let next = |stuck_at: Timestamp| if stuck_at > now { stuck_at } else { now + HELD };
    Actions::look_again_at(pods.iter().filter_map(|pod| pod.stuck_at).map(next).min())
}
