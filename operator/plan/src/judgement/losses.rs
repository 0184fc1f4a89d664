//! Workers that the group has lost while others keep the state.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::LastFailure;

use super::{
    failure::{RETRY, deleted, failure_of},
    pod_end::{PodEnd, is_alive},
    pulse::{Pulse, hung_at},
    situation::Situation,
};
use crate::PodSeen;

/// Time after which a worker that drained or asked for a restart counts as lost. If the others end
/// too within that time, all start again from the state that they saved.
const SETTLE: SignedDuration = SignedDuration::from_secs(5);

/// If a pod lived for less than this time, its replacement waits as long. So a pod that fails at
/// every start is not replaced without pause. Other pods are replaced at once.
pub(crate) const SHORT_LIFE: SignedDuration = SignedDuration::from_secs(10);

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
    /// Its number.
    pub(crate) worker: u32,
    /// The pod that was lost; none if it was gone before the operator looked.
    pub(crate) uid: Option<String>,
    pub(crate) cause: LossCause,
    pub(crate) failure: LastFailure,
    /// True if the next pod waits a little, because this one was gone soon or could not join.
    pub(crate) next_waits: bool,
}

/// The side that is at fault for a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossCause {
    /// The job itself; the loss counts as a failure.
    Job,
    /// The cluster; the loss does not count.
    Cluster,
}

/// Pods by number, with their ends.
pub(super) type Ends<'a> = Vec<(u32, &'a PodSeen, PodEnd)>;

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
            losses.lost.push(loss(worker, pod, LossCause::Cluster, "NodeLost", now));
        } else if let (Pulse::Still { all }, Some(hung)) = (pulse, hung_at(pod)) {
            if !all && !pod.was_ready {
                continue;
            }
            if hung <= now {
                // A hanging process had answered before. A worker that trained without ever being
                // called ready was lost with its node.
                let cause = if pod.was_ready { LossCause::Job } else { LossCause::Cluster };
                losses.lost.push(loss(worker, pod, cause, "Hung", now));
            } else {
                losses.settle_at(hung);
            }
        }
    }
    losses.lost.extend(missing.iter().map(|worker| Loss {
        worker: *worker,
        uid: None,
        cause: LossCause::Cluster,
        failure: deleted(situation.job, *worker, now),
        next_waits: false,
    }));
    losses
}

impl Losses {
    fn settle_at(&mut self, time: Timestamp) {
        self.settles = Some(self.settles.map_or(time, |earlier| earlier.min(time)));
    }
}

/// When an end that several workers may share is taken for a loss.
fn settles_at(pod: &PodSeen, end: &PodEnd, now: Timestamp) -> Option<Timestamp> {
    let may_be_shared =
        matches!(end, PodEnd::Drained | PodEnd::AskedForRestart) && pod.stuck_at.is_none() && pod.disrupted.is_none();
    // An end far ahead of now, by its node's clock, gives no time to wait for.
    let ended = pod.ended_at().filter(|at| may_be_shared && *at <= now + SETTLE)?;
    Some(ended + SETTLE)
}

fn loss_by_end(
    worker: u32,
    pod: &PodSeen,
    end: &PodEnd,
    has_yet_to_join: impl Fn(&PodSeen) -> bool,
    now: Timestamp,
) -> Option<Loss> {
    match end {
        PodEnd::Done => None,
        PodEnd::Refused => Some(loss(worker, pod, LossCause::Job, "Refused", now)),
        PodEnd::AskedForRestart if has_yet_to_join(pod) => {
            Some(Loss { next_waits: true, ..loss(worker, pod, LossCause::Cluster, RETRY, now) })
        }
        // The thing that it lacked may take longer to appear than the pod lived.
        PodEnd::AskedForRestart => {
            let lost = loss(worker, pod, LossCause::Job, RETRY, now);
            Some(Loss { next_waits: lost.next_waits || !pod.was_ready, ..lost })
        }
        PodEnd::Crashed => Some(loss(worker, pod, LossCause::Job, "Crashed", now)),
        PodEnd::Drained => Some(loss(worker, pod, LossCause::Cluster, "Drained", now)),
        PodEnd::Lost(reason) => Some(loss(worker, pod, LossCause::Cluster, reason, now)),
    }
}

fn loss(worker: u32, pod: &PodSeen, cause: LossCause, reason: &str, now: Timestamp) -> Loss {
    Loss {
        worker,
        uid: Some(pod.uid.clone()),
        cause,
        failure: failure_of(pod, reason, now),
        next_waits: pod.created.is_some_and(|created| now.duration_since(created) < SHORT_LIFE),
    }
}
