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
mod event;
mod following;
mod forming;
mod peers;
mod reasons;
mod running;
mod status;
mod storing;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{Active, CheckpointMark, Digest, Incarnation, MemberId, Message, Record, Seat, rank_order};
use aside::Aside;
pub use event::{Change, Command, Connection, Event, Outcome};
use forming::{Gathering, Preparing};
use peers::Peer;
use reasons::Reasons;
use running::Running;
pub use status::{Stage, Status};
use storing::Purpose;

/// A member that is silent this long is shown as suspected.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// A member that is silent this long is lost. Heartbeats come ten times a second from a thread of their own; one that was only slow
/// stands still and joins again.
pub const DEAD_AFTER: Duration = Duration::from_millis(2500);
/// How long members of the recorded generation may take to find a coordinator that was started again, and how long the last ones that
/// may hold its state are waited for before an older one is taken.
pub const RETURN_LIMIT: Duration = Duration::from_secs(30);
/// How long the first group waits for all its members when fewer would do.
pub const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a coordinator waits for any of those whom it has seen. Then another one may have a better line to them; they go on meanwhile.
pub const DESERTED_AFTER: Duration = Duration::from_secs(60);
/// How long planned changes are gathered, so that several become one.
pub const JOIN_WINDOW: Duration = Duration::from_millis(500);
/// How long newcomers that could be let in wait for others that still take the state over.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// Pods that go together are asked to within this time: where too few would stay, training goes on
/// for so long, in case all have to go.
pub const LEAVE_WINDOW: Duration = Duration::from_secs(2);
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
    /// Who had to go, and went although too few stayed to form the next group; and why.
    left: Vec<(String, String)>,
    /// Why all have to stop: nobody could stay.
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
            left: Vec::new(),
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
        if let Event::Received(connection, Message::Heartbeat) = event {
            return self.beaten(connection, now);
        }
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
        if self.is_deserted(now) {
            return self.end(Outcome::Deserted);
        }
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

    /// What follows from the time that has passed follows at the next tick: many members say this ten times a second.
    fn beaten(&mut self, connection: Connection, now: Duration) -> Vec<Command> {
        let peer = self.pods.get(&connection).and_then(|pod| self.peers.get_mut(pod));
        vec![match peer {
            Some(peer) => {
                peer.heard = now;
                Command::Send(connection, Message::Heartbeat)
            }
            None => Command::Close(connection),
        }]
    }

    fn received(&mut self, connection: Connection, message: Message, now: Duration) {
        let Some(peer) = self.pods.get(&connection).and_then(|pod| self.peers.get_mut(pod)) else {
            self.commands.push(Command::Close(connection));
            return;
        };
        peer.heard = now;
        let member = peer.hello.member.clone();
        match message {
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
            Message::Finished { generation, step, digest, payload } => {
                self.last_word(&member, generation, running::LastWord::Finished { step, digest, payload });
            }
            Message::Drained { generation, step } => {
                self.last_word(&member, generation, running::LastWord::Drained { step });
            }
            // Said by coordinators, or handled before; here they mean nothing.
            Message::Heartbeat
            | Message::Hello(_)
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
