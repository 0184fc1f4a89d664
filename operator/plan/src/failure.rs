//! How pods ended, and what that means for the gang: one verdict for all of them, so that one failure counts once.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{LastFailure, ValidJob};
use lockstep_launch::{Ending, Exit};

use crate::{Ended, PodSeen, PodState, Role, pod_name};

/// Seconds that peers of a worker which asked for a restart have to show the cause: a node takes its time to be found lost.
const SETTLE_SECONDS: i64 = 60;
/// Seconds that the other pods have to end once the training is done.
const FINISH_SECONDS: i64 = 60;

/// A coordinator that ran for less than this many seconds is replaced so many seconds after its end, another one at once: one
/// that fails whenever it starts is not made anew without pause.
const COORDINATOR_SECONDS: i64 = 10;

/// Why the kubelet itself refuses or ends a pod for what its template says: another node would do the same.
const OWN_FAULTS: [&str; 3] = ["AppArmor", "DeadlineExceeded", "SysctlForbidden"];

/// What the pods of an attempt amount to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing ended that should not have.
    Healthy,
    /// Something ended; what it means shows by itself, or at this time.
    Settling(Timestamp),
    /// The training reached its last step.
    Done(Option<Ending>),
    /// Starting again would fail again.
    Refused(LastFailure),
    /// The gang must start again, and this counts.
    Failed(LastFailure),
    /// The gang must start again for a cause outside the job.
    Lost(LastFailure),
}

/// Why one pod is no longer part of the gang.
#[derive(Clone, Debug, PartialEq)]
enum Cause {
    Done,
    Refused,
    Asked,
    Crashed,
    Lost(String),
}

/// Judges the pods of one attempt. `complete` tells that all of them have existed: one that is missing was taken away.
pub(crate) fn verdict(job: &ValidJob, pods: &[&PodSeen], complete: bool, now: Timestamp) -> Verdict {
    let coordinator = pods.iter().find(|pod| pod.role == Role::Coordinator).copied();
    let workers: Vec<&PodSeen> = pods.iter().filter(|pod| pod.role != Role::Coordinator).copied().collect();
    let causes: Vec<(&PodSeen, Cause)> = workers.iter().filter_map(|pod| Some((*pod, cause(pod)?))).collect();
    let of_coordinator = coordinator.and_then(|pod| Some((pod, cause(pod)?)));

    if let Some((pod, _)) = of_coordinator.iter().chain(&causes).find(|(_, cause)| *cause == Cause::Refused) {
        return Verdict::Refused(last_failure(pod, "Refused", now));
    }
    if let Some((pod, Cause::Done)) = &of_coordinator {
        return when_over(pod.ending(), &workers, ended_at(pod), now);
    }
    let all = job.replicas.get() as usize;
    let done: Vec<&PodSeen> = causes.iter().filter(|(_, cause)| *cause == Cause::Done).map(|(pod, _)| *pod).collect();
    if done.len() == all {
        // The coordinator may still be writing down the result; without one the workers' word is enough.
        let alive = coordinator.filter(|_| of_coordinator.is_none());
        let last = done.iter().filter_map(|pod| ended_at(pod)).max();
        let says = |ending: &Ending| (ending.model_uri.is_some(), ending.progress.is_some());
        let ending = done.iter().filter_map(|pod| pod.ending()).max_by_key(says);
        return when_over(ending, alive.as_slice(), last, now);
    }
    let lost = |wanted: fn(&PodSeen) -> bool| {
        causes.iter().find_map(|(pod, cause)| match cause {
            Cause::Lost(reason) if wanted(pod) => Some(Verdict::Lost(last_failure(pod, reason, now))),
            _ => None,
        })
    };
    // All drain when one has to leave: that one is named, not those that left with it.
    if let Some(verdict) = lost(|pod| pod.stuck_at.is_some() || pod.disrupted.is_some()) {
        return verdict;
    }
    if complete && let Some(index) = (0..job.replicas.get()).find(|index| !is_there(&workers, *index)) {
        let pod = Some(pod_name(job, Role::Worker(index)));
        let message = "the pod was deleted".to_owned();
        let reason = Some("Deleted".to_owned());
        return Verdict::Lost(LastFailure { pod, reason, message, time: Some(time(now)), ..LastFailure::default() });
    }
    if let Some(verdict) = lost(|_| true) {
        return verdict;
    }
    if let Some((pod, _)) = causes.iter().find(|(_, cause)| *cause == Cause::Crashed) {
        return Verdict::Failed(last_failure(pod, "Crashed", now));
    }
    let asked: Vec<&PodSeen> = causes.iter().filter(|(_, cause)| *cause == Cause::Asked).map(|(pod, _)| *pod).collect();
    let Some(first) = asked.iter().min_by_key(|pod| ended_at(pod)) else { return Verdict::Healthy };
    if let Some(pod) = workers.iter().find(|pod| pod.unreachable) {
        return Verdict::Lost(last_failure(pod, "NodeLost", now));
    }
    let settled = ended_at(first).unwrap_or(now) + SignedDuration::from_secs(SETTLE_SECONDS);
    if causes.len() == all || settled <= now {
        return Verdict::Failed(last_failure(first, "Retry", now));
    }
    Verdict::Settling(settled)
}

