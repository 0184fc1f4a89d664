//! A worker's part in its group: it joins, binds itself to the others of each generation, and leaves with a last word.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    path::Path,
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lockstep_collective::{Abort, Group as Ranks, JobId, Limits, Listener, RankId, Sockets, Waiting};
use lockstep_elastic::{
    Admission, Assignment, Break, Digest, FinalReply, FinalReportError, FollowedGroup, HeldState, Hello, Incarnation,
    JoinError, MemberId, Membership, MembershipEvent, Obstacle,
};
use lockstep_launch::{Communication, CommunicationBackend, Ending, Launch, RecordStore, Task};
use tracing::{error, info, warn};

use crate::{
    failure::{Failure, leave, with_causes},
    grace::Drain,
    membership::catchup::send::Newcomers,
    membership::credentials::identity,
    membership::networks::data_address,
    progress::metrics::Metrics,
    serve::Ready,
    signals::Stop,
};

/// All of a group are there when it is formed. In the end they wait in a sum for the slowest part of a large state on slow storage: who is
/// gone shows by its closed connections, or to the coordinator.
pub(crate) const LIMITS: Limits = Limits {
    forming: Duration::from_secs(15),
    silence: Duration::from_secs(600),
    waiting: Waiting::Adaptive,
    threads: NonZeroUsize::MIN,
    shares_memory: true,
    sockets: Sockets::ONE,
};
/// How long the host of a rank that may take any time may acknowledge nothing.
pub(crate) const UNACKNOWLEDGED: Duration = Duration::from_secs(25);
/// Members may evaluate, or save, before they hand anything over, and a group that changes ends it anyway. Nothing is waited for by
/// spinning: a newcomer has time.
const FEED_LIMITS: Limits = Limits { forming: LIMITS.silence, waiting: Waiting::Block, shares_memory: false, ..LIMITS };
const CHANGES: &str = "a new generation is being formed";
/// How long a new worker looks for a coordinator before it says what is in the way; in a cluster
/// another one then tries.
const FIRST_PATIENCE: Duration = Duration::from_secs(120);
/// How long there may be no coordinator while a worker joins again and when the work is done.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(300);
/// Another coordinator is up sooner than this, if one comes.
const MAX_HAND_OVER: Duration = Duration::from_secs(30);
/// How long the ending of a process that hangs may take to be written.
const ENDING_PATIENCE: Duration = Duration::from_secs(2);
/// How long a last word may take when the job failed anyway.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(5);

/// A worker that has joined.
pub(crate) struct Member<'a> {
    pub launch: &'a Launch,
    pub metrics: &'a Arc<Metrics>,
    pub membership: Arc<Membership>,
    stop: &'a Stop,
    ready: &'a Ready,
    listener: Arc<Listener>,
    /// Ends the collectives of the present generation, or what is handed over by the group that is followed.
    abort: Arc<Mutex<Abort>>,
    /// Whether a group that is followed has yet to hand anything over.
    awaits_feed: Arc<AtomicBool>,
    pub newcomers: Newcomers,
}

/// Why all ranks are to stop after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Halt {
    /// The group changes as planned, and goes on.
    Change,
    /// Nobody can stay: the state is saved.
    Drain,
}

