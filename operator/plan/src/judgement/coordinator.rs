//! The coordinator: when it is replaced, and when its record is missing.

use jiff::Timestamp;
use lockstep_api::TrainingJobStatus;
use lockstep_lifecycle::{Pauses, WorkerEnd};

use super::{
    pod_end::{is_alive, pod_end},
    pulse::{Pulse, hung_at},
    situation::Situation,
};
use crate::{PodSeen, PodState, Termination};

/// Returns when a coordinator is to be replaced, and why. Training goes on without it meanwhile.
/// While the whole group reports steps, a living coordinator does its work.
pub(crate) fn replaces_coordinator(pod: &PodSeen, pulse: Pulse, now: Timestamp) -> Option<(Timestamp, &'static str)> {
    let was_at_work = pod.was_ready || matches!(pulse, Pulse::Still { .. });
    match pod_end(pod) {
        Some(WorkerEnd::Done | WorkerEnd::Fatal) => None,
        Some(_) => Some((pause_ends(pod, now).unwrap_or(now), "Lost")),
        None if pulse == Pulse::Whole => None,
        None if pod.unreachable => Some((now, "NodeLost")),
        None => hung_at(pod).filter(|_| was_at_work).map(|hung| (hung, "Hung")),
    }
}

/// The end of the pause before a lost coordinator is replaced, if there is one.
fn pause_ends(pod: &PodSeen, now: Timestamp) -> Option<Timestamp> {
    let short_life = Pauses::OF_PODS.short_life;
    match &pod.state {
        PodState::Ended(Termination { ran: Some(ran), .. }) if *ran >= short_life => None,
        PodState::Ended(Termination { at: Some(at), ran: Some(_), .. }) if *at <= now => Some(*at + short_life),
        // Either it never ran, because its node refused it and may refuse the next one, or it ended
        // in the future by its node's clock.
        PodState::Ended(_) => pod.created.map(|created| created + short_life),
        PodState::Pending(_) | PodState::Running => None,
    }
}

/// True if workers know of a membership whose record is gone, and no coordinator is left that knows
/// it too. A new record would know less than the workers do.
pub(crate) fn lacks_record(situation: &Situation<'_>, status: &TrainingJobStatus) -> bool {
    situation.seen.group.is_none()
        && status.membership.is_some()
        && !situation.coordinators().any(is_alive)
        && situation.present.iter().any(|pod| pod.ready)
}
