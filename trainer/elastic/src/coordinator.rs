//! The decisions of the coordinator: it forms the group, changes it and ends it. Pure: an event and
//! the time go in, commands come out.
//!
//! ```text
//!              enough members      all reported, swapped
//! Gathering ───────────────► Preparing ─────────────► Running ─► Ended
//!     ▲   (swap: allocated)    │    ▲                   │
//!     └────────────────────────┘    └───────────────────┘ a member was lost, joins
//!           too few are left                            or leaves (swap: allocated)
//! ```
//!
//! Steps need only the members. They continue while this process or its store is away, and changes
//! of the group wait.

mod base_state;
mod catchup;
mod event;
mod partition;
mod peer;
mod peers;
mod reasons;
mod record_swaps;
mod rendezvous;
mod running;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{Active, CheckpointMark, Digest, Incarnation, MemberId, Message, RankedMember, Record, rank_order};
pub use event::{Change, Command, ConnectionId, Event, Outcome};
use partition::Partition;
use peer::Peer;
use reasons::Reasons;
use record_swaps::Purpose;
use rendezvous::Preparing;
use running::Running;
pub use status::{Stage, Status};

/// A member that is silent for this long is shown as suspected.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// A member that is silent for this long is lost. Its heartbeats come ten times a second from a
/// thread of their own. A member that was only slow seals and joins again.
pub const DEAD_AFTER: Duration = Duration::from_millis(2500);
/// After a restart, the coordinator waits this long for the members of the recorded generation. It
/// also waits this long for processes that may hold the last state, before it accepts an older one.
pub const RETURN_LIMIT: Duration = Duration::from_secs(30);
/// The first group waits this long for all its members if fewer would be enough.
pub const START_LIMIT: Duration = Duration::from_secs(30);
/// A coordinator that hears none of its workers for this long ends. Another one may reach them
/// better, and the members train on meanwhile.
pub const DESERTED_AFTER: Duration = Duration::from_secs(60);
/// Planned changes are collected for this long, so that several become one.
pub const JOIN_WINDOW: Duration = Duration::from_millis(500);
/// Newcomers that have caught up wait this long for others that still catch up.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// Pods that leave together are asked to within this time. If too few members would stay, the
/// training goes on this long, in case all have to leave.
pub const LEAVE_WINDOW: Duration = Duration::from_secs(2);
/// Members look for a coordinator more than once in this time, so every living one has found it by
/// then.
const RETURN_SOON: Duration = Duration::from_secs(3);
/// The largest number of plans that one group may use, one after another.
const MAX_PLANS: usize = 16;
/// The time between two looks at the clock.
pub const TICK: Duration = Duration::from_millis(250);

/// The cause for the loss of a member whose pod runs a new process.
const REPLACED: &str = "a new process took its place";

/// The settings of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The uid of the job.
    pub job: String,
    /// The number of the attempt: it grows when all processes of the job start again.
    pub attempt: u32,
    /// The name of this coordinator in the record.
    pub name: String,
    /// The pods that may belong to the group.
    pub members: Vec<String>,
    /// The number of members that the first group waits for.
    pub replicas: usize,
    /// The smallest size of a group. With fewer members the training pauses.
    pub least: usize,
    /// The number of virtual shards of a global step.
    pub shards: u32,
    /// A coordinator that is asked to stop waits this long for its group to drain.
    pub drain_limit: Duration,
}

/// Forms the group, changes it and watches it. The module shows its phases.
#[derive(Clone, Debug)]
pub struct Coordinator {
    config: Config,
    /// The record as it is stored.
    record: Record,
    /// The swap in progress: its purpose, and the record after it.
    swapping: Option<(Purpose, Record)>,
    phase: Phase,
    /// The connected processes by pod.
    peers: BTreeMap<String, Peer>,
    pods: BTreeMap<ConnectionId, String>,
    /// The pods that were connected before and are not now, each with the time since when.
    absent_since: BTreeMap<String, Duration>,
    /// The previous process of each pod that was replaced by a new one.
    replaced: BTreeMap<String, Incarnation>,
    /// The causes of the next change of the group.
    reasons: Reasons,
    /// The members of the last announced membership.
    announced: BTreeSet<MemberId>,
    /// The pods that have to leave, each with the cause.
    leaving: BTreeMap<String, String>,
    /// The pods that left although too few stayed for the next group, each with the cause.
    left: Vec<(String, String)>,
    /// The cause of a drain of all members: none of them could stay.
    draining: Option<String>,
    /// True once a member has done the last step. Only the result is left to announce.
    finishing: bool,
    /// The error of a store that failed for good. All members save their state, and the group ends.
    record_failure: Option<String>,
    /// The newest checkpoint that is not in the record yet.
    mark: Option<CheckpointMark>,
    /// The processes that were stopped so that a new process of their pod reads the storage again.
    sent_to_reread: BTreeMap<String, Incarnation>,
    partition: Partition,
    /// The plans of the newest group by their first step, as far as members reported them.
    plans: BTreeMap<u64, Digest>,
    store_again: Duration,
    /// The number of generations in a row that broke without a step.
    generations_without_step: u32,
    started: Duration,
    handled: Duration,
    stop_by: Option<Duration>,
    commands: Vec<Command>,
}