impl<'a> Member<'a> {
    /// Joins the group. `data` is the digest of the samples, `held` the state that this worker could begin with.
    pub(crate) fn join(
        launch: &'a Launch,
        metrics: &'a Arc<Metrics>,
        stop: &'a Stop,
        ready: &'a Ready,
        data: Digest,
        held: HeldState,
    ) -> Result<(Self, Admission), Failure> {
        let listener = Listener::bind(data_address(launch)?, launch.ports.data)
            .map_err(|error| Failure::fatal(with_causes(&error)))?;
        let listener = match identity(launch)? {
            Some(identity) => listener.with_identity(identity),
            None => listener,
        };
        let hello = hello(launch, data, &listener)?;
        let coordinator = launch.coordinator.to_string();
        let (membership, place) = Membership::join(&coordinator, hello, held, FIRST_PATIENCE)
            .map_err(|error| outside(with_advice(error, launch), || drained(launch, stop, held.step)))?;
        let membership = Arc::new(membership);
        let abort = Arc::new(Mutex::new(Abort::new()));
        let (awaits_feed, newcomers) = (Arc::new(AtomicBool::new(false)), Newcomers::default());
        membership.on_event({
            let (abort, ending) = (Arc::clone(&abort), launch.ending.clone());
            let (awaits_feed, newcomers) = (Arc::clone(&awaits_feed), Arc::clone(&newcomers));
            move |event| match event {
                // Nobody begins to hand anything over any more.
                MembershipEvent::Seal { planned: true } if awaits_feed.load(Ordering::SeqCst) => end(&abort, CHANGES),
                MembershipEvent::Seal { planned: true } => info!("the group is about to change"),
                MembershipEvent::Feed(follower) => {
                    newcomers.lock().unwrap_or_else(PoisonError::into_inner).push_back(follower.clone());
                }
                MembershipEvent::Seal { planned: false } => end(&abort, CHANGES),
                MembershipEvent::Abort { reason } => end(&abort, reason),
                MembershipEvent::Released => end(&abort, "this worker is needed no more"),
                MembershipEvent::Drain { reason } => info!(reason, "asked to drain"),
                MembershipEvent::CoordinatorLost => warn!("coordinator out of reach; the work goes on"),
                MembershipEvent::CoordinatorFound => info!("coordinator found again"),
                MembershipEvent::Stuck { reason } => warn!(reason, "left the group, which goes on without this worker"),
                MembershipEvent::Hung { reason } => end_hung_process(&ending, reason),
            }
        });
        stop.steps_begin({
            let (membership, grace_seconds) = (Arc::downgrade(&membership), launch.grace_seconds);
            move || {
                if let Some(membership) = membership.upgrade() {
                    membership.leave(&format!("asked to stop within {grace_seconds} s"), until_alone(grace_seconds));
                }
            }
        });
        let listener = Arc::new(listener);
        let member = Self { launch, metrics, membership, stop, ready, listener, abort, awaits_feed, newcomers };
        member.take(&place);
        Ok((member, place))
    }

    /// Does the work of this process. When it cannot succeed the others learn why.
    pub(crate) fn work(&self, work: impl FnOnce() -> Result<Ending, Failure>) -> Result<Ending, Failure> {
        let ended = work();
        // Others must not wait for a worker that will never take part.
        let told = match &ended {
            Err(Failure::Fatal(message)) => self.membership.fatal(message, FAREWELL_PATIENCE),
            Err(Failure::Diverged(message)) => self.membership.diverged(message, FAREWELL_PATIENCE),
            Err(Failure::Retry(_) | Failure::Unfit(_)) => {
                self.membership.hang_up();
                Ok(())
            }
            Ok(_) | Err(Failure::Broken(_) | Failure::Drained { .. }) => Ok(()),
        };
        if let Err(error) = told {
            warn!(%error, "the group does not know why this worker ends");
        }
        ended
    }

    /// Binds the members of a generation to each other.
    pub(crate) fn form(&self, group: &Assignment) -> Result<Ranks, Failure> {
        let abort = self.fresh_abort(|sealing| sealing == Some(false));
        let Communication { backend, sockets_per_peer, .. } = self.launch.task.communication();
        let sockets = Sockets::new(usize::from(*sockets_per_peer))
            .ok_or_else(|| Failure::fatal(format!("spec.communication.socketsPerPeer: {sockets_per_peer}: 1 to 8")))?;
        let limits = Limits {
            threads: threads(&self.launch.task),
            shares_memory: *backend == CommunicationBackend::Auto,
            sockets,
            ..LIMITS
        };
        let seat = self.seat(group.generation, group.rank);
        Ranks::form(&self.listener, seat, &group.addresses, limits, &abort).map_err(Failure::lost)
    }

    /// Binds this worker to the members of a group that it follows, as the rank after theirs.
    pub(crate) fn follow(&self, lead: &FollowedGroup) -> Result<Ranks, Failure> {
        self.awaits_feed.store(true, Ordering::SeqCst);
        let abort = self.fresh_abort(|sealing| sealing.is_some());
        let seat = self.seat(lead.generation, lead.addresses.len() as u32);
        let peers: Vec<SocketAddr> = lead.addresses.iter().copied().chain([self.listener.address()]).collect();
        let star = Ranks::form_star(&self.listener, seat, &peers, FEED_LIMITS, &abort);
        self.awaits_feed.store(false, Ordering::SeqCst);
        star.map_err(Failure::lost)
    }

