//! A worker's session with the coordinator: it joins, connects with the other members of each
//! generation, and leaves with a last word.
//!
//! Facts reach the training loop in one way: it asks this session ([`Session::halt`],
//! [`Session::is_sealing`], [`Session::must_leave`]). Events from the coordinator only interrupt
//! what blocks. An operation that was interrupted fails, and its error carries no fact.

use std::{
    collections::VecDeque,
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
    ActivityMonitor, Admission, Assignment, Break, Digest, FinalReply, FinalReportError, FollowedGroup, Follower,
    HeldState, Hello, Incarnation, JoinError, MemberId, Membership, MembershipEvent, Obstacle,
};
use lockstep_launch::{Communication, CommunicationBackend, Ending, Launch, RecordStore, Task};
use tracing::{error, info, warn};

use crate::{
    failure::{Failure, leave, with_causes},
    grace::Drain,
    membership::credentials::identity,
    membership::last_word::{self, FAREWELL_PATIENCE},
    membership::networks::data_address,
    progress::metrics::Metrics,
    serve::Ready,
    signals::Stop,
};

/// The limits of a generation's group. All its members are there when it is formed. At the end of a
/// run they wait in a sum for the slowest part of a large state on slow storage. A lost member
/// shows by its closed connections, or to the coordinator.
pub(crate) const LIMITS: Limits = Limits {
    forming: Duration::from_secs(15),
    silence: Duration::from_secs(600),
    waiting: Waiting::Adaptive,
    threads: NonZeroUsize::MIN,
    shares_memory: true,
    sockets: Sockets::ONE,
};
/// A rank may be busy for any time, but its host must acknowledge bytes within this time.
pub(crate) const UNACKNOWLEDGED: Duration = Duration::from_secs(25);
/// The limits of a catch-up. Members may evaluate or save before they send anything, and a change
/// of the group ends the catch-up anyway. Nobody spins: a newcomer has time.
const CATCHUP_LIMITS: Limits =
    Limits { forming: LIMITS.silence, waiting: Waiting::Block, shares_memory: false, ..LIMITS };
const CHANGES: &str = "a new generation is being formed";
/// How long a new worker looks for a coordinator before it gives up and says what is in the way. In
/// a cluster another worker then tries.
const FIRST_PATIENCE: Duration = Duration::from_secs(120);
/// How long a worker does without a coordinator while it joins again, and when the work is done.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(300);
/// If another coordinator comes, it is there within this time.
const MAX_HAND_OVER: Duration = Duration::from_secs(30);
/// How long a hung process may take to write its ending.
const ENDING_PATIENCE: Duration = Duration::from_secs(2);

/// The newcomers that the coordinator announced to this member, in the order of the announcements.
pub(crate) type Newcomers = Arc<Mutex<VecDeque<Follower>>>;

/// The session of a worker that has joined.
pub(crate) struct Session<'a> {
    pub launch: &'a Launch,
    pub metrics: &'a Arc<Metrics>,
    pub membership: Arc<Membership>,
    stop: &'a Stop,
    ready: &'a Ready,
    listener: Arc<Listener>,
    interrupt: Interrupt,
    pub newcomers: Newcomers,
}

/// The reason for which all ranks stop after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Halt {
    /// The group changes as planned, and goes on.
    Change,
    /// No member can stay: the group saves its state.
    Drain,
}

/// Interrupts the collectives of the present generation, or the catch-up with a group.
#[derive(Clone)]
struct Interrupt {
    abort: Arc<Mutex<Abort>>,
    /// True while this newcomer waits for a first parcel.
    awaits_catchup: Arc<AtomicBool>,
}