#[derive(Clone, Debug)]
enum Phase {
    Gathering(Gathering),
    Preparing(Preparing),
    Running(Box<Running>),
    Ended,
}

/// The condition under which a group can be formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathering {
    /// This coordinator has just started or heard no process for a while. It waits for all members,
    /// for a limited time.
    Start,
    /// The group broke and too few members were left.
    Paused,
}

impl Coordinator {
    /// Returns a coordinator that found `record` in the store.
    ///
    /// # Panics
    /// Panics if there are no members, or if `least` and `replicas` are not possible sizes of the
    /// group.
    #[must_use]
    pub fn new(mut config: Config, record: Option<Record>, now: Duration) -> Self {
        config.members.sort_by(|a, b| rank_order(a, b));
        config.members.dedup();
        let Config { members, replicas, least, .. } = &config;
        let possible = 1 <= *least && least <= replicas && *replicas <= members.len();
        assert!(possible, "a group of {replicas} of {} members, at least {least}", members.len());
        let record = record.unwrap_or_else(Record::empty);
        // A membership of an earlier attempt, or one that stopped as a whole, lost no member.
        let awaited = record.active.iter().filter(|active| active.attempt == config.attempt && record.rested.is_none());
        let announced = awaited.flat_map(|active| &active.members).map(RankedMember::id).collect();
        Self {
            record,
            swapping: None,
            phase: Phase::Gathering(Gathering::Start),
            peers: BTreeMap::new(),
            pods: BTreeMap::new(),
            absent_since: BTreeMap::new(),
            replaced: BTreeMap::new(),
            reasons: Reasons::default(),
            announced,
            leaving: BTreeMap::new(),
            left: Vec::new(),
            draining: None,
            finishing: false,
            record_failure: None,
            mark: None,
            sent_to_reread: BTreeMap::new(),
            partition: Partition::default(),
            plans: BTreeMap::new(),
            store_again: Duration::ZERO,
            generations_without_step: 0,
            started: now,
            handled: now,
            stop_by: None,
            commands: Vec::new(),
            config,
        }
    }

    /// Handles `event` and returns the commands to execute. `now` counts from any fixed moment and
    /// never goes back; it comes from an [`AwakeClock`](crate::AwakeClock).
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Command> {
        if matches!(self.phase, Phase::Ended) {
            return Vec::new();
        }
        self.handled = now;
        if let Event::Received(connection, Message::Heartbeat) = event {
            return self.heartbeat(connection, now);
        }
        match event {
            Event::Received(connection, Message::Hello(hello)) => self.hello(connection, hello, now),
            Event::Received(connection, message) => self.received(connection, message, now),
            Event::Garbled(connection, error) => self.garbled(connection, &error, now),
            Event::Closed(connection, reason) => {
                if let Some(pod) = self.pods.get(&connection).cloned() {
                    self.gone(&pod, &reason, now);
                }
            }
            Event::Swapped => self.swapped(now),
            Event::Conflict => self.end(Outcome::Superseded),
            Event::StoreAway => self.store_is_away(now),
            Event::StoreFailed(message) => self.store_failed(message),
            Event::Stop => self.stop_by = self.stop_by.or(Some(now + self.config.drain_limit)),
            Event::Tick => {}
        }
        self.advance(now);
        if !matches!(self.phase, Phase::Ended) {
            self.commands.push(Command::WakeAt(now + TICK));
        }
        std::mem::take(&mut self.commands)
    }

    /// Takes every decision that follows from the state and the time alone.
    fn advance(&mut self, now: Duration) {
        self.drop_the_silent(now);
        if self.is_deserted(now) {
            return self.end(Outcome::Deserted);
        }
        self.readmit_if_needed();
        if self.swapping.is_none() {
            match &self.phase {
                Phase::Gathering(_) => self.gather(now),
                Phase::Preparing(_) => self.agree(now),
                Phase::Running(_) => self.watch(now),
                Phase::Ended => {}
            }
        }
        let waits_for_no_member = self.peers.is_empty() || matches!(self.phase, Phase::Gathering(Gathering::Start));
        if self.stop_by.is_some_and(|deadline| waits_for_no_member || now >= deadline) {
            self.end(Outcome::Stopped);
        }
    }

    /// Answers a heartbeat at once. Heartbeats are frequent, so decisions that depend on the time
    /// wait for the next tick.
    fn heartbeat(&mut self, connection: ConnectionId, now: Duration) -> Vec<Command> {
        let peer = self.pods.get(&connection).and_then(|pod| self.peers.get_mut(pod));
        vec![match peer {
            Some(peer) => {
                peer.heard = now;
                Command::Send(connection, Message::Heartbeat)
            }
            None => Command::Close(connection),
        }]
    }

