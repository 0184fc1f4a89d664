//! Passes events to the product's two state machines and executes their commands.

use std::sync::Arc;

use lockstep_elastic::{
    Active, Coordinator, Member, Message, Record,
    coordinator::{self, Outcome},
    member,
};

use crate::{
    interned::{
        CoordinatorCommand, Handled, Interned, MemberCommand, coordinator_after, coordinator_later, member_after,
    },
    job::{Connection, CoordinatorProcess, Job, LATER, NOW, Process},
    names::names,
    rules::Mutant,
    worker::{Worker, base, state},
};

impl Job {
    pub(crate) fn act(&mut self, worker: usize, event: member::Event) {
        let name = names(&event)[0];
        let handled = member_after(&self.processes[worker].member, name, || event);
        self.became(worker, &handled);
    }

    pub(crate) fn became(&mut self, worker: usize, handled: &Handled<Member, MemberCommand>) {
        let Handled { after, commands, same } = handled;
        if !same {
            self.process(worker).member = after.clone();
        }
        for command in commands {
            match command {
                MemberCommand::Say(message) => {
                    if let Some(connection) = self.processes[worker].connection {
                        self.post(connection, false, message.clone());
                    }
                }
                MemberCommand::Seal => {
                    let hasty = self.mutant == Some(Mutant::ReportsBeforeSealing);
                    let process = self.process(worker);
                    if hasty && !process.worker.copying {
                        let held = process.worker.held.as_deref().map(state);
                        self.act(worker, member::Event::Sealed { held, broken: None });
                    } else {
                        process.worker.sealing = true;
                    }
                }
                MemberCommand::Enter(active) => self.enter(worker, active.clone()),
                MemberCommand::Follow(generation) => self.process(worker).worker.trail = Some(*generation),
            }
        }
    }

    fn enter(&mut self, worker: usize, active: Interned<Active>) {
        let process = self.process(worker);
        process.entered = active.generation;
        let copying = process.worker.held.as_deref().map(state) != Some(base(&active));
        process.worker =
            Worker { held: process.worker.held.clone(), group: Some(active), copying, ..Worker::default() };
        if !copying {
            self.act(worker, member::Event::Entered);
        }
    }

    pub(crate) fn coordinate(&mut self, index: usize, event: coordinator::Event) {
        let name = names(&event)[0];
        let Some(CoordinatorProcess { machine, now, .. }) = self.coordinators[index].as_deref() else { return };
        let handled = coordinator_after(machine, name, || event, *now);
        self.decided(index, &handled);
    }

    pub(crate) fn decided(&mut self, index: usize, handled: &Handled<Coordinator, CoordinatorCommand>) {
        let Handled { after, commands, same } = handled;
        if let Some(coordinator) = self.coordinator(index).filter(|_| !same) {
            coordinator.machine = after.clone();
        }
        for command in commands {
            match command {
                CoordinatorCommand::Say(connection, message) => {
                    if self.connections[connection].open_here {
                        self.post(*connection, true, message.clone());
                    }
                }
                CoordinatorCommand::Close(connection) => {
                    self.connection(*connection).open_here = false;
                    let Connection { worker, incarnation, .. } = self.connections[connection];
                    let process = &self.processes[worker];
                    if process.incarnation == incarnation && process.connection == Some(*connection) {
                        self.hang_up(worker);
                    }
                }
                CoordinatorCommand::Swap(record) => {
                    self.beyond |= !self.bounds.absent && self.gives_up_a_living_process(index, record);
                    if let Some(coordinator) = self.coordinator(index) {
                        coordinator.swap = Some(record.clone());
                    }
                }
                CoordinatorCommand::End(Outcome::Fatal { message, .. } | Outcome::Diverged { message, .. }) => {
                    self.violated(format!("coordinator {index}: {message}"))
                }
                CoordinatorCommand::End(_) => self.end_coordinator(index),
            }
        }
    }

    /// Returns true if an older state is chosen while a living process is not connected to this
    /// coordinator.
    fn gives_up_a_living_process(&self, index: usize, record: &Record) -> bool {
        let Some(coordinator) = self.coordinators[index].as_ref() else { return false };
        let rollback = record.active.as_ref().is_some_and(|active| active.rollback);
        let is_here = |process: &Process| {
            let connection = process.connection.and_then(|connection| self.connections.get(&connection));
            connection
                .is_some_and(|connection| connection.coordinator == index && connection.open_here && connection.greeted)
        };
        rollback && record.active != coordinator.record.active && !self.processes.iter().all(|process| is_here(process))
    }

    fn coordinator(&mut self, index: usize) -> Option<&mut CoordinatorProcess> {
        self.coordinators[index].as_mut().map(Arc::make_mut)
    }

    /// Returns true if the passing of time changes this coordinator. A repeated request is not a
    /// change.
    pub(crate) fn comes_due(&self, index: usize) -> bool {
        let Some(coordinator) = self.coordinators[index].as_deref() else { return false };
        let later = coordinator_later(&coordinator.machine, self.heard_by(index), LATER);
        let asks = |asked: &CoordinatorCommand| matches!(asked, CoordinatorCommand::Say(_, said) if matches!(**said, Message::Prepare { .. }));
        let stages = (coordinator.machine.status(NOW).stage, later.after.status(LATER).stage);
        !later.commands.iter().all(asks) || stages.0 != stages.1
    }

    /// Lets time pass while the members send heartbeats.
    pub(crate) fn time_passes(&mut self, index: usize) {
        let heard = self.heard_by(index);
        let Some(coordinator) = self.coordinator(index) else { return };
        coordinator.now = LATER;
        let later = coordinator_later(&coordinator.machine, heard, LATER);
        self.decided(index, &later);
    }

    fn heard_by(&self, index: usize) -> Vec<u64> {
        let here =
            |connection: &Connection| connection.coordinator == index && connection.open_here && connection.greeted;
        self.connections.iter().filter(|(_, connection)| here(connection)).map(|(connection, _)| *connection).collect()
    }

    pub(crate) fn swap(&mut self, index: usize) {
        let (newest, mutant) = (self.store.1, self.mutant);
        let Some(coordinator) = self.coordinator(index) else { return };
        let Some(record) = coordinator.swap.take() else { return };
        let activates = record.active != coordinator.record.active;
        let heedless = activates && mutant == Some(Mutant::RecordsWithoutVersion);
        if coordinator.known != newest && !heedless {
            return self.coordinate(index, coordinator::Event::Conflict);
        }
        let version = newest + 1;
        (coordinator.known, coordinator.record) = (version, record.clone());
        self.coordinators.iter_mut().flatten().map(Arc::make_mut).for_each(|coordinator| coordinator.fresh = false);
        self.store = (Some(record.clone()), version);
        if let (true, Some(active)) = (activates, &record.active) {
            self.check_base(active);
        }
        self.coordinate(index, coordinator::Event::Swapped);
    }
}