impl<'a> Session<'a> {
    /// Joins the group. `data` is the digest of the samples. `held` is the state with which this
    /// worker could begin.
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
        let (membership, admission) = Membership::join(&coordinator, hello, held, FIRST_PATIENCE)
            .map_err(|error| outside(with_advice(error, launch), || drained(launch, stop, held.step)))?;
        let membership = Arc::new(membership);
        last_word::go_through(&membership);
        let interrupt = Interrupt { abort: Arc::new(Mutex::new(Abort::new())), awaits_catchup: Arc::default() };
        let newcomers = Newcomers::default();
        membership.on_event({
            let (interrupt, newcomers, ending) = (interrupt.clone(), Arc::clone(&newcomers), launch.ending.clone());
            move |event| heed(event, &interrupt, &newcomers, &ending)
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
        let session = Self { launch, metrics, membership, stop, ready, listener, interrupt, newcomers };
        session.note(&admission);
        Ok((session, admission))
    }

    /// Does the work of this process. If the work cannot succeed, the other workers learn why.
    pub(crate) fn carry_out(&self, work: impl FnOnce() -> Result<Ending, Failure>) -> Result<Ending, Failure> {
        let ended = work();
        // The others must not wait for a worker that will never take part.
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

    /// Returns the monitor that the watchdog reads.
    pub(crate) fn work(&self) -> &Arc<ActivityMonitor> {
        self.membership.work()
    }

    /// Connects the members of a generation with each other.
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

    /// Connects this newcomer with the members of a group, as the rank after theirs.
    pub(crate) fn follow(&self, lead: &FollowedGroup) -> Result<Ranks, Failure> {
        self.interrupt.awaits_catchup.store(true, Ordering::SeqCst);
        let abort = self.fresh_abort(|sealing| sealing.is_some());
        let seat = self.seat(lead.generation, lead.addresses.len() as u32);
        let peers: Vec<SocketAddr> = lead.addresses.iter().copied().chain([self.listener.address()]).collect();
        let star = Ranks::form_star(&self.listener, seat, &peers, CATCHUP_LIMITS, &abort);
        self.interrupt.awaits_catchup.store(false, Ordering::SeqCst);
        star.map_err(Failure::lost)
    }

    /// Returns a function that connects a member of a generation with a newcomer, the last of
    /// `peers`. Any thread may call it.
    pub(crate) fn form_star(
        &self,
        generation: u64,
        rank: u32,
        peers: Vec<SocketAddr>,
        abort: Abort,
    ) -> impl FnOnce() -> Result<Ranks, Failure> + Send + 'static {
        let (listener, seat) = (Arc::clone(&self.listener), self.seat(generation, rank));
        move || Ranks::form_star(&listener, seat, &peers, CATCHUP_LIMITS, &abort).map_err(Failure::lost)
    }

    fn seat(&self, generation: u64, rank: u32) -> RankId {
        RankId { job: job_id(&self.launch.job.uid), generation, rank: rank as usize }
    }

    /// Returns the abort of the connections that are formed next. An interruption may have come
    /// before there was anything to interrupt.
    fn fresh_abort(&self, is_over: impl FnOnce(Option<bool>) -> bool) -> Abort {
        let abort = Abort::new();
        self.interrupt.abort.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&abort);
        if is_over(self.membership.sealing()) || self.membership.is_over() {
            abort.abort(CHANGES);
        }
        abort
    }

    /// Returns what the coordinator must learn about a group that ended with `failure`. A worker
    /// that was asked to seal has nothing to report: its collectives were aborted.
    ///
    /// # Errors
    /// `failure` itself if it is this process's own.
    pub(crate) fn broken_by(&self, failure: Failure) -> Result<Option<Break>, Failure> {
        let broken = Some(failure.into_break()?).filter(|_| !self.is_sealing());
        if let Some(Break { reason, origin, .. }) = &broken {
            warn!(reason, "the group broke");
            self.metrics.broke(origin.map(|origin| origin.fault));
        }
        Ok(broken)
    }

    /// Seals this generation, holding `held`, and waits for the next admission. `broken` tells what
    /// failed, if anything. A member may hold what no other worker holds, so it waits for a
    /// coordinator without a limit.
    pub(crate) fn regroup(&self, held: HeldState, broken: Option<Break>) -> Result<Admission, Failure> {
        let patience = if self.membership.has_belonged() { Duration::MAX } else { COORDINATOR_PATIENCE };
        let admission = self
            .membership
            .regroup(Some(held), broken, patience)
            .map_err(|error| outside(error, || drained(self.launch, self.stop, held.step)))?;
        self.note(&admission);
        Ok(admission)
    }

