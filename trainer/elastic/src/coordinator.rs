//! The coordinator's decisions: who forms the group, when it changes, and when it is over. Pure: events and the time in, commands out.
//!
//! ```text
//!              enough members      all reported, swapped
//! Gathering ───────────────► Preparing ─────────────► Running ─► Ended
//!     ▲   (swap: allocated)    │    ▲                   │
//!     └────────────────────────┘    └───────────────────┘ a member was lost, joins or leaves (swap: allocated)
//!           too few are left
//! ```
//!
//! Steps need the members only: while this process or its store is away they go on, and changes wait.

mod aside;
mod base;
mod following;
mod forming;
mod peers;
mod reasons;
mod running;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    Active, CheckpointMark, Digest, Incarnation, MemberId, Message, Record, Seat, message::FrameError, rank_order,
};
use aside::Aside;
use forming::{Gathering, Preparing};
use peers::Peer;
use reasons::Reasons;
use running::Running;
pub use status::{Stage, Status};

/// A member that is silent this long is shown as suspected.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// A member that is silent this long is lost. Heartbeats come ten times a second from a thread of their own; one that was only slow
/// stands still and joins again.
pub const DEAD_AFTER: Duration = Duration::from_millis(2500);
/// Pause before a store that was away is asked again.
const STORE_PAUSE: Duration = Duration::from_secs(5);
/// How long members of the recorded generation may take to find a coordinator that was started again, and how long the last ones that
/// may hold its state are waited for before an older one is taken.
pub const RETURN_LIMIT: Duration = Duration::from_secs(30);
/// How long the first group waits for all its members when fewer would do.
pub const START_LIMIT: Duration = Duration::from_secs(30);
/// How long planned changes are gathered, so that several become one.
pub const JOIN_WINDOW: Duration = Duration::from_millis(500);
/// How long newcomers that could be let in wait for others that still take the state over.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// How many plans one group may sum by, one after another.
const MAX_PLANS: usize = 16;
/// Time between two looks at the clock.
pub const TICK: Duration = Duration::from_millis(250);

/// What a coordinator is told at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The job's uid.
    pub job: String,
    /// How often all processes of the job were started anew.
    pub attempt: u32,
    /// This coordinator's name in the record.
    pub name: String,
    /// The pods that may belong to the group.
    pub members: Vec<String>,
    /// How many of them the first group waits for.
    pub replicas: usize,
    /// How many a group needs: with fewer, training pauses.
    pub least: usize,
    /// Virtual shards of a global step.
    pub shards: u32,
    /// How long it waits for its group to drain when it is asked to stop.
    pub drain_limit: Duration,
}

/// A control connection, as the shell numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly all events are messages")]
pub enum Event {
    /// A message arrived.
    Received(Connection, Message),
    /// Something else arrived.
    Garbled(Connection, FrameError),
    /// The connection is gone, and why.
    Closed(Connection, String),
    /// The record that was asked for is stored.
    Swapped,
    /// Another coordinator changed the record.
    Conflict,
    /// The store was out of reach for long. It may have the record that was asked for, or get it yet.
    StoreAway,
    /// The store fails for good.
    StoreFailed(String),
    /// The process is asked to end.
    Stop,
    /// Time has passed.
    Tick,
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send a message.
    Send(Connection, Message),
    /// Close a connection after all was sent.
    Close(Connection),
    /// Replace the record by compare-and-swap and answer [`Event::Swapped`], [`Event::Conflict`], [`Event::StoreAway`] or
    /// [`Event::StoreFailed`]; one at a time.
    Swap(Record),
    /// Pass a member's progress on.
    Publish {
        /// Who reports.
        member: MemberId,
        /// Optimiser steps that are done.
        step: u64,
        /// The worker's report.
        payload: Vec<u8>,
    },
    /// Tell that the membership changed.
    Changed(Change),
    /// Come back with [`Event::Tick`] at this time unless something happens before; replaces the former time.
    WakeAt(Duration),
    /// The coordinator's work is over.
    End(Outcome),
}

