//! The coordinator's decisions, one event at a time.

mod aside;
mod endings;
mod forming;
mod losses;
mod planned;
mod restart;

use std::time::Duration;

use lockstep_elastic::{
    Active, Break, Change, CheckpointMark, Coordinator, Digest, Hello, Message, Outcome, Record, Report, Sampler,
    State,
    coordinator::{Command, Config, Connection, Event, Stage},
};

use crate::given::{NOTHING, config, hello, ms};

/// How a store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Agrees,
    IsAway,
    Fails,
    /// Keeps the record until [`Table::store_answers`].
    IsSlow,
}

/// A coordinator and its store. Member `i` talks over connection `i`, and the process that replaces it over connection `10 + i`.
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

    /// Generation 1 trains, with `least` of its members needed.
    fn running(members: usize, least: usize) -> Self {
        let mut table = Self::with(Config { least, ..config(members) }, None);
        table.form(&hellos(members), NOTHING);
        assert_eq!(table.stage(), Stage::Running);
        table
    }

    /// Commands except for the alarm clock, with swaps carried out.
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

    /// The record that a slow store was given is stored, and it is slow no more.
    fn store_answers(&mut self) -> Vec<Command> {
        self.store = Store::Agrees;
        self.stored.push(self.waiting.take().expect("a swap is under way"));
        self.handle(Event::Swapped)
    }

    fn says(&mut self, connection: u64, message: Message) -> Vec<Command> {
        self.handle(Event::Received(Connection(connection), message))
    }

    fn greets(&mut self, connection: u64, hello: Hello) -> Vec<Command> {
        self.says(connection, Message::Hello(hello))
    }

    /// A newcomer comes, and has soon taken over what the group holds.
    fn joins(&mut self, connection: u64, hello: Hello) -> Vec<Command> {
        let mut commands = self.greets(connection, hello);
        let generation = self.coordinator.status(self.now).generation.unwrap_or_default();
        commands.extend(self.says(connection, Message::CaughtUp { generation, unreached: None }));
        commands
    }

    /// Answers the newest call, as a process that took part in generation `entered`.
    fn reports(&mut self, connection: u64, entered: Option<u64>, state: State) -> Vec<Command> {
        let generation = self.record().alloc_generation;
        self.says(
            connection,
            Message::Report(Report { generation, entered_generation: entered, followed: false, state: Some(state) }),
        )
    }

    fn closes(&mut self, connection: u64) -> Vec<Command> {
        self.handle(Event::Closed(Connection(connection), CLOSED.into()))
    }

    /// Lets time pass in which these connections carry heartbeats.
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

    /// All members join, report that they hold `state`, and the group runs.
    fn form(&mut self, hellos: &[Hello], state: State) -> Vec<Command> {
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
        self.stored.last().expect("something was stored").clone()
    }
}

/// What is seen of a process that dies.
const CLOSED: &str = "closed its connection";

fn hellos(members: usize) -> Vec<Hello> {
    (0..members).map(original).collect()
}

/// The process of a pod that the tests begin with.
fn original(index: usize) -> Hello {
    hello(index, 100 + index as u128)
}

/// The process that follows it.
fn replacement(index: usize) -> Hello {
    hello(index, 200 + index as u128)
}

/// A process that comes back: where it was committed to, and whether it stands still.
fn returning(index: usize, committed: u64, stands: bool) -> Hello {
    Hello { committed_generation: Some(committed), stands, ..original(index) }
}

fn state(step: u64) -> State {
    let sampler = Sampler { seed: 42, epoch: 0, cursor: 10 * step };
    State { step, digest: Digest::of(&step.to_le_bytes()), sampler }
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
            (connection == Connection(to)).then_some(message)
        } else {
            None
        }
    };
    commands.iter().filter_map(to_it).collect()
}

/// Who was asked to seal for which generation, once or more often, and whether that is planned.
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

/// Who was committed to the group, in rank order, and to what.
fn committed(commands: &[Command]) -> (Vec<u64>, Active) {
    let commits = commands.iter().filter_map(|c| match c {
        Command::Send(to, Message::Commit { rank, active }) => Some((*rank, to.0, active.clone())),
        _ => None,
    });
    let mut commits: Vec<_> = commits.collect();
    commits.sort_unstable_by_key(|(rank, to, _)| (*rank, *to));
    let (_, _, active) = commits.first().unwrap_or_else(|| panic!("nobody was committed: {commands:?}")).clone();
    assert!(commits.iter().all(|(.., other)| *other == active), "all are told the same: {commands:?}");
    (commits.into_iter().map(|(_, to, _)| to).collect(), active)
}

fn is_committed(commands: &[Command]) -> bool {
    commands.iter().any(|c| matches!(c, Command::Send(_, Message::Commit { .. })))
}

/// The change that the outside is told of.
fn change(commands: &[Command]) -> Change {
    let changes: Vec<_> =
        commands.iter().filter_map(|c| if let Command::Changed(change) = c { Some(change) } else { None }).collect();
    match changes.as_slice() {
        [change] => (*change).clone(),
        other => panic!("expected one change, got {other:?} in {commands:?}"),
    }
}

fn pods(active: &Active) -> Vec<&str> {
    active.members.iter().map(|seat| seat.pod.as_str()).collect()
}
