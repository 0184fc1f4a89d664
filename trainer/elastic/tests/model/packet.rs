//! Messages on their way. The set of them only grows: each may be delivered at any time, again, or never.
//!
//! A state with more of them can do all that one with fewer can, so three things cost nothing. Whatever only adds messages happens at
//! once. A message that will never do anything again is forgotten. And a state is left alone where one with the same and more of them is
//! known, which [`explore`](crate::explore) sees to.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use lockstep_elastic::{
    Coordinator, Member, Message,
    coordinator::{self, Connection},
    member,
};

use crate::{
    job::{Chair, Job, Line},
    names::{EXCHANGES, Names, PODS, all, by_exchange},
    part::{Asked, Handled, Part, Shards, Told, coordinator_after, member_after},
};

/// A message on its way, for ever.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) line: u64,
    pub(crate) down: bool,
    pub(crate) message: Part<Message>,
    pub(crate) name: u128,
    /// Stands for its names.
    pub(crate) numbers: [u32; EXCHANGES.len()],
}

static PACKETS: LazyLock<Shards<Arc<Packet>>> = LazyLock::new(Shards::default);
static NUMBERS: LazyLock<Mutex<HashMap<u128, u32>>> = LazyLock::new(Mutex::default);

impl Packet {
    fn new(line: u64, down: bool, message: Part<Message>) -> Arc<Self> {
        let (worker, place) = (line as usize % PODS, u128::from(line) / PODS as u128);
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
            Arc::new(Self { line, down, message: message.clone(), name: names[0], numbers })
        })
    }
}

enum Effect {
    OnMember(usize, Arc<Handled<Member, Told>>),
    OnCoordinator(usize, Arc<Handled<Coordinator, Asked>>),
}

impl Job {
    pub(crate) fn post(&mut self, line: u64, down: bool, message: Part<Message>) -> bool {
        let packet = Packet::new(line, down, message);
        let news = !self.is_spent(&packet) && self.packets.iter().all(|known| known.name != packet.name);
        if news {
            self.packets.push(packet);
        }
        news
    }

    pub(crate) fn deliver(&mut self, index: usize) {
        let packet = Arc::clone(&self.packets[index]);
        if !packet.down && matches!(*packet.message, Message::Hello(_)) {
            self.line(packet.line).greeted = true;
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
            Effect::OnCoordinator(chair, handled) => self.decided(chair, &handled),
        }
    }

    fn effect(&self, packet: &Packet) -> Effect {
        let Packet { line, down, message, name, .. } = packet;
        let Line { worker, chair, .. } = self.lines[line];
        if *down {
            let event = || member::Event::Received((**message).clone());
            return Effect::OnMember(worker, member_after(&self.processes[worker].member, *name, event));
        }
        let Some(Chair { machine, now, .. }) = self.chairs[chair].as_deref() else { unreachable!("it arrives") };
        let said = self.twisted(chair, message);
        let name = said.as_ref().map_or(*name, |said| all([u128::from(*line), said.name()]));
        let message = said.as_ref().unwrap_or(message);
        let event = || coordinator::Event::Received(Connection(*line), (**message).clone());
        Effect::OnCoordinator(chair, coordinator_after(machine, name, event, *now))
    }

    /// A coordinator hears first who is at the other end: what comes before breaks the connection, and is no more than that.
    fn is_heard(&self, packet: &Packet) -> bool {
        packet.down || self.lines[&packet.line].greeted || matches!(*packet.message, Message::Hello(_))
    }

    /// Whether a delivery does more than to add messages.
    pub(crate) fn changes(&self, packet: usize) -> bool {
        let packet = &self.packets[packet];
        if !self.is_heard(packet) {
            return false;
        }
        if !packet.down && !self.lines[&packet.line].greeted {
            return true;
        }
        match self.effect(packet) {
            Effect::OnMember(_, handled) => {
                !handled.same || handled.commands.iter().any(|told| !matches!(told, Told::Say(_)))
            }
            Effect::OnCoordinator(_, handled) => {
                !handled.same || handled.commands.iter().any(|asked| !matches!(asked, Asked::Say(..)))
            }
        }
    }

    /// Delivers whatever only adds messages.
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

    /// Forgets lines that are closed at both ends, and messages that nobody receives any more or that will do nothing ever again.
    pub(crate) fn forget(&mut self) {
        let is_over = |line: &Line| !line.open_there && (!line.open_here || self.chairs[line.chair].is_none());
        if self.packets.iter().any(|packet| self.is_spent(packet)) {
            let packets = std::mem::take(&mut self.packets);
            self.packets = packets.into_iter().filter(|packet| !self.is_spent(packet)).collect();
        }
        if self.lines.values().any(is_over) {
            let kept = self.lines.iter().filter(|(_, line)| !is_over(line));
            self.lines = Arc::new(kept.map(|(number, line)| (*number, line.clone())).collect());
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

    /// A connection is closed for ever, and generations of which somebody heard a newer one do not come back.
    fn is_spent(&self, packet: &Packet) -> bool {
        let Packet { line, down, message, .. } = packet;
        let Some(Line { worker, incarnation, chair, open_here, open_there, .. }) = self.lines.get(line) else {
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
        let Some(chair) = self.chairs[*chair].as_ref().filter(|_| *open_here) else { return true };
        let newest = chair.record.active.as_ref().map_or(0, |active| active.generation);
        match &**message {
            Message::Broken { generation, .. } | Message::CaughtUp { generation, .. } => *generation < newest,
            _ => false,
        }
    }
}