/// How one generation followed another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new membership.
    pub active: Active,
    /// Pods that belong to it and did not belong to the one before.
    pub joined: Vec<String>,
    /// Pods that went as planned, and why.
    pub left: Vec<(String, String)>,
    /// Pods that were lost, and what was seen.
    pub lost: Vec<(String, String)>,
    /// What failed although nobody was lost.
    pub broken: Option<String>,
    /// From the moment when a loss was seen, or a planned change began, to the recorded membership.
    pub took: Duration,
}

/// How a group ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All members finished with the same state.
    Finished {
        /// Optimiser steps that are done.
        step: u64,
        /// Digest of the final state.
        digest: Digest,
        /// The last report of the lowest rank that gave one.
        payload: Vec<u8>,
    },
    /// All members stopped after a step, as was asked.
    Drained {
        /// Optimiser steps that are done.
        step: u64,
    },
    /// The job cannot succeed as it is described.
    Fatal {
        /// Who said so.
        member: MemberId,
        /// What it said.
        message: String,
    },
    /// What the members hold is of no use; the job can go on from its newest checkpoint.
    Diverged {
        /// Who said so, or is one of those that differ.
        member: MemberId,
        /// What differs, and what to do.
        message: String,
    },
    /// Another coordinator took over; the group goes on with that one.
    Superseded,
    /// Asked to stop before the group drained; it can go on with another coordinator.
    Stopped,
    /// The store failed for good.
    StoreFailed {
        /// Why.
        message: String,
    },
}

/// Forms the group, changes it and watches it. See the module's picture.
#[derive(Clone, Debug)]
pub struct Coordinator {
    config: Config,
    /// As it is stored.
    record: Record,
    /// As it will be once the swap that is under way succeeds, and what for.
    swapping: Option<(Purpose, Record)>,
    phase: Phase,
    /// Who is connected, by pod.
    peers: BTreeMap<String, Peer>,
    pods: BTreeMap<Connection, String>,
    /// Since when pods that were connected are not.
    away: BTreeMap<String, Duration>,
    /// Of each pod the last process that was connected when another one of it came.
    replaced: BTreeMap<String, Incarnation>,
    /// Why the next generation differs from the last.
    reasons: Reasons,
    /// The members of the last one that was told.
    told: BTreeSet<MemberId>,
    /// Members that have to go, and why.
    leaving: BTreeMap<String, String>,
    /// Why all have to stop: too few could stay.
    draining: Option<String>,
    /// A member has done the last step: what is left to do is to tell the result.
    finishing: bool,
    /// Why the record can be kept no more: all save their state, and the group ends.
    unkept: Option<String>,
    /// The newest checkpoint that the record does not have yet.
    mark: Option<CheckpointMark>,
    /// Processes that were sent to read what is stored, by pod: others take their places.
    sent_to_read: BTreeMap<String, Incarnation>,
    aside: Aside,
    /// How the newest group sums after which step, as far as members told.
    plans: BTreeMap<u64, Digest>,
    store_again: Duration,
    /// How many generations in a row broke without a step.
    fruitless: u32,
    started: Duration,
    handled: Duration,
    stop_by: Option<Duration>,
    commands: Vec<Command>,
}

/// What a swap of the record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Allocate { planned: bool },
    Activate,
    Mark,
    Conclude,
}

#[derive(Clone, Debug)]
enum Phase {
    Gathering(Gathering),
    Preparing(Preparing),
    Running(Box<Running>),
    Ended,
}

