//! What the product's two state machines are told, and what comes of their commands.

use std::{rc::Rc, time::Duration};

use lockstep_elastic::{
    Message,
    coordinator::{self, Connection},
    member,
};

use crate::{
    job::{Job, Line, Packet},
    part::{Part, coordinator_after, digest, member_after},
    rules::Mutant,
    worker::{Worker, base, state},
};

impl Job {
    fn post(&mut self, packet: Packet) {
        let closed = matches!(packet.message, Message::Heartbeat | Message::Checkpoint(_) | Message::Progress { .. });
        if !closed && !self.packets.iter().any(|known| known.1 == packet) {
            let hash = digest(&packet);
            self.packets.push(Rc::new((hash, packet)));
        }
    }

    pub(crate) fn act(&mut self, worker: usize, event: member::Event) {
        let name = digest(&event);
        self.act_on(worker, event, name);
    }

    /// An event, and what tells it from all others.
    pub(crate) fn act_on(&mut self, worker: usize, event: member::Event, name: u128) {
        let (after, commands) = member_after(&self.processes[worker].member, event, name);
        if after.digest() != self.processes[worker].member.digest() {
            self.process(worker).member = after;
        }
        for command in commands.iter().cloned() {
            match command {
                member::Command::Send(message) => {
                    if let Some(line) = self.processes[worker].line {
                        self.post(Packet { line, down: false, message });
                    }
                }
                member::Command::Seal { .. } => {
                    let hasty = self.mutant == Some(Mutant::ReportsBeforeSealing);
                    let process = self.process(worker);
                    if hasty && !process.worker.copying {
                        let held = process.worker.held.as_deref().map(state);
                        self.act(worker, member::Event::Stand { held, broken: None });
                    } else {
                        process.worker.sealing = true;
                    }
                }
                member::Command::Enter(group) => self.enter(worker, group.generation),
                member::Command::Follow(lead) => self.process(worker).worker.trail = Some(lead.generation),
                member::Command::Feed(_)
                | member::Command::Reconnect
                | member::Command::Drain { .. }
                | member::Command::Abort { .. }
                | member::Command::Refused { .. }
                | member::Command::Released
                | member::Command::WakeAt(_) => {}
            }
        }
    }

    pub(crate) fn enter(&mut self, worker: usize, generation: u64) {
        let Some(active) = self.store.0.as_ref().and_then(|record| record.active.clone()) else { return };
        // A later one may be recorded already: what it was committed to is in the message, which the chairs keep.
        let recorded = self.chairs.iter().filter_map(|chair| chair.as_ref()?.record.active.clone());
        let Some(active) = recorded.chain([active]).find(|active| active.generation == generation) else { return };
        let process = self.process(worker);
        process.entered = generation;
        let copying = process.worker.held.as_deref().map(state) != Some(base(&active));
        process.worker =
            Worker { held: process.worker.held.clone(), group: Some(Part::new(active)), copying, ..Worker::default() };
        if !copying {
            self.act(worker, member::Event::Entered);
        }
    }

    pub(crate) fn coordinate(&mut self, index: usize, event: coordinator::Event) {
        let name = digest(&event);
        self.coordinate_on(index, event, name);
    }

    pub(crate) fn coordinate_on(&mut self, index: usize, event: coordinator::Event, name: u128) {
        let Some(chair) = self.chairs[index].as_ref() else { return };
        let (after, commands) = coordinator_after(&chair.machine, event, chair.now, name);
        if after.digest() != chair.machine.digest()
            && let Some(chair) = self.chairs[index].change()
        {
            chair.machine = after;
        }
        for command in commands.iter().cloned() {
            match command {
                coordinator::Command::Send(Connection(line), message) => {
                    if self.lines[&line].open_here {
                        self.post(Packet { line, down: true, message });
                    }
                }
                coordinator::Command::Close(Connection(line)) => {
                    self.line(line).open_here = false;
                    let Line { worker, incarnation, .. } = self.lines[&line];
                    let process = &self.processes[worker];
                    if process.incarnation == incarnation && process.line == Some(line) {
                        self.hang_up(worker);
                    }
                }
                coordinator::Command::Swap(record) => {
                    if let Some(chair) = self.chairs[index].change() {
                        chair.swap = Some(Part::new(record.clone()));
                    }
                }
                coordinator::Command::End(_) => self.end_chair(index),
                coordinator::Command::Publish { .. }
                | coordinator::Command::Changed(_)
                | coordinator::Command::WakeAt(_) => {}
            }
        }
    }

    /// Time passed, in which members said that they are alive.
    pub(crate) fn passed(&mut self, index: usize, now: Duration) {
        if let Some(chair) = self.chairs[index].change() {
            chair.now = now;
        }
        let lines: Vec<u64> = self
            .lines
            .iter()
            .filter(|(_, line)| line.chair == index && line.open_here)
            .map(|(line, _)| *line)
            .collect();
        for line in lines {
            self.coordinate(index, coordinator::Event::Received(Connection(line), Message::Heartbeat));
        }
        self.coordinate(index, coordinator::Event::Tick);
    }

    pub(crate) fn swap(&mut self, index: usize) {
        let Some(chair) = self.chairs[index].change() else { return };
        let Some(record) = chair.swap.take() else { return };
        let activates = record.active != chair.record.active;
        let heedless = activates && self.mutant == Some(Mutant::RecordsWithoutVersion);
        if chair.known != self.store.1 && !heedless {
            return self.coordinate(index, coordinator::Event::Conflict);
        }
        let version = self.store.1 + 1;
        (chair.known, chair.record) = (version, record.clone());
        self.store = Part::new((Some((*record).clone()), version));
        if let (true, Some(active)) = (activates, &record.active) {
            self.check_base(active);
        }
        self.coordinate(index, coordinator::Event::Swapped);
    }
}
