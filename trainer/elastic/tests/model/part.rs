//! Parts of a state that are shared, with their names, and state machines whose answers are remembered.

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
    coordinator::{self, Connection},
    member,
};

use crate::names::{self, Names};

/// A part of the state, named.
#[derive(Debug)]
pub(crate) struct Part<T>(Arc<(Names, T)>);

impl<T: Debug> Part<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new((names::names(&value), value)))
    }
}

impl<T> Part<T> {
    pub(crate) fn names(&self) -> &Names {
        &self.0.0
    }

    pub(crate) fn name(&self) -> u128 {
        self.0.0[0]
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.1
    }
}

/// What comes of a member's commands.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Say(Part<Message>),
    Seal,
    Enter(Part<Active>),
    Follow(u64),
}

/// What comes of a coordinator's.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Say(u64, Part<Message>),
    Close(u64),
    Swap(Part<Record>),
    End(coordinator::Outcome),
}

/// What a state machine becomes by an event, and what comes of it.
#[derive(Debug)]
pub(crate) struct Handled<T, C> {
    pub(crate) after: Part<T>,
    pub(crate) commands: Vec<C>,
    /// It was in that state before.
    pub(crate) same: bool,
}

/// The same event in the same state is met again and again.
type Known<T, C> = LazyLock<Shards<Arc<Handled<T, C>>>>;

static MEMBERS: Known<Member, Told> = LazyLock::new(Shards::default);
static COORDINATORS: Known<Coordinator, Asked> = LazyLock::new(Shards::default);

pub(crate) fn member_after(
    before: &Part<Member>,
    name: u128,
    event: impl FnOnce() -> member::Event,
) -> Arc<Handled<Member, Told>> {
    MEMBERS.known_or(names::mix(before.name(), name), || {
        let mut after = Member::clone(before);
        let event = event();
        let active = match &event {
            member::Event::Received(Message::Commit { active, .. }) => Some(Part::new(active.clone())),
            _ => None,
        };
        let commands = after.handle(event, Duration::ZERO).into_iter();
        let commands = commands.filter_map(|command| told(command, active.as_ref())).collect();
        Arc::new(handled(before, after, commands))
    })
}

pub(crate) fn coordinator_after(
    before: &Part<Coordinator>,
    name: u128,
    event: impl FnOnce() -> coordinator::Event,
    now: Duration,
) -> Arc<Handled<Coordinator, Asked>> {
    let name = names::all([before.name(), name, now.as_millis()]);
    COORDINATORS.known_or(name, || {
        let mut after = Coordinator::clone(before);
        let commands = after.handle(event(), now).into_iter().filter_map(asked).collect();
        Arc::new(handled(before, after, commands))
    })
}

/// What comes of time until then, in which those on these lines, which the coordinator knows, say that they are alive.
pub(crate) fn coordinator_later(
    before: &Part<Coordinator>,
    heard: Vec<u64>,
    then: Duration,
) -> Arc<Handled<Coordinator, Asked>> {
    COORDINATORS.known_or(names::all([before.name(), then.as_millis()]), || {
        let mut after = Coordinator::clone(before);
        let (mut heard, mut commands) = (heard, Vec::new());
        for now in (SHORT..then.as_secs()).step_by(SHORT as usize).map(Duration::from_secs).chain([then]) {
            let said = heard.iter().map(|line| coordinator::Event::Received(Connection(*line), Message::Heartbeat));
            for event in said.chain([coordinator::Event::Tick]) {
                commands.extend(after.handle(event, now).into_iter().filter_map(asked));
            }
            let closed =
                |line: &u64| commands.iter().any(|asked| matches!(asked, Asked::Close(closed) if closed == line));
            heard.retain(|line| !closed(line));
        }
        Arc::new(handled(before, after, commands))
    })
}

/// Seconds in which everybody who is connected says something.
const SHORT: u64 = 2;

fn handled<T: Debug, C>(before: &Part<T>, after: T, commands: Vec<C>) -> Handled<T, C> {
    let after = Part::new(after);
    let same = after.name() == before.name();
    Handled { after: if same { before.clone() } else { after }, commands, same }
}

fn told(command: member::Command, active: Option<&Part<Active>>) -> Option<Told> {
    match command {
        member::Command::Send(message) => said(message).map(Told::Say),
        member::Command::Seal { .. } => Some(Told::Seal),
        member::Command::Enter(_) => active.cloned().map(Told::Enter),
        member::Command::Follow(lead) => Some(Told::Follow(lead.generation)),
        member::Command::Feed(_)
        | member::Command::Reconnect
        | member::Command::Drain { .. }
        | member::Command::Abort { .. }
        | member::Command::Refused { .. }
        | member::Command::Released
        | member::Command::WakeAt(_) => None,
    }
}

fn asked(command: coordinator::Command) -> Option<Asked> {
    match command {
        coordinator::Command::Send(Connection(line), message) => said(message).map(|message| Asked::Say(line, message)),
        coordinator::Command::Close(Connection(line)) => Some(Asked::Close(line)),
        coordinator::Command::Swap(record) => Some(Asked::Swap(Part::new(record))),
        coordinator::Command::End(outcome) => Some(Asked::End(outcome)),
        coordinator::Command::Publish { .. } | coordinator::Command::Changed(_) | coordinator::Command::WakeAt(_) => {
            None
        }
    }
}

/// Nobody does anything for a heartbeat, a report of progress, or a newcomer's address.
fn said(message: Message) -> Option<Part<Message>> {
    let idle = matches!(message, Message::Heartbeat | Message::Feed(_) | Message::Progress { .. });
    (!idle).then(|| Part::new(message))
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
    /// What is known by this name, which is found out without holding others up.
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