    fn note(&self, admission: &Admission) {
        let Admission::Member(group) = admission else { return };
        let Assignment { generation, rank, world, base, .. } = group;
        info!(generation, rank, world, base_step = base.step, "group formed");
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Returns the reason for which this worker wants all ranks to stop after a step.
    pub(crate) fn halt(&self) -> Option<Halt> {
        if self.membership.draining().is_some() || self.membership.is_stranded() {
            Some(Halt::Drain)
        } else if self.membership.sealing() == Some(true) {
            Some(Halt::Change)
        } else {
            None
        }
    }

    /// Returns true while the coordinator asks this worker to seal its generation.
    pub(crate) fn is_sealing(&self) -> bool {
        self.membership.sealing().is_some()
    }

    /// Returns true once this newcomer must not wait for a group any more.
    pub(crate) fn must_leave(&self) -> bool {
        self.membership.is_over() || self.membership.is_stranded()
    }

    /// Reports that all members stopped after `step`, as asked. `None` if the group goes on after
    /// all.
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

    /// Reports that the last step is done. All members must end with the same digest. `None` if a
    /// member was lost before that.
    pub(crate) fn finished(&self, step: u64, digest: Digest, ending: Ending) -> Result<Option<Ending>, Failure> {
        // The coordinator takes the first payload that is not empty: any member may have stored the
        // model.
        let says_something = ending != Ending::default();
        let payload = if says_something { serde_json::to_vec(&ending).map_err(Failure::fatal)? } else { Vec::new() };
        match self.membership.finished(step, digest, payload, COORDINATOR_PATIENCE).map_err(Failure::retry)? {
            FinalReply::Recorded => Ok(Some(ending)),
            FinalReply::Changed => Ok(None),
        }
    }
}

impl Interrupt {
    fn now(&self, reason: &str) {
        self.abort.lock().unwrap_or_else(PoisonError::into_inner).abort(reason);
    }
}

/// Interrupts what blocks, keeps an announced newcomer, and logs. The loop reads facts from the
/// session.
fn heed(event: &MembershipEvent, interrupt: &Interrupt, newcomers: &Newcomers, ending: &Path) {
    match event {
        // No member begins to send to this newcomer any more.
        MembershipEvent::Seal { planned: true } if interrupt.awaits_catchup.load(Ordering::SeqCst) => {
            interrupt.now(CHANGES);
        }
        MembershipEvent::Seal { planned: true } => info!("the group is about to change"),
        MembershipEvent::Feed(newcomer) => {
            newcomers.lock().unwrap_or_else(PoisonError::into_inner).push_back(newcomer.clone());
        }
        MembershipEvent::Seal { planned: false } => interrupt.now(CHANGES),
        MembershipEvent::Abort { reason } => interrupt.now(reason),
        MembershipEvent::Released => interrupt.now("the group does not need this worker any more"),
        MembershipEvent::Drain { reason } => info!(reason, "asked to drain"),
        MembershipEvent::CoordinatorLost => warn!("coordinator out of reach; the work goes on"),
        MembershipEvent::CoordinatorFound => info!("coordinator found again"),
        MembershipEvent::Stuck { reason } => warn!(reason, "left the group, which goes on without this worker"),
        MembershipEvent::Hung { reason } => end_hung_process(ending, reason),
    }
}

/// Adds advice to an error: in a cluster the obstacle is mostly a setting.
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
        Obstacle::Name => "check that the coordinator's pod runs and that this pod reaches the cluster's DNS: with hostNetwork, \
                           spec.template needs dnsPolicy: ClusterFirstWithHostNet; a NetworkPolicy that denies egress must allow port 53"
            .to_owned(),
        Obstacle::Refused => "the coordinator's pod does not listen: its log says why".to_owned(),
        Obstacle::Silent => format!(
            "a NetworkPolicy, a firewall or a mesh drops it: allow TCP port {port} from the job's workers to its coordinator"
        ),
        Obstacle::Other => "see the log of the coordinator's pod".to_owned(),
    }
}

/// Returns the failure of a process that is in no group any more.
fn outside(error: JoinError, drained: impl FnOnce() -> Failure) -> Failure {
    match error {
        JoinError::Refused { reason, may_retry: false } => Failure::fatal(reason),
        // The others train on. spec.failurePolicy.backoffLimit limits how often this process comes
        // back.
        JoinError::Refused { reason, may_retry: true } => Failure::retry(reason),
        JoinError::Released => drained(),
        JoinError::Aborted { .. } | JoinError::Unreachable { .. } => Failure::retry(error),
    }
}

/// Returns how long a sealed member that has to leave looks for a coordinator. A coordinator would
/// form a group, which saves its state in the rest of the grace. A deleted job gets no new
/// coordinator, so more time would not help.
fn until_alone(grace_seconds: u32) -> Duration {
    (Duration::from_secs(grace_seconds.into()) * 2 / 3).min(MAX_HAND_OVER)
}

/// Returns the failure of a process that leaves after `step`.
fn drained(launch: &Launch, stop: &Stop, step: u64) -> Failure {
    let drain = stop.asked().map(|took| Drain { took, grace_seconds: launch.grace_seconds });
    Failure::Drained { step, drain }
}

/// Ends this process: a hung thread does not end by itself, and another process takes its place.
fn end_hung_process(ending: &Path, reason: &str) {
    let failure = Failure::retry(reason);
    error!(exit = %failure.exit(), "{failure}");
    let (path, ending) = (ending.to_owned(), failure.ending());
    // The storage of that file may be what hangs, and the system may have no thread left.
    if let Ok(writing) = thread::Builder::new().spawn(move || leave(&path, &ending)) {
        let begun = Instant::now();
        while !writing.is_finished() && begun.elapsed() < ENDING_PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
    }
    process::exit(failure.exit().code().into());
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

/// Returns the number of threads that compute: one for each device.
fn threads(task: &Task) -> NonZeroUsize {
    match task {
        Task::Train(workload) => NonZeroUsize::new(workload.devices_per_worker as usize).unwrap_or(NonZeroUsize::MIN),
        Task::Benchmark { .. } => NonZeroUsize::MIN,
    }
}

/// Returns the job's identity in frames, which carry 16 bytes of it.
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
    fn an_unreachable_coordinator_comes_with_advice() {
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
