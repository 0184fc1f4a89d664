//! Shared and named values, and remembered transitions of the state machines.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt::Debug,
    hash::{BuildHasherDefault, Hasher},
    ops::Deref,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use lockstep_elastic::{
    Active, Coordinator, Member, Message, Record,
    coordinator::{self, ConnectionId},
    member,
};

use crate::names::{self, Names};

/// A shared value with its names.
#[derive(Debug)]
pub(crate) struct Interned<T>(Arc<(Names, T)>);

impl<T: Debug> Interned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new((names::names(&value), value)))
    }
}

impl<T> Interned<T> {
    pub(crate) fn names(&self) -> &Names {
        &self.0.0
    }

    pub(crate) fn name(&self) -> u128 {
        self.0.0[0]
    }
}

impl<T> Clone for Interned<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Interned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.1
    }
}

/// A command of a member, as far as the model executes it.
#[derive(Clone, Debug)]
pub(crate) enum MemberCommand {
    Say(Interned<Message>),
    Seal,
    Enter(Interned<Active>),
    Follow(u64),
}

/// A command of a coordinator, as far as the model executes it.
#[derive(Clone, Debug)]
pub(crate) enum CoordinatorCommand {
    Say(u64, Interned<Message>),
    Close(u64),
    Swap(Interned<Record>),
    End(coordinator::Outcome),
}

/// The result of an event: the next state and the commands.
#[derive(Debug)]
pub(crate) struct Handled<T, C> {
    pub(crate) after: Interned<T>,
    pub(crate) commands: Vec<C>,
    /// True if the state did not change.
    pub(crate) same: bool,
}

/// The known transitions. The same event meets the same state again and again.
type Known<T, C> = LazyLock<Shards<Arc<Handled<T, C>>>>;

static MEMBERS: Known<Member, MemberCommand> = LazyLock::new(Shards::default);
static COORDINATORS: Known<Coordinator, CoordinatorCommand> = LazyLock::new(Shards::default);

pub(crate) fn member_after(
    before: &Interned<Member>,
    name: u128,
    event: impl FnOnce() -> member::Event,
) -> Arc<Handled<Member, MemberCommand>> {
    MEMBERS.known_or(names::mix(before.name(), name), || {
        let mut after = Member::clone(before);
        let event = event();
        let active = match &event {
            member::Event::Received(Message::Commit { active, .. }) => Some(Interned::new(active.clone())),
            _ => None,
        };
        let commands = after.handle(event, Duration::ZERO).into_iter();
        let commands = commands.filter_map(|command| told(command, active.as_ref())).collect();
        Arc::new(handled(before, after, commands))
    })
}

pub(crate) fn coordinator_after(
    before: &Interned<Coordinator>,
    name: u128,
    event: impl FnOnce() -> coordinator::Event,
    now: Duration,
) -> Arc<Handled<Coordinator, CoordinatorCommand>> {
    let name = names::all([before.name(), name, now.as_millis()]);
    COORDINATORS.known_or(name, || {
        let mut after = Coordinator::clone(before);
        let commands = after.handle(event(), now).into_iter().filter_map(asked).collect();
        Arc::new(handled(before, after, commands))
    })
}

/// Returns the transition of a coordinator as time passes. Heartbeats arrive on these connections,
/// which the coordinator knows.
pub(crate) fn coordinator_later(
    before: &Interned<Coordinator>,
    heard: Vec<u64>,
    then: Duration,
) -> Arc<Handled<Coordinator, CoordinatorCommand>> {
    COORDINATORS.known_or(names::all([before.name(), then.as_millis()]), || {
        let mut after = Coordinator::clone(before);
        let (mut heard, mut commands) = (heard, Vec::new());
        for now in (SHORT..then.as_secs()).step_by(SHORT as usize).map(Duration::from_secs).chain([then]) {
            let said = heard
                .iter()
                .map(|connection| coordinator::Event::Received(ConnectionId(*connection), Message::Heartbeat));
            for event in said.chain([coordinator::Event::Tick]) {
                commands.extend(after.handle(event, now).into_iter().filter_map(asked));
            }
            let closed = |connection: &u64| {
                commands.iter().any(|asked| matches!(asked, CoordinatorCommand::Close(closed) if closed == connection))
            };
            heard.retain(|connection| !closed(connection));
        }
        Arc::new(handled(before, after, commands))
    })
}