    /// Binds a member of a generation to a newcomer, the last of `peers`, on whatever thread.
    pub(crate) fn form_star(
        &self,
        generation: u64,
        rank: u32,
        peers: Vec<SocketAddr>,
        abort: Abort,
    ) -> impl FnOnce() -> Result<Ranks, Failure> + Send + 'static {
        let (listener, seat) = (Arc::clone(&self.listener), self.seat(generation, rank));
        move || Ranks::form_star(&listener, seat, &peers, FEED_LIMITS, &abort).map_err(Failure::lost)
    }

    fn seat(&self, generation: u64, rank: u32) -> RankId {
        RankId { job: job_id(&self.launch.job.uid), generation, rank: rank as usize }
    }

    /// Ends what is formed next, which may have been asked for before there was anything to end.
    fn fresh_abort(&self, is_over: impl FnOnce(Option<bool>) -> bool) -> Abort {
        let abort = Abort::new();
        self.abort.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&abort);
        if is_over(self.membership.sealing()) || self.membership.is_over() {
            abort.abort(CHANGES);
        }
        abort
    }

    /// What is to be told of a group that ended so; nothing by whoever was asked to stand, which had its collectives aborted.
    ///
    /// # Errors
    /// The failure itself where it is this process's own.
    pub(crate) fn broken_by(&self, failure: Failure) -> Result<Option<Break>, Failure> {
        let broken = Some(failure.into_break()?).filter(|_| self.membership.sealing().is_none());
        if let Some(Break { reason, .. }) = &broken {
            warn!(reason, "the group broke");
        }
        Ok(broken)
    }

    /// Stands still, holding `held`, until this worker is to do something else. `broken` tells what failed, if anything.
    /// A member may hold what nobody else does, and waits for a coordinator however long there is none.
    pub(crate) fn regroup(&self, held: HeldState, broken: Option<Break>) -> Result<Admission, Failure> {
        let patience = if self.membership.has_belonged() { Duration::MAX } else { COORDINATOR_PATIENCE };
        let place = self
            .membership
            .regroup(Some(held), broken, patience)
            .map_err(|error| outside(error, || drained(self.launch, self.stop, held.step)))?;
        self.take(&place);
        Ok(place)
    }

    fn take(&self, place: &Admission) {
        let Admission::Member(group) = place else { return };
        let Assignment { generation, rank, world, base, .. } = group;
        info!(generation, rank, world, base_step = base.step, "group formed");
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Why all are to stop after a step, as far as this worker knows.
    pub(crate) fn halt(&self) -> Option<Halt> {
        if self.membership.draining().is_some() || self.membership.is_stranded() {
            Some(Halt::Drain)
        } else if self.membership.sealing() == Some(true) {
            Some(Halt::Change)
        } else {
            None
        }
    }

    /// Says that all stopped after `step`, as was asked. `None` when the group goes on after all.
    pub(crate) fn drained(&self, step: u64) -> Option<Failure> {
        match self.membership.drained(step, FAREWELL_PATIENCE) {
            Ok(FinalReply::Changed) => return None,
            Ok(FinalReply::Recorded) => {}
            Err(FinalReportError::Aborted { reason }) => {
                return Some(Failure::retry(format!("stopped after step {step}, which is saved: {reason}")));
            }
            Err(error) => warn!(%error, "the coordinator does not know that this worker drained"),
        }
        Some(drained(self.launch, self.stop, step))
    }

    /// Says that the last step is done; all members must end with the same digest. `None` when somebody was lost before that.
    pub(crate) fn finished(&self, step: u64, digest: Digest, ending: Ending) -> Result<Option<Ending>, Failure> {
        // The coordinator takes the first word that says something, and any member may be the one that stored the model.
        let says_something = ending != Ending::default();
        let payload = if says_something { serde_json::to_vec(&ending).map_err(Failure::fatal)? } else { Vec::new() };
        match self.membership.finished(step, digest, payload, COORDINATOR_PATIENCE).map_err(Failure::retry)? {
            FinalReply::Recorded => Ok(Some(ending)),
            FinalReply::Changed => Ok(None),
        }
    }
}

/// In a cluster what is in the way is most often something that can be set.
fn with_advice(error: JoinError, launch: &Launch) -> JoinError {
    match (error, &launch.store) {
        (JoinError::Unreachable { coordinator, waited, cause, obstacle }, RecordStore::Kubernetes) => {
            let cause = format!("{cause}; {}", advice(obstacle, launch.coordinator.port));
            JoinError::Unreachable { coordinator, waited, cause, obstacle }
        }
        (error, _) => error,
    }
}

