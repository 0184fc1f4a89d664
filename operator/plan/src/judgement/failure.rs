//! The description of a failure for people and for the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{LastFailure, ValidJob};
use lockstep_launch::Ending;
use lockstep_lifecycle::{Status, WorkerEnd};

use crate::{PodRole, PodSeen, Termination, facts::cause, pod_name};

/// The message about a process that left no word of what it needs.
const NO_MEMORY: &str =
    "the kernel killed it for want of memory; raise resources.limits.memory of its container in spec.template";

/// Describes why a pod is gone: in Kubernetes' words or its own, else by `reason`.
pub(crate) fn failure_of(pod: &PodSeen, reason: &str, now: Timestamp) -> LastFailure {
    let ended = pod.termination().cloned().unwrap_or_default();
    // Kubernetes says Error for every code that is not 0; a word of ours says more.
    let better = ended.reason.clone().filter(|reason| !matches!(reason.as_str(), "Error" | "Completed"));
    let message = message(pod, &ended);
    let log = if Ending::from_line(&ended.message).is_some() { String::new() } else { ended.message };
    LastFailure {
        pod: Some(pod.name.clone()),
        node: pod.node.clone(),
        exit_code: ended.code,
        reason: Some(pod.disrupted.clone().or(better).unwrap_or_else(|| reason.to_owned())),
        message,
        // A single line is in the message already.
        log: if log.trim().lines().count() > 1 { log } else { String::new() },
        step: None,
        time: Some(Time(now)),
    }
}

/// The reason in one sentence. A worker leaves a word about memory before its first step, in case
/// the kernel kills it. That word counts only for a process that ran out of memory.
fn message(pod: &PodSeen, ended: &Termination) -> String {
    let is_out_of_memory = ended.reason.as_deref() == Some(WorkerEnd::OutOfMemory.word());
    let signal = ended.code.filter(|_| !is_out_of_memory).and_then(|code| match Status::of_container(code) {
        Status::Signal(signal) => Some(signal),
        Status::Code(_) => None,
    });
    match (pod.ending().map(|ending| ending.message).filter(|message| !message.is_empty()), signal) {
        (Some(_), Some(signal)) => format!("signal {signal} ended it before it could say why"),
        (Some(own_word), None) => own_word,
        (None, _) if is_out_of_memory => NO_MEMORY.to_owned(),
        (None, _) if pod.ending().is_some() => String::new(),
        (None, _) => cause(&ended.message),
    }
}

/// Describes the failure of a worker whose pod was deleted.
pub(super) fn deleted(job: &ValidJob, worker: u32, now: Timestamp) -> LastFailure {
    LastFailure {
        pod: Some(pod_name(job, PodRole::Worker(worker))),
        reason: Some("Deleted".to_owned()),
        message: "the pod was deleted".to_owned(),
        time: Some(Time(now)),
        ..LastFailure::default()
    }
}

/// A failure in one line.
pub(crate) fn describe(failure: &LastFailure) -> String {
    let LastFailure { pod, node, exit_code, reason, message, log: _, step: _, time: _ } = failure;
    let pod = pod.as_deref().unwrap_or("a pod");
    let node = node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let reason = reason.as_deref().unwrap_or("lost");
    let code = exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("{pod}{node}: {reason}{code}{message}")
}