/// The time between two heartbeats.
const SHORT: u64 = 2;

fn handled<T: Debug, C>(before: &Interned<T>, after: T, commands: Vec<C>) -> Handled<T, C> {
    let after = Interned::new(after);
    let same = after.name() == before.name();
    Handled { after: if same { before.clone() } else { after }, commands, same }
}

fn told(command: member::Command, active: Option<&Interned<Active>>) -> Option<MemberCommand> {
    match command {
        member::Command::Send(message) => said(message).map(MemberCommand::Say),
        member::Command::Seal { .. } => Some(MemberCommand::Seal),
        member::Command::Enter(_) => active.cloned().map(MemberCommand::Enter),
        member::Command::Follow(lead) => Some(MemberCommand::Follow(lead.generation)),
        member::Command::Feed(_)
        | member::Command::Reconnect
        | member::Command::Drain { .. }
        | member::Command::Abort { .. }
        | member::Command::Refused { .. }
        | member::Command::Released
        | member::Command::WakeAt(_) => None,
    }
}

fn asked(command: coordinator::Command) -> Option<CoordinatorCommand> {
    match command {
        coordinator::Command::Send(ConnectionId(connection), message) => {
            said(message).map(|message| CoordinatorCommand::Say(connection, message))
        }
        coordinator::Command::Close(ConnectionId(connection)) => Some(CoordinatorCommand::Close(connection)),
        coordinator::Command::Swap(record) => Some(CoordinatorCommand::Swap(Interned::new(record))),
        coordinator::Command::End(outcome) => Some(CoordinatorCommand::End(outcome)),
        coordinator::Command::Publish { .. } | coordinator::Command::Changed(_) | coordinator::Command::WakeAt(_) => {
            None
        }
    }
}

/// Returns the message, unless its receiver only notes a heartbeat, progress or a newcomer's
/// address.
fn said(message: Message) -> Option<Interned<Message>> {
    let idle = matches!(message, Message::Heartbeat | Message::Feed(_) | Message::Progress { .. });
    (!idle).then(|| Interned::new(message))
}

/// A map that several threads fill.
pub(crate) struct Shards<T>([Mutex<HashMap<u128, T, Named>>; SHARDS]);

const SHARDS: usize = 64;
/// Names need no hashing.
type Named = BuildHasherDefault<Name>;

#[derive(Default)]
pub(crate) struct Name(u64);

impl Hasher for Name {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only names are hashed");
    }

    fn write_u128(&mut self, name: u128) {
        self.0 = name as u64;
    }
}

impl<T> Default for Shards<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl<T> Shards<T> {
    pub(crate) fn with<R>(&self, name: u128, with: impl FnOnce(Entry<'_, u128, T>) -> R) -> R {
        let shard = &self.0[(name >> 64) as usize % SHARDS];
        with(shard.lock().unwrap_or_else(PoisonError::into_inner).entry(name))
    }
}

impl<T: Clone> Shards<T> {
    /// Returns the value for this name. Computing a missing one blocks no other thread.
    pub(crate) fn known_or(&self, name: u128, find: impl FnOnce() -> T) -> T {
        let known = self.with(name, |entry| match entry {
            Entry::Occupied(known) => Some(known.get().clone()),
            Entry::Vacant(_) => None,
        });
        known.unwrap_or_else(|| {
            let found = find();
            self.with(name, |entry| entry.or_insert(found).clone())
        })
    }
}