/// Whether a coordinator has to be replaced; training goes on without it meanwhile.
pub(crate) fn coordinator_is_gone(pod: &PodSeen) -> bool {
    matches!(cause(pod), Some(Cause::Asked | Cause::Crashed | Cause::Lost(_)))
}

/// When a coordinator that is gone may be replaced, if not at once.
pub(crate) fn replaced_at(pod: &PodSeen) -> Option<Timestamp> {
    let PodState::Ended(Ended { at: Some(at), ran: Some(ran), .. }) = &pod.state else { return None };
    let pause = SignedDuration::from_secs(COORDINATOR_SECONDS);
    (*ran < pause).then(|| *at + pause)
}

fn when_over(ending: Option<Ending>, others: &[&PodSeen], last: Option<Timestamp>, now: Timestamp) -> Verdict {
    let patience = last.unwrap_or(now) + SignedDuration::from_secs(FINISH_SECONDS);
    if patience > now && others.iter().any(|pod| !matches!(pod.state, PodState::Ended(_))) {
        return Verdict::Settling(patience);
    }
    Verdict::Done(ending)
}

fn is_there(workers: &[&PodSeen], index: u32) -> bool {
    workers.iter().any(|pod| pod.role == Role::Worker(index))
}

fn cause(pod: &PodSeen) -> Option<Cause> {
    let lost = |reason: &Option<String>| Cause::Lost(reason.clone().unwrap_or_else(|| "Lost".to_owned()));
    match &pod.state {
        PodState::Ended(Ended { code: Some(code), .. }) => match Exit::from_code(*code) {
            Some(Exit::Done) => Some(Cause::Done),
            Some(Exit::Fatal) => Some(Cause::Refused),
            Some(Exit::Drained) => Some(Cause::Lost("Drained".to_owned())),
            Some(Exit::Retry) | None if pod.disrupted.is_some() => Some(lost(&pod.disrupted)),
            Some(Exit::Retry) => Some(Cause::Asked),
            // Killed by its own deletion, not by a fault of its own.
            None if pod.stuck_at.is_some() => Some(Cause::Lost("Deleted".to_owned())),
            None => Some(Cause::Crashed),
        },
        PodState::Ended(Ended { code: None, reason: Some(reason), .. })
            if pod.disrupted.is_none() && OWN_FAULTS.contains(&reason.as_str()) =>
        {
            Some(Cause::Crashed)
        }
        PodState::Ended(Ended { code: None, reason, .. }) => Some(lost(reason)),
        PodState::Pending(_) | PodState::Running if pod.disrupted.is_some() => Some(lost(&pod.disrupted)),
        PodState::Pending(_) | PodState::Running if pod.stuck_at.is_some() => Some(Cause::Lost("Deleted".to_owned())),
        PodState::Pending(_) | PodState::Running => None,
    }
}

fn last_failure(pod: &PodSeen, reason: &str, now: Timestamp) -> LastFailure {
    let ended = match &pod.state {
        PodState::Ended(ended) => ended.clone(),
        PodState::Pending(_) | PodState::Running => Ended::default(),
    };
    let said = pod.ending().map(|ending| ending.message).filter(|message| !message.is_empty());
    // Kubernetes says Error for every code that is not 0; a word of ours says more.
    let better = ended.reason.filter(|reason| !matches!(reason.as_str(), "Error" | "Completed"));
    let raw = if Ending::from_line(&ended.message).is_some() { String::new() } else { ended.message };
    LastFailure {
        pod: Some(pod.name.clone()),
        node: pod.node.clone(),
        exit_code: ended.code,
        reason: Some(pod.disrupted.clone().or(better).unwrap_or_else(|| reason.to_owned())),
        message: said.unwrap_or(raw),
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
