//! The coordinator's decisions: who forms the group, and when it is over. Pure: events and the time in, commands out.
//!
//! ```text
//! Gathering ─► Allocating ─► Preparing ─► Activating ─► Running ─► Ended
//!     ▲  (swap)    │  (reports)  │  (swap)                ▲
//!     └────────────┴─────────────┘ a member went          └ members of the active generation return to a new coordinator
//! ```

mod forming;
mod running;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    Active, CheckpointMark, Digest, Hello, MemberId, Message, Record, Report, Sampler, message::FrameError, rank_order,
};
use running::Running;
pub use status::{Stage, Status};

/// A member that is silent this long is shown as suspected.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// A member that is silent this long is lost. Heartbeats come ten times a second from a thread of their own, but on a
/// crowded machine that thread may wait for seconds.
pub const DEAD_AFTER: Duration = Duration::from_secs(10);
/// Pause before a record that the store did not take is tried again.
const STORE_PAUSE: Duration = Duration::from_secs(5);
/// How long members of a running group may take to find a coordinator that was started again.
pub const RETURN_LIMIT: Duration = Duration::from_secs(30);
/// How long a coordinator that was asked to stop waits for its group to drain.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// Time between two looks at the clock.
pub const TICK: Duration = Duration::from_millis(250);
/// A coordinator that was not scheduled this long blames no member for the silence.
const NAP_LIMIT: Duration = Duration::from_secs(1);

