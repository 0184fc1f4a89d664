//! Why one pod takes no part in its group any more.

use lockstep_launch::Exit;

use crate::{PodSeen, PodState, Termination};

/// Reasons for which the kubelet itself refuses or ends a pod because of its template. Another node
/// would do the same.
const OWN_FAULTS: [&str; 3] = ["AppArmor", "DeadlineExceeded", "SysctlForbidden"];

/// The way in which a pod left the group.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PodEnd {
    /// It saw the end of the training.
    Done,
    /// It refused its input.
    Refused,
    /// It asked to be started again.
    AskedForRestart,
    /// It failed by itself.
    Crashed,
    /// It stopped after a step because it was asked to.
    Drained,
    /// Something outside the job took it away.
    Lost(String),
}

/// Returns how a pod left the group, or `None` while it takes part or will.
pub(super) fn pod_end(pod: &PodSeen) -> Option<PodEnd> {
    let lost = |reason: &Option<String>| PodEnd::Lost(reason.clone().unwrap_or_else(|| "Lost".to_owned()));
    match &pod.state {
        PodState::Ended(Termination { code: Some(code), .. }) => match Exit::from_code(*code) {
            Some(Exit::Done) => Some(PodEnd::Done),
            Some(Exit::Fatal) => Some(PodEnd::Refused),
            Some(Exit::Drained) if pod.disrupted.is_some() => Some(lost(&pod.disrupted)),
            Some(Exit::Drained) => Some(PodEnd::Drained),
            Some(Exit::Retry) | None if pod.disrupted.is_some() => Some(lost(&pod.disrupted)),
            Some(Exit::Retry) => Some(PodEnd::AskedForRestart),
            // Its own deletion killed it; it is not at fault.
            None if pod.stuck_at.is_some() => Some(PodEnd::Lost("Deleted".to_owned())),
            None => Some(PodEnd::Crashed),
        },
        PodState::Ended(Termination { code: None, reason: Some(reason), .. })
            if pod.disrupted.is_none() && OWN_FAULTS.contains(&reason.as_str()) =>
        {
            Some(PodEnd::Crashed)
        }
        PodState::Ended(Termination { code: None, reason, .. }) => Some(lost(reason)),
        PodState::Pending(_) | PodState::Running if pod.disrupted.is_some() => Some(lost(&pod.disrupted)),
        PodState::Pending(_) | PodState::Running if pod.stuck_at.is_some() => Some(PodEnd::Lost("Deleted".to_owned())),
        PodState::Pending(_) | PodState::Running => None,
    }
}

/// True while a pod takes part, or will.
pub(crate) fn is_alive(pod: &PodSeen) -> bool {
    pod_end(pod).is_none()
}

/// True if its process stopped after a step because it was asked to.
pub(crate) fn has_drained(pod: &PodSeen) -> bool {
    pod_end(pod) == Some(PodEnd::Drained)
}

/// True if one of the pods saw the training to its end.
pub(crate) fn is_done(pods: &[&PodSeen]) -> bool {
    pods.iter().any(|pod| pod_end(pod) == Some(PodEnd::Done))
}
