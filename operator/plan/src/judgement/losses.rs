//! Workers that the group has lost while others keep the state.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::LastFailure;
use lockstep_lifecycle::{self as lifecycle, Standing, WorkerEnd};

use super::{
    failure::{deleted, failure_of},
    pod_end::is_alive,
    pulse::{Pulse, hung_at},
    situation::Situation,
};
use crate::PodSeen;

/// Time after which a worker that drained or asked for a restart counts as lost. If the others end
/// too within that time, all start again from the state that they saved.
const SETTLE: SignedDuration = SignedDuration::from_secs(5);

/// The workers to replace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Losses {
    pub(crate) lost: Vec<Loss>,
    /// When to look again at pods whose end cannot be judged yet.
    pub(crate) settles: Option<Timestamp>,
}

/// A worker that is gone, or will be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Loss {
    /// The facts that decide what follows.
    pub(crate) facts: lifecycle::Loss,
    /// The pod that was lost; none if it was gone before the operator looked.
    pub(crate) uid: Option<String>,
    pub(crate) failure: LastFailure,
}

/// Pods by number, with their ends.
pub(super) type Ends<'a> = Vec<(u32, &'a PodSeen, WorkerEnd)>;

/// Returns the lost workers: those that ended, that hang, and that are missing. A worker that
/// `has_yet_to_join` and asked for another start is nobody's failure.
pub(super) fn losses(
    situation: &Situation<'_>,
    ends: &Ends<'_>,
    missing: &[u32],
    has_yet_to_join: impl Fn(&PodSeen) -> bool,
    pulse: Pulse,
) -> Losses {
    let now = situation.now;
    let mut losses = Losses::default();
    for (worker, pod, end) in ends {
        match settles_at(pod, end, now).filter(|settled| *settled > now) {
            Some(settled) => losses.settle_at(settled),
            None => losses.lost.extend(loss_by_end(*worker, pod, end, &has_yet_to_join, now)),
        }
    }
    // A node that stopped reporting may still run its pods. Only a pod that the group lacks is
    // given up.
    let alive = situation.wanted_workers().filter(|(_, pod)| is_alive(pod) && pulse != Pulse::Whole);
    for (worker, pod) in alive {
        if pod.unreachable {
            losses.lost.push(loss(worker, pod, &taken("NodeLost"), Standing::Member, now));
        } else if let (Pulse::Still { all }, Some(hung)) = (pulse, hung_at(pod)) {
            if !all && !pod.was_ready {
                continue;
            }
            if hung <= now {
                // A hanging process had answered before. A worker that trained without ever being
                // called ready was lost with its node.
                let end = if pod.was_ready { WorkerEnd::Hung } else { taken(WorkerEnd::Hung.word()) };
                losses.lost.push(loss(worker, pod, &end, Standing::Member, now));
            } else {
                losses.settle_at(hung);
            }
        }
    }
    losses.lost.extend(missing.iter().map(|worker| Loss {
        facts: lifecycle::Loss { worker: *worker, end: taken("Deleted"), standing: Standing::Member, lived: None },
        uid: None,
        failure: deleted(situation.job, *worker, now),
    }));
    losses
}

impl Losses {
    fn settle_at(&mut self, time: Timestamp) {
        self.settles = Some(self.settles.map_or(time, |earlier| earlier.min(time)));
    }
}

/// When an end that several workers may share is taken for a loss.
fn settles_at(pod: &PodSeen, end: &WorkerEnd, now: Timestamp) -> Option<Timestamp> {
    let may_be_shared =
        matches!(end, WorkerEnd::Drained | WorkerEnd::Retry) && pod.stuck_at.is_none() && pod.disrupted.is_none();
    // An end far ahead of now, by its node's clock, gives no time to wait for.
    let ended = pod.ended_at().filter(|at| may_be_shared && *at <= now + SETTLE)?;
    Some(ended + SETTLE)
}

fn loss_by_end(
    worker: u32,
    pod: &PodSeen,
    end: &WorkerEnd,
    has_yet_to_join: impl Fn(&PodSeen) -> bool,
    now: Timestamp,
) -> Option<Loss> {
    let standing = match (has_yet_to_join(pod), pod.was_ready) {
        (true, _) => Standing::Newcomer,
        (false, false) => Standing::Awaited,
        (false, true) => Standing::Member,
    };
    (*end != WorkerEnd::Done).then(|| loss(worker, pod, end, standing, now))
}

fn loss(worker: u32, pod: &PodSeen, end: &WorkerEnd, standing: Standing, now: Timestamp) -> Loss {
    let lived = pod.created.map(|created| now.duration_since(created));
    Loss {
        facts: lifecycle::Loss { worker, end: end.clone(), standing, lived },
        uid: Some(pod.uid.clone()),
        failure: failure_of(pod, end.word(), now),
    }
}

fn taken(reason: &str) -> WorkerEnd {
    WorkerEnd::TakenAway(reason.to_owned())
}
