//! Why one pod takes no part in its group any more.

use lockstep_lifecycle::{Ended, Seen, Status, WorkerEnd};

use crate::{PodSeen, PodState, Termination};

/// Returns how a pod left the group, or `None` while it takes part or will.
pub(super) fn pod_end(pod: &PodSeen) -> Option<WorkerEnd> {
    let ended = match &pod.state {
        PodState::Ended(Termination { code, reason, .. }) => {
            Some(Ended { status: code.map(Status::of_container), word: reason.as_deref() })
        }
        PodState::Pending(_) | PodState::Running => None,
    };
    WorkerEnd::of(&Seen { ended, disrupted: pod.disrupted.as_deref(), is_deleted: pod.stuck_at.is_some() })
}

/// True while a pod takes part, or will.
pub(crate) fn is_alive(pod: &PodSeen) -> bool {
    pod_end(pod).is_none()
}

/// True if its process stopped after a step because it was asked to.
pub(crate) fn has_drained(pod: &PodSeen) -> bool {
    pod_end(pod) == Some(WorkerEnd::Drained)
}

/// True if one of the pods saw the training to its end.
pub(crate) fn is_done(pods: &[&PodSeen]) -> bool {
    pods.iter().any(|pod| pod_end(pod) == Some(WorkerEnd::Done))
}
