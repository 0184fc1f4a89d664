//! Messages in flight. Their set only grows: each may be delivered at any time, repeatedly or
//! never.
//!
//! A state with more messages can do everything that one with fewer can. Therefore actions that
//! only add messages happen at once. A message that has no effect any more is forgotten. And
//! [`explore`](crate::explore) skips a state if one with the same and more messages is known.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use lockstep_elastic::{
    Coordinator, Member, Message,
    coordinator::{self, ConnectionId},
    member,
};

use crate::{
    interned::{CoordinatorCommand, Handled, Interned, MemberCommand, Shards, coordinator_after, member_after},
    job::{Connection, CoordinatorProcess, Job},
    names::{EXCHANGES, Names, PODS, all, by_exchange},
};

/// A message that stays in flight for ever.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) connection: u64,
    pub(crate) down: bool,
    pub(crate) message: Interned<Message>,
    pub(crate) name: u128,
    /// The number that stands for its names, by exchange.
    pub(crate) numbers: [u32; EXCHANGES.len()],
}

static PACKETS: LazyLock<Shards<Arc<Packet>>> = LazyLock::new(Shards::default);
static NUMBERS: LazyLock<Mutex<HashMap<u128, u32>>> = LazyLock::new(Mutex::default);

impl Packet {
    fn new(connection: u64, down: bool, message: Interned<Message>) -> Arc<Self> {
        let (worker, place) = (connection as usize % PODS, u128::from(connection) / PODS as u128);
        let name = |exchange: usize| {
            let worker = EXCHANGES[exchange][worker] as u128;
            all([worker, place, u128::from(down), message.names()[exchange]])
        };
        PACKETS.known_or(name(0), || {
            let names: Names = by_exchange(name);
            let mut known = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
            let numbers = names.map(|name| {
                let next = known.len() as u32;
                *known.entry(name).or_insert(next)
            });
            Arc::new(Self { connection, down, message: message.clone(), name: names[0], numbers })
        })
    }
}

enum Effect {
    OnMember(usize, Arc<Handled<Member, MemberCommand>>),
    OnCoordinator(usize, Arc<Handled<Coordinator, CoordinatorCommand>>),
}

impl Job {
    pub(crate) fn post(&mut self, connection: u64, down: bool, message: Interned<Message>) -> bool {
        let packet = Packet::new(connection, down, message);
        let news = !self.is_spent(&packet) && self.packets.iter().all(|known| known.name != packet.name);
        if news {
            self.packets.push(packet);
        }
        news
    }

    pub(crate) fn deliver(&mut self, index: usize) {
        let packet = Arc::clone(&self.packets[index]);
        if !packet.down && matches!(*packet.message, Message::Hello(_)) {
            self.connection(packet.connection).greeted = true;
        }
        let effect = self.effect(&packet);
        if let Effect::OnMember(worker, _) = effect {
            self.process(worker).untold = false;
        }
        if let (Effect::OnMember(worker, _), Message::Prepare { generation, .. }) = (&effect, &*packet.message) {
            let process = self.process(*worker);
            process.promised = process.promised.max(*generation);
        }
        match effect {
            Effect::OnMember(worker, handled) => self.became(worker, &handled),
            Effect::OnCoordinator(coordinator, handled) => self.decided(coordinator, &handled),
        }
    }

    fn effect(&self, packet: &Packet) -> Effect {
        let Packet { connection, down, message, name, .. } = packet;
        let Connection { worker, coordinator, .. } = self.connections[connection];
        if *down {
            let event = || member::Event::Received((**message).clone());
            return Effect::OnMember(worker, member_after(&self.processes[worker].member, *name, event));
        }
        let Some(CoordinatorProcess { machine, now, .. }) = self.coordinators[coordinator].as_deref() else {
            unreachable!("it arrives")
        };
        let said = self.twisted(coordinator, message);
        let name = said.as_ref().map_or(*name, |said| all([u128::from(*connection), said.name()]));
        let message = said.as_ref().unwrap_or(message);
        let event = || coordinator::Event::Received(ConnectionId(*connection), (**message).clone());
        Effect::OnCoordinator(coordinator, coordinator_after(machine, name, event, *now))
    }

