//! The decisions of the coordinator, one event at a time.

mod endings;
mod losses;
mod partition;
mod planned;
mod rendezvous;
mod restart;

use std::time::Duration;

use lockstep_elastic::{
    Active, Break, Change, CheckpointMark, Coordinator, Digest, HeldState, Hello, Message, Outcome, Record, Sampler,
    SealReport,
    coordinator::{Command, Config, ConnectionId, Event, Stage},
};

use crate::fixtures::{NOTHING, config, hello, ms};

/// The behaviour of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Agrees,
    IsAway,
    Fails,
    /// Holds the record back until [`Table::store_answers`].
    IsSlow,
}

/// A coordinator and its store. Member `i` uses connection `i`, and the process that replaces it
/// uses connection `10 + i`.
struct Table {
    coordinator: Coordinator,
    now: Duration,
    stored: Vec<Record>,
    store: Store,
    waiting: Option<Record>,
}

impl Table {
    fn new(members: usize) -> Self {
        Self::with(config(members), None)
    }

    fn with(config: Config, record: Option<Record>) -> Self {
        let coordinator = Coordinator::new(config, record, Duration::ZERO);
        Self { coordinator, now: Duration::ZERO, stored: Vec::new(), store: Store::Agrees, waiting: None }
    }

    /// Returns a table whose generation 1 trains and needs `least` members.
    fn running(members: usize, least: usize) -> Self {
        let mut table = Self::with(Config { least, ..config(members) }, None);
        table.form(&hellos(members), NOTHING);
        assert_eq!(table.stage(), Stage::Running);
        table
    }

    /// Handles an event and all swaps. Returns the other commands, without the alarms.
    fn handle(&mut self, event: Event) -> Vec<Command> {
        self.now += ms(1);
        let commands = self.coordinator.handle(event, self.now);
        self.carry_out(commands)
    }

    fn carry_out(&mut self, mut commands: Vec<Command>) -> Vec<Command> {
        let mut done = Vec::new();
        while !commands.is_empty() {
            let (swaps, rest): (Vec<_>, Vec<_>) = commands.into_iter().partition(|c| matches!(c, Command::Swap(_)));
            done.extend(rest.into_iter().filter(|c| !matches!(c, Command::WakeAt(_))));
            commands = Vec::new();
            for swap in swaps {
                let Command::Swap(record) = swap else { continue };
                match self.store {
                    Store::Agrees => {
                        self.stored.push(record);
                        commands.extend(self.coordinator.handle(Event::Swapped, self.now));
                    }
                    Store::IsAway => {
                        commands.extend(self.coordinator.handle(Event::StoreAway, self.now));
                    }
                    Store::Fails => {
                        commands.extend(self.coordinator.handle(Event::StoreFailed("no record".into()), self.now));
                    }
                    Store::IsSlow => self.waiting = Some(record),
                }
            }
        }
        done
    }

    /// Stores the record that a slow store received. The store is fast from then on.
    fn store_answers(&mut self) -> Vec<Command> {
        self.store = Store::Agrees;
        self.stored.push(self.waiting.take().expect("a swap is in progress"));
        self.handle(Event::Swapped)
    }

    fn says(&mut self, connection: u64, message: Message) -> Vec<Command> {
        self.handle(Event::Received(ConnectionId(connection), message))
    }

    fn greets(&mut self, connection: u64, hello: Hello) -> Vec<Command> {
        self.says(connection, Message::Hello(hello))
    }

    /// Connects a newcomer that catches up at once.
    fn joins(&mut self, connection: u64, hello: Hello) -> Vec<Command> {
        let mut commands = self.greets(connection, hello);
        let generation = self.coordinator.status(self.now).generation.unwrap_or_default();
        commands.extend(self.says(connection, Message::CaughtUp { generation, unreached: None }));
        commands
    }

    /// Answers the newest request as a process that took part in generation `entered`.
    fn reports(&mut self, connection: u64, entered: Option<u64>, state: HeldState) -> Vec<Command> {
        let generation = self.record().alloc_generation;
        self.says(
            connection,
            Message::SealReport(SealReport {
                generation,
                entered_generation: entered,
                followed: false,
                state: Some(state),
            }),
        )
    }

    fn closes(&mut self, connection: u64) -> Vec<Command> {
        self.handle(Event::Closed(ConnectionId(connection), CLOSED.into()))
    }

    /// Lets time pass while these connections carry heartbeats.
    fn wait(&mut self, time: Duration, alive: &[u64]) -> Vec<Command> {
        let end = self.now + time;
        let mut commands = Vec::new();
        while self.now < end {
            self.now += ms(50);
            for connection in alive {
                commands.extend(self.says(*connection, Message::Heartbeat));
            }
            commands.extend(self.handle(Event::Tick));
        }
        commands.retain(|c| !matches!(c, Command::Send(_, Message::Heartbeat)));
        commands
    }