/// What a coordinator is told at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The job's uid.
    pub job: String,
    /// How often all processes of the job were started anew.
    pub attempt: u32,
    /// This coordinator's name in the record.
    pub name: String,
    /// The pods that make up the group.
    pub members: Vec<String>,
    /// Virtual shards of a global step.
    pub shards: u32,
    /// The sample sequence of a job without checkpoint.
    pub sampler: Sampler,
    /// How long all members may take to come up; `None` waits for ever.
    pub join_limit: Option<Duration>,
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
    /// Replace the record by compare-and-swap and answer [`Event::Swapped`] or [`Event::Conflict`]; one at a time.
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
    /// Come back with [`Event::Tick`] at this time unless something happens before; replaces the former time.
    WakeAt(Duration),
    /// The coordinator's work is over.
    End(Outcome),
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
    /// A member of the running group was lost.
    Lost {
        /// Who.
        member: MemberId,
        /// What was seen.
        reason: String,
    },
    /// The job cannot succeed as it is described.
    Fatal {
        /// Who said so.
        member: MemberId,
        /// What it said.
        message: String,
    },
    /// The group did not come together within [`Config::join_limit`].
    Incomplete {
        /// Pods that did not come.
        missing: Vec<String>,
        /// How long they were waited for.
        waited: Duration,
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

/// Forms the group and watches it. See the module's picture.
#[derive(Debug)]
pub struct Coordinator {
    config: Config,
    /// As it is stored.
    record: Record,
    /// As it will be once the swap that is under way succeeds.
    swapping: Option<Record>,
    phase: Phase,
    /// Who is connected, by pod.
    peers: BTreeMap<String, Peer>,
    pods: BTreeMap<Connection, String>,
    started: Duration,
    handled: Duration,
    stop_by: Option<Duration>,
    commands: Vec<Command>,
}

#[derive(Debug)]
struct Peer {
    hello: Hello,
    connection: Connection,
    heard: Duration,
}

#[derive(Debug)]
enum Phase {
    Gathering,
    Allocating { generation: u64 },
    Preparing { generation: u64, reports: BTreeMap<String, Report> },
    Activating,
    Running(Box<Running>),
    Ended,
}

impl Coordinator {
    /// A coordinator that finds `record` in the store.
    ///
    /// # Panics
    /// Without members.
    #[must_use]
    pub fn new(mut config: Config, record: Option<Record>, now: Duration) -> Self {
        assert!(!config.members.is_empty(), "a group needs at least one member");
        config.members.sort_by(|a, b| rank_order(a, b));
        config.members.dedup();
        Self {
            config,
            record: record.unwrap_or_else(Record::empty),
            swapping: None,
            phase: Phase::Gathering,
            peers: BTreeMap::new(),
            pods: BTreeMap::new(),
            started: now,
            handled: now,
            stop_by: None,
            commands: Vec::new(),
        }
    }

    /// What is to be done after `event`, where `now` counts from any fixed moment and never goes back.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Command> {
        if matches!(self.phase, Phase::Ended) {
            return Vec::new();
        }
        self.forgive_own_sleep(now);
        match event {
            Event::Received(connection, Message::Hello(hello)) => self.greeted(connection, hello, now),
            Event::Received(connection, message) => self.received(connection, message, now),
            Event::Garbled(connection, error) => self.garbled(connection, &error),
            Event::Closed(connection, reason) => {
                if let Some(pod) = self.pods.get(&connection).cloned() {
                    self.gone(&pod, &reason);
                }
            }
            Event::Swapped => self.swapped(now),
            Event::Conflict => self.end(Outcome::Superseded),
            Event::StoreFailed(message) => self.store_failed(message, now),
            Event::Stop => self.stop_by = self.stop_by.or(Some(now + DRAIN_LIMIT)),
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
        match &self.phase {
            Phase::Gathering => self.gather(now),
            Phase::Allocating { .. } | Phase::Activating | Phase::Ended => {}
            Phase::Preparing { .. } => self.agree(),
            Phase::Running(_) => self.watch(now),
        }
        let waits_for_nobody = !matches!(self.phase, Phase::Running(_) | Phase::Ended);
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
            Message::Report(report) => self.reported(&member, connection, report),
            Message::Fatal { message } => self.fatal(member, message),
            Message::Progress { step, payload } => self.progressed(member, step, payload),
            Message::Checkpoint(mark) => self.checkpointed(mark),
            Message::Leave { reason } => self.leaving(&member, &reason),
            Message::Finished { step, digest, payload } => {
                self.last_word(&member, running::LastWord::Finished { step, digest, payload });
            }
            Message::Drained { step } => self.last_word(&member, running::LastWord::Drained { step }),
            // Said between members or by coordinators; here they mean nothing.
            Message::Hello(_)
            | Message::Refuse { .. }
            | Message::Prepare { .. }
            | Message::Commit { .. }
            | Message::Done { .. }
            | Message::Stable { .. }
            | Message::Drain { .. }
            | Message::Abort { .. }
            | Message::Release => {}
        }
    }

    fn garbled(&mut self, connection: Connection, error: &FrameError) {
        if let FrameError::Version { .. } = error {
            self.send(connection, Message::Refuse { reason: error.to_string() });
        }
        self.commands.push(Command::Close(connection));
        if let Some(pod) = self.pods.get(&connection).cloned() {
            self.gone(&pod, &error.to_string());
        }
    }

    /// The one place where a connected member disappears.
    fn gone(&mut self, pod: &str, reason: &str) {
        let Some(peer) = self.peers.remove(pod) else { return };
        self.pods.remove(&peer.connection);
        match &mut self.phase {
            Phase::Allocating { .. } | Phase::Preparing { .. } => self.phase = Phase::Gathering,
            Phase::Running(running) => running.missed(&peer.hello.member, reason),
            Phase::Gathering | Phase::Activating | Phase::Ended => {}
        }
    }

    fn drop_the_silent(&mut self, now: Duration) {
        let silent = |peer: &Peer| now.saturating_sub(peer.heard) > DEAD_AFTER;
        let dead: Vec<_> =
            self.peers.iter().filter(|(_, p)| silent(p)).map(|(pod, p)| (pod.clone(), p.connection)).collect();
        for (pod, connection) in dead {
            self.commands.push(Command::Close(connection));
            self.gone(&pod, &format!("sent nothing for {} s", DEAD_AFTER.as_secs()));
        }
    }

    /// Heartbeats that came while this process did not run lie unread in its sockets: they are no silence.
    fn forgive_own_sleep(&mut self, now: Duration) {
        let slept = now.saturating_sub(self.handled);
        self.handled = now;
        if slept > NAP_LIMIT {
            for peer in self.peers.values_mut() {
                peer.heard += slept;
            }
        }
    }

    fn fatal(&mut self, member: MemberId, message: String) {
        if let Some(peer) = self.peers.remove(&member.pod) {
            self.pods.remove(&peer.connection);
            self.send(peer.connection, Message::Release);
            self.commands.push(Command::Close(peer.connection));
        }
        self.abort_all(&format!("{} failed: {message}", member.pod));
        self.end(Outcome::Fatal { member, message });
    }

    fn swap(&mut self, record: Record) {
        assert!(self.swapping.is_none(), "two swaps at a time: {:?} and {record:?}", self.swapping);
        self.swapping = Some(record.clone());
        self.commands.push(Command::Swap(record));
    }

    fn swapped(&mut self, now: Duration) {
        let Some(record) = self.swapping.take() else { return };
        self.record = record;
        match self.phase {
            Phase::Allocating { generation } => self.prepare(generation),
            Phase::Activating => self.commit(now),
            Phase::Gathering | Phase::Preparing { .. } | Phase::Running(_) | Phase::Ended => {}
        }
    }

    /// A group that runs needs no record: its checkpoint is recorded when the store is back. One that forms cannot go on without.
    fn store_failed(&mut self, message: String, now: Duration) {
        let record = self.swapping.take();
        match (&mut self.phase, record) {
            (Phase::Running(running), Some(record)) => running.keep(record, now + STORE_PAUSE),
            _ => {
                self.abort_all(&format!("the membership record cannot be kept: {message}"));
                self.end(Outcome::StoreFailed { message });
            }
        }
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

    fn missing(&self) -> Vec<String> {
        self.config.members.iter().filter(|pod| !self.peers.contains_key(*pod)).cloned().collect()
    }

    fn active(&self) -> Option<&Active> {
        self.record.active.as_ref()
    }

    fn checkpointed(&mut self, mark: CheckpointMark) {
        let known = self.record.last_durable_checkpoint.map(|known| known.step);
        if let Phase::Running(running) = &mut self.phase
            && known < Some(mark.step)
        {
            running.remember(mark);
        }
    }

    fn silent_pods(&self, now: Duration) -> BTreeSet<&str> {
        let silent = |peer: &Peer| now.saturating_sub(peer.heard) > SUSPECT_AFTER;
        self.peers.iter().filter(|(_, peer)| silent(peer)).map(|(pod, _)| pod.as_str()).collect()
    }
}