    /// Returns true if the coordinator reads the message. It first hears which process is at the
    /// other end; an earlier message only breaks the connection.
    fn is_heard(&self, packet: &Packet) -> bool {
        packet.down || self.connections[&packet.connection].greeted || matches!(*packet.message, Message::Hello(_))
    }

    /// Returns true if a delivery does more than add messages.
    pub(crate) fn changes(&self, packet: usize) -> bool {
        let packet = &self.packets[packet];
        if !self.is_heard(packet) {
            return false;
        }
        if !packet.down && !self.connections[&packet.connection].greeted {
            return true;
        }
        match self.effect(packet) {
            Effect::OnMember(_, handled) => {
                !handled.same || handled.commands.iter().any(|told| !matches!(told, MemberCommand::Say(_)))
            }
            Effect::OnCoordinator(_, handled) => {
                !handled.same || handled.commands.iter().any(|asked| !matches!(asked, CoordinatorCommand::Say(..)))
            }
        }
    }

    /// Delivers every message that only adds messages.
    pub(crate) fn say_all(&mut self) {
        loop {
            let before = self.packets.len();
            for index in 0..before {
                if !self.changes(index) && self.is_heard(&self.packets[index]) {
                    self.deliver(index);
                }
            }
            if self.packets.len() == before {
                return;
            }
        }
    }

    /// Forgets connections that are closed at both ends, and messages that are never read or have
    /// no effect any more.
    pub(crate) fn forget(&mut self) {
        let is_over = |connection: &Connection| {
            !connection.open_there && (!connection.open_here || self.coordinators[connection.coordinator].is_none())
        };
        if self.packets.iter().any(|packet| self.is_spent(packet)) {
            let packets = std::mem::take(&mut self.packets);
            self.packets = packets.into_iter().filter(|packet| !self.is_spent(packet)).collect();
        }
        if self.connections.values().any(is_over) {
            let kept = self.connections.iter().filter(|(_, connection)| !is_over(connection));
            self.connections = Arc::new(kept.map(|(number, connection)| (*number, connection.clone())).collect());
        }
        let gone = |generation: u64| {
            self.processes.iter().all(|process| {
                let group = process.worker.group.as_ref().map(|group| group.generation);
                group != Some(generation) && process.entered >= generation
            })
        };
        if self.contributed.keys().chain(self.done.keys()).any(|(generation, _)| gone(*generation)) {
            let kept = |said: &BTreeMap<(u64, u64), u8>| {
                said.iter().filter(|((generation, _), _)| !gone(*generation)).map(|(key, mask)| (*key, *mask)).collect()
            };
            (self.contributed, self.done) = (kept(&self.contributed), kept(&self.done));
        }
    }

    /// Returns true if the message has no effect any more: its connection is closed, or its
    /// receiver heard of a newer generation.
    fn is_spent(&self, packet: &Packet) -> bool {
        let Packet { connection, down, message, .. } = packet;
        let Some(Connection { worker, incarnation, coordinator, open_here, open_there, .. }) =
            self.connections.get(connection)
        else {
            return true;
        };
        if *down {
            let process = &self.processes[*worker];
            let (known, promised) = (process.entered, process.promised);
            return !open_there
                || process.incarnation != *incarnation
                || match &**message {
                    Message::Prepare { generation, .. } => *generation <= known || *generation < promised,
                    Message::Commit { active, .. } => active.generation <= known || active.generation < promised,
                    _ => false,
                };
        }
        let Some(coordinator) = self.coordinators[*coordinator].as_ref().filter(|_| *open_here) else { return true };
        let newest = coordinator.record.active.as_ref().map_or(0, |active| active.generation);
        match &**message {
            Message::Broken { generation, .. } | Message::CaughtUp { generation, .. } => *generation < newest,
            _ => false,
        }
    }
}