    /// Connects all members, which report that they hold `state`, and starts the group.
    fn form(&mut self, hellos: &[Hello], state: HeldState) -> Vec<Command> {
        for (member, hello) in (0..).zip(hellos) {
            self.greets(member, hello.clone());
        }
        (0..hellos.len() as u64).flat_map(|member| self.reports(member, None, state)).collect()
    }

    fn stage(&self) -> Stage {
        self.coordinator.status(self.now).stage
    }

    fn status(&self) -> String {
        self.coordinator.status(self.now).to_string()
    }

    fn record(&self) -> Record {
        self.stored.last().expect("a record was stored").clone()
    }
}

/// The observation of a dying process.
const CLOSED: &str = "closed its connection";

fn hellos(members: usize) -> Vec<Hello> {
    (0..members).map(original).collect()
}

/// Returns the first process of a pod.
fn original(index: usize) -> Hello {
    hello(index, 100 + index as u128)
}

/// Returns the process that replaces it.
fn replacement(index: usize) -> Hello {
    hello(index, 200 + index as u128)
}

/// Returns a process that comes back with the generation that it was committed to, sealed or not.
fn returning(index: usize, committed: u64, sealed: bool) -> Hello {
    Hello { committed_generation: Some(committed), sealed, ..original(index) }
}

fn state(step: u64) -> HeldState {
    let sampler = Sampler { seed: 42, epoch: 0, cursor: 10 * step };
    HeldState { step, digest: Digest::of(&step.to_le_bytes()), sampler }
}

fn mark(step: u64) -> CheckpointMark {
    CheckpointMark { step, manifest_digest: Digest::of(b"manifest") }
}

fn leave() -> Message {
    Message::Leave { reason: "SIGTERM".into() }
}

fn broken(generation: u64) -> Message {
    Message::Broken { generation, broken: Break::from("rank 2 hung up") }
}

fn finished(generation: u64, digest: &[u8]) -> Message {
    Message::Finished { generation, step: 90, digest: Digest::of(digest), payload: Vec::new() }
}

fn drained(generation: u64, step: u64) -> Message {
    Message::Drained { generation, step }
}

fn end(commands: &[Command]) -> Option<&Outcome> {
    commands.iter().find_map(|c| if let Command::End(outcome) = c { Some(outcome) } else { None })
}

fn sent(commands: &[Command], to: u64) -> Vec<&Message> {
    let to_it = |c| {
        if let &Command::Send(connection, ref message) = c {
            (connection == ConnectionId(to)).then_some(message)
        } else {
            None
        }
    };
    commands.iter().filter_map(to_it).collect()
}

/// Returns the connections that were asked to seal, each with the generation and with true if that
/// was planned.
fn asked(commands: &[Command]) -> Vec<(u64, u64, bool)> {
    let asked = |c: &Command| match c {
        Command::Send(to, Message::Prepare { generation, planned }) => Some((to.0, *generation, *planned)),
        _ => None,
    };
    let mut asked: Vec<_> = commands.iter().filter_map(asked).collect();
    asked.sort_unstable();
    asked.dedup();
    asked
}

/// Returns the connections of the committed members in rank order, and their membership.
fn committed(commands: &[Command]) -> (Vec<u64>, Active) {
    let commits = commands.iter().filter_map(|c| match c {
        Command::Send(to, Message::Commit { rank, active }) => Some((*rank, to.0, active.clone())),
        _ => None,
    });
    let mut commits: Vec<_> = commits.collect();
    commits.sort_unstable_by_key(|(rank, to, _)| (*rank, *to));
    let (_, _, active) = commits.first().unwrap_or_else(|| panic!("no member was committed: {commands:?}")).clone();
    assert!(commits.iter().all(|(.., other)| *other == active), "all get the same membership: {commands:?}");
    (commits.into_iter().map(|(_, to, _)| to).collect(), active)
}

fn is_committed(commands: &[Command]) -> bool {
    commands.iter().any(|c| matches!(c, Command::Send(_, Message::Commit { .. })))
}

/// Returns the announced change.
fn change(commands: &[Command]) -> Change {
    let changes: Vec<_> =
        commands.iter().filter_map(|c| if let Command::Changed(change) = c { Some(change) } else { None }).collect();
    match changes.as_slice() {
        [change] => (*change).clone(),
        other => panic!("expected one change, got {other:?} in {commands:?}"),
    }
}

fn pods(active: &Active) -> Vec<&str> {
    active.members.iter().map(|ranked| ranked.pod.as_str()).collect()
}