    fn received(&mut self, connection: ConnectionId, message: Message, now: Duration) {
        let Some(peer) = self.pods.get(&connection).and_then(|pod| self.peers.get_mut(pod)) else {
            self.commands.push(Command::Close(connection));
            return;
        };
        peer.heard = now;
        let member = peer.hello.member.clone();
        match message {
            Message::SealReport(report) => self.reported(&member, connection, report, now),
            Message::Broken { generation, broken } => self.broken(&member, generation, broken, now),
            Message::CaughtUp { generation, unreached } => self.caught_up(&member, generation, unreached, now),
            Message::Agreed { generation, summing } => self.agreed(member, generation, summing),
            Message::Fatal { message } => {
                self.acknowledge(&member);
                self.fatal(member, message);
            }
            Message::Diverged { message } => {
                self.acknowledge(&member);
                self.diverged(member, message);
            }
            Message::Progress { step, payload } => self.progressed(member, step, payload),
            Message::Checkpoint(mark) => self.checkpointed(&member, mark),
            Message::Leave { reason } => self.wants_to_leave(&member, reason, now),
            Message::Stuck { reason } => {
                self.commands.push(Command::Close(connection));
                self.gone(&member.pod, &reason, now);
            }
            Message::Finished { generation, step, digest, payload } => {
                self.final_result(&member, generation, running::FinalResult::Finished { step, digest, payload });
            }
            Message::Drained { generation, step } => {
                self.final_result(&member, generation, running::FinalResult::Drained { step });
            }
            // The coordinator itself sends these, or they were handled before.
            Message::Heartbeat
            | Message::Hello(_)
            | Message::Refuse { .. }
            | Message::Prepare { .. }
            | Message::Commit { .. }
            | Message::Seal { .. }
            | Message::Follow(_)
            | Message::Feed(_)
            | Message::Drain { .. }
            | Message::Abort { .. }
            | Message::Release => {}
        }
    }

    fn fatal(&mut self, member: MemberId, message: String) {
        self.abort_all(&format!("{} failed: {message}", member.pod));
        self.end(Outcome::Fatal { member, message });
    }

    fn diverged(&mut self, member: MemberId, message: String) {
        self.abort_all(&message);
        self.end(Outcome::Diverged { member, message });
    }

    /// Releases a member whose final report this was.
    fn acknowledge(&mut self, member: &MemberId) {
        if let Some(peer) = self.peers.remove(&member.pod) {
            self.pods.remove(&peer.connection);
            self.send(peer.connection, Message::Release);
            self.commands.push(Command::Close(peer.connection));
        }
    }

    fn send(&mut self, connection: ConnectionId, message: Message) {
        self.commands.push(Command::Send(connection, message));
    }

    fn send_to_all(&mut self, message: &Message) {
        let connections: Vec<_> = self.pods.keys().copied().collect();
        for connection in connections {
            self.send(connection, message.clone());
        }
    }

    fn abort_all(&mut self, reason: &str) {
        self.send_to_all(&Message::Abort { reason: reason.to_owned() });
    }

    fn end(&mut self, outcome: Outcome) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        self.phase = Phase::Ended;
        self.commands.extend(self.pods.keys().map(|connection| Command::Close(*connection)));
        self.commands.push(Command::End(outcome));
    }

    /// Returns the newest recorded membership.
    fn active(&self) -> Option<&Active> {
        self.record.active.as_ref()
    }

    /// Returns the connected pods that the next group may keep.
    fn stayers(&self) -> impl Iterator<Item = &str> {
        let all = self.draining.is_some();
        let stays = move |pod: &str| (all || !self.leaving.contains_key(pod)) && !self.is_excluded(pod);
        self.peers.keys().map(String::as_str).filter(move |pod| stays(pod))
    }

    /// Returns true if enough processes are connected to form a group.
    fn suffice(&self) -> bool {
        self.stayers().count() >= self.least()
    }

    /// Returns true if enough of these pods are connected to form a group.
    fn are_enough(&self, pods: &BTreeSet<String>) -> bool {
        self.stayers().filter(|pod| pods.contains(*pod)).count() >= self.least()
    }

    /// Returns the smallest size of the next group. A drain or the announcement of the result needs
    /// only one member.
    fn least(&self) -> usize {
        if self.draining.is_some() || self.finishing { 1 } else { self.config.least }
    }

    /// Notes a new checkpoint of a member. Other processes may have saved steps that were given up
    /// since.
    fn checkpointed(&mut self, member: &MemberId, mark: CheckpointMark) {
        if self.active().is_none_or(|active| active.member(member).is_none()) {
            return;
        }
        let known = self.record.last_durable_checkpoint.map(|known| known.step);
        let waiting = self.mark.map(|waiting| waiting.step);
        if known.max(waiting) < Some(mark.step) {
            self.mark = Some(mark);
        }
    }
}