impl Coordinator {
    /// A coordinator that finds `record` in the store.
    ///
    /// # Panics
    /// Without members, or when fewer than one or more than all are needed.
    #[must_use]
    pub fn new(mut config: Config, record: Option<Record>, now: Duration) -> Self {
        config.members.sort_by(|a, b| rank_order(a, b));
        config.members.dedup();
        let Config { members, replicas, least, .. } = &config;
        let possible = 1 <= *least && least <= replicas && *replicas <= members.len();
        assert!(possible, "a group of {replicas} of {} members, at least {least}", members.len());
        let record = record.unwrap_or_else(Record::empty);
        // Whoever rested, or was started anew as all were, was not lost.
        let awaited = record.active.iter().filter(|active| active.attempt == config.attempt && record.rested.is_none());
        let told = awaited.flat_map(|active| &active.members).map(Seat::id).collect();
        Self {
            record,
            swapping: None,
            phase: Phase::Gathering(Gathering::Start),
            peers: BTreeMap::new(),
            pods: BTreeMap::new(),
            away: BTreeMap::new(),
            replaced: BTreeMap::new(),
            reasons: Reasons::default(),
            told,
            leaving: BTreeMap::new(),
            draining: None,
            finishing: false,
            unkept: None,
            mark: None,
            sent_to_read: BTreeMap::new(),
            aside: Aside::default(),
            plans: BTreeMap::new(),
            store_again: Duration::ZERO,
            fruitless: 0,
            started: now,
            handled: now,
            stop_by: None,
            commands: Vec::new(),
            config,
        }
    }