fn advice(obstacle: Obstacle, port: u16) -> String {
    match obstacle {
        Obstacle::Name => "see that the coordinator's pod runs and that this pod reaches the cluster's DNS: with hostNetwork spec.template \
                           needs dnsPolicy: ClusterFirstWithHostNet, and a NetworkPolicy that denies egress one that allows port 53"
            .to_owned(),
        Obstacle::Refused => "see why the coordinator's pod does not listen: its log says".to_owned(),
        Obstacle::Silent => format!(
            "a NetworkPolicy, a firewall or a mesh drops it: allow TCP port {port} from the job's workers to its coordinator"
        ),
        Obstacle::Other => "see the log of the coordinator's pod".to_owned(),
    }
}

/// What it means for this process to be in no group any more.
fn outside(error: JoinError, drained: impl FnOnce() -> Failure) -> Failure {
    match error {
        JoinError::Refused { reason, may_retry: false } => Failure::fatal(reason),
        // The others train on meanwhile, for as many times as spec.failurePolicy.backoffLimit says.
        JoinError::Refused { reason, may_retry: true } => Failure::retry(reason),
        JoinError::Released => drained(),
        JoinError::Aborted { .. } | JoinError::Unreachable { .. } => Failure::retry(error),
    }
}

/// How long a member that has to go and stands looks for a coordinator that would form a group, which then saves what it holds in the rest
/// of its grace. Where none is made anew, as none is of a deleted job, more time would bring nothing.
fn until_alone(grace_seconds: u32) -> Duration {
    (Duration::from_secs(grace_seconds.into()) * 2 / 3).min(MAX_HAND_OVER)
}

/// This process goes after `step`.
fn drained(launch: &Launch, stop: &Stop, step: u64) -> Failure {
    let drain = stop.asked().map(|took| Drain { took, grace_seconds: launch.grace_seconds });
    Failure::Drained { step, drain }
}

/// A thread that hangs does not end by itself; another process takes this one's place.
fn end_hung_process(ending: &Path, reason: &str) {
    let failure = Failure::retry(reason);
    error!(exit = %failure.exit(), "{failure}");
    let (path, ending) = (ending.to_owned(), failure.ending());
    // It may be the storage of that file that hangs, and the system may have no thread left.
    if let Ok(writing) = thread::Builder::new().spawn(move || leave(&path, &ending)) {
        let begun = Instant::now();
        while !writing.is_finished() && begun.elapsed() < ENDING_PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
    }
    process::exit(failure.exit().code().into());
}

fn end(abort: &Mutex<Abort>, reason: &str) {
    abort.lock().unwrap_or_else(PoisonError::into_inner).abort(reason);
}

fn hello(launch: &Launch, data: Digest, listener: &Listener) -> Result<Hello, Failure> {
    let task = serde_json::to_string(&launch.task).map_err(Failure::fatal)?;
    Ok(Hello {
        job: launch.job.uid.clone(),
        attempt: launch.attempt,
        member: MemberId { pod: launch.member.clone(), incarnation: Incarnation::random() },
        address: listener.address(),
        workload: Digest::of(format!("{} {task}", env!("CARGO_PKG_VERSION")).as_bytes()),
        data,
        committed_generation: None,
        sealed: true,
    })
}

/// Each device of a worker computes on a thread of its own.
fn threads(task: &Task) -> NonZeroUsize {
    match task {
        Task::Train(workload) => NonZeroUsize::new(workload.devices_per_worker as usize).unwrap_or(NonZeroUsize::MIN),
        Task::Benchmark { .. } => NonZeroUsize::MIN,
    }
}

/// Frames carry 16 bytes of it.
fn job_id(uid: &str) -> JobId {
    let digest = Digest::of(uid.as_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&digest.as_bytes()[..16]);
    JobId(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_of_a_coordinator_comes_with_what_to_set() {
        for (obstacle, words) in [
            (Obstacle::Name, ["ClusterFirstWithHostNet", "port 53"]),
            (Obstacle::Refused, ["does not listen", "its log"]),
            (Obstacle::Silent, ["NetworkPolicy", "TCP port 7070"]),
        ] {
            let told = advice(obstacle, 7070);
            assert!(words.iter().all(|word| told.contains(word)), "{obstacle:?}: {told}");
        }
    }
}
