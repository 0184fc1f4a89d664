//! The pulse of a group: how it does, as far as that can be seen from outside.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{Phase, TrainingJobStatus};
use lockstep_lifecycle::{STANDSTILL, is_training};

use super::situation::Situation;
use crate::{PodSeen, PodState};

/// Time after which a pod that does not answer counts as hung, if the training stands still or
/// reports nothing without it.
const HUNG: SignedDuration = SignedDuration::from_secs(60);

/// The condition of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// All workers that the job wants take part in steps.
    Whole,
    /// Fewer workers do steps, or none does yet.
    Lacking,
    /// The group trained, but no step was reported for a while.
    Still {
        /// True if all running workers took part; false if some may have yet to join.
        all: bool,
    },
}

/// Returns how the group does by its newest report. The time is that of the next look, if silence
/// would change the answer.
pub(crate) fn pulse(situation: &Situation<'_>, status: &TrainingJobStatus) -> (Pulse, Option<Timestamp>) {
    let reported = reported_at(status);
    let stale_at = reported.map(|time| time + STANDSTILL).filter(|time| *time > situation.now);
    let is_lost = |pod: &PodSeen| status.replacing.iter().any(|entry| entry.uid.as_ref() == Some(&pod.uid));
    let running = || {
        let workers = situation.wanted_workers().map(|(_, pod)| pod);
        workers.filter(|pod| pod.state == PodState::Running && !is_lost(pod))
    };
    let all = status.membership.as_ref().is_some_and(|membership| membership.world_size as usize >= running().count());
    // A worker may stop before anybody saw that it was ready.
    let took_part = all && running().all(|pod| pod.created.is_some() && pod.created <= reported);
    let is_doubtful =
        running().chain(situation.coordinators()).any(|pod| pod.unready_since.is_some() || pod.unreachable);
    let pulse = match (stale_at, all) {
        (Some(_), true) => Pulse::Whole,
        (None, _) if took_part || status.phase == Some(Phase::Running) => Pulse::Still { all: took_part },
        _ => Pulse::Lacking,
    };
    (pulse, stale_at.filter(|_| is_doubtful))
}

/// When steps were last reported.
pub(crate) fn reported_at(status: &TrainingJobStatus) -> Option<Timestamp> {
    Some(status.progress.as_ref()?.last_update_time.as_ref()?.0)
}

/// True while steps are reported.
pub(super) fn is_reporting(status: &TrainingJobStatus, now: Timestamp) -> bool {
    is_training(reported_at(status), now)
}

/// When a pod whose probe fails counts as hung.
pub(super) fn hung_at(pod: &PodSeen) -> Option<Timestamp> {
    Some(pod.unready_since? + HUNG)
}