    /// What is to be done after `event`, where `now` counts from any fixed moment and never goes back; an [`Awake`](crate::Awake) clock's.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Command> {
        if matches!(self.phase, Phase::Ended) {
            return Vec::new();
        }
        self.handled = now;
        match event {
            Event::Received(connection, Message::Hello(hello)) => self.greeted(connection, hello, now),
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

    /// Everything that follows from the state and the time alone.
    fn advance(&mut self, now: Duration) {
        self.drop_the_silent(now);
        self.call_back();
        if self.swapping.is_none() {
            match &self.phase {
                Phase::Gathering(_) => self.gather(now),
                Phase::Preparing(_) => self.agree(now),
                Phase::Running(_) => self.watch(now),
                Phase::Ended => {}
            }
        }
        let waits_for_nobody = self.peers.is_empty() || matches!(self.phase, Phase::Gathering(Gathering::Start));
        if self.stop_by.is_some_and(|deadline| waits_for_nobody || now >= deadline) {
            self.end(Outcome::Stopped);
        }
    }

    fn received(&mut self, connection: Connection, message: Message, now: Duration) {
        let Some(peer) = self.pods.get(&connection).and_then(|pod| self.peers.get_mut(pod)) else {
            self.commands.push(Command::Close(connection));
            return;
        };
        peer.heard = now;
        let member = peer.hello.member.clone();
        match message {
            Message::Heartbeat => self.send(connection, Message::Heartbeat),
            Message::Report(report) => self.reported(&member, connection, report, now),
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
            Message::Finished { step, digest, payload } => {
                self.last_word(&member, running::LastWord::Finished { step, digest, payload });
            }
            Message::Drained { step } => self.last_word(&member, running::LastWord::Drained { step }),
            // Said by coordinators; here they mean nothing.
            Message::Hello(_)
            | Message::Refuse { .. }
            | Message::Prepare { .. }
            | Message::Commit { .. }
            | Message::Stand { .. }
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

    /// Lets a member go whose last word this was.
    fn acknowledge(&mut self, member: &MemberId) {
        if let Some(peer) = self.peers.remove(&member.pod) {
            self.pods.remove(&peer.connection);
            self.send(peer.connection, Message::Release);
            self.commands.push(Command::Close(peer.connection));
        }
    }

    /// Has the record stored. A store that was away just now is left alone: the same is decided again later.
    fn swap(&mut self, purpose: Purpose, record: Record) {
        assert!(self.swapping.is_none(), "two swaps at a time: {:?} and {record:?}", self.swapping);
        if self.handled < self.store_again {
            return;
        }
        if let Some(message) = self.unkept.clone() {
            return match purpose {
                Purpose::Conclude => self.conclude(),
                Purpose::Mark => {}
                Purpose::Allocate { .. } | Purpose::Activate => self.give_up(message),
            };
        }
        self.swapping = Some((purpose, record.clone()));
        self.commands.push(Command::Swap(record));
    }

    /// Whether what is being stored changes the group, or ends it.
    fn is_changing(&self) -> bool {
        self.swapping.as_ref().is_some_and(|(purpose, _)| *purpose != Purpose::Mark)
    }

    fn swapped(&mut self, now: Duration) {
        let Some((purpose, record)) = self.swapping.take() else { return };
        self.record = record;
        match purpose {
            Purpose::Allocate { planned } => self.prepare(planned, now),
            Purpose::Activate => self.commit(now),
            Purpose::Mark => {}
            Purpose::Conclude => self.conclude(),
        }
    }

    /// A group that trains goes on, one that was to be formed stands, and what is to be recorded is when the store is back: so is how the
    /// group ended, as another coordinator may have begun the next one.
    fn store_is_away(&mut self, now: Duration) {
        let Some((purpose, record)) = self.swapping.take() else { return };
        self.store_again = now + STORE_PAUSE;
        match purpose {
            Purpose::Mark | Purpose::Conclude => self.mark = self.mark.max(record.last_durable_checkpoint),
            Purpose::Activate => self.lose_unseated(record.active),
            Purpose::Allocate { .. } => {}
        }
    }

    /// A record can be neither kept nor read. A group that trains saves its state before it ends.
    fn store_failed(&mut self, message: String) {
        let trains = matches!(&self.phase, Phase::Running(running) if !running.is_broken());
        match self.swapping.take() {
            Some((Purpose::Conclude, _)) => self.conclude(),
            Some((Purpose::Mark | Purpose::Allocate { .. }, _)) if trains => {
                let reason = unkept(&message);
                self.unkept = Some(message);
                self.draining = Some(reason.clone());
                self.send_to_all(&Message::Drain { reason });
            }
            _ => self.give_up(message),
        }
    }

    fn give_up(&mut self, message: String) {
        self.abort_all(&unkept(&message));
        self.end(Outcome::StoreFailed { message });
    }

    fn send(&mut self, connection: Connection, message: Message) {
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

    /// The newest membership that is recorded.
    fn active(&self) -> Option<&Active> {
        self.record.active.as_ref()
    }

    /// Connected pods that the next group may keep.
    fn stayers(&self) -> impl Iterator<Item = &str> {
        let all = self.draining.is_some();
        let stays = move |pod: &str| (all || !self.leaving.contains_key(pod)) && !self.is_aside(pod);
        self.peers.keys().map(String::as_str).filter(move |pod| stays(pod))
    }

    /// Whether the members that are here make a group.
    fn suffice(&self) -> bool {
        self.stayers().count() >= self.least()
    }

    /// Whether these pods do.
    fn are_enough(&self, pods: &BTreeSet<String>) -> bool {
        self.stayers().filter(|pod| pods.contains(*pod)).count() >= self.least()
    }

    /// Whoever drains, or only has to tell its result, needs no company.
    fn least(&self) -> usize {
        if self.draining.is_some() || self.finishing { 1 } else { self.config.least }
    }

    /// Whoever does not belong to the newest group may have saved steps that were given up since.
    fn checkpointed(&mut self, member: &MemberId, mark: CheckpointMark) {
        if self.active().is_none_or(|active| active.seat(member).is_none()) {
            return;
        }
        let known = self.record.last_durable_checkpoint.map(|known| known.step);
        let waiting = self.mark.map(|waiting| waiting.step);
        if known.max(waiting) < Some(mark.step) {
            self.mark = Some(mark);
        }
    }
}

fn unkept(message: &str) -> String {
    format!("the membership record cannot be kept: {message}")
}
