//! What the product's two state machines are told, and what comes of their commands.

use std::sync::Arc;

use lockstep_elastic::{
    Active, Coordinator, Member, Message, Record,
    coordinator::{self, Outcome},
    member,
};

use crate::{
    job::{Chair, Job, LATER, Line, NOW, Process},
    names::names,
    part::{Asked, Handled, Part, Told, coordinator_after, coordinator_later, member_after},
    rules::Mutant,
    worker::{Worker, base, state},
};

impl Job {
    pub(crate) fn act(&mut self, worker: usize, event: member::Event) {
        let name = names(&event)[0];
        let handled = member_after(&self.processes[worker].member, name, || event);
        self.became(worker, &handled);
    }

    pub(crate) fn became(&mut self, worker: usize, handled: &Handled<Member, Told>) {
        let Handled { after, commands, same } = handled;
        if !same {
            self.process(worker).member = after.clone();
        }
        for command in commands {
            match command {
                Told::Say(message) => {
                    if let Some(line) = self.processes[worker].line {
                        self.post(line, false, message.clone());
                    }
                }
                Told::Seal => {
                    let hasty = self.mutant == Some(Mutant::ReportsBeforeSealing);
                    let process = self.process(worker);
                    if hasty && !process.worker.copying {
                        let held = process.worker.held.as_deref().map(state);
                        self.act(worker, member::Event::Stand { held, broken: None });
                    } else {
                        process.worker.sealing = true;
                    }
                }
                Told::Enter(active) => self.enter(worker, active.clone()),
                Told::Follow(generation) => self.process(worker).worker.trail = Some(*generation),
            }
        }
    }

    fn enter(&mut self, worker: usize, active: Part<Active>) {
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
        let Some(Chair { machine, now, .. }) = self.chairs[index].as_deref() else { return };
        let handled = coordinator_after(machine, name, || event, *now);
        self.decided(index, &handled);
    }

    pub(crate) fn decided(&mut self, index: usize, handled: &Handled<Coordinator, Asked>) {
        let Handled { after, commands, same } = handled;
        if let Some(chair) = self.chair(index).filter(|_| !same) {
            chair.machine = after.clone();
        }
        for command in commands {
            match command {
                Asked::Say(line, message) => {
                    if self.lines[line].open_here {
                        self.post(*line, true, message.clone());
                    }
                }
                Asked::Close(line) => {
                    self.line(*line).open_here = false;
                    let Line { worker, incarnation, .. } = self.lines[line];
                    let process = &self.processes[worker];
                    if process.incarnation == incarnation && process.line == Some(*line) {
                        self.hang_up(worker);
                    }
                }
                Asked::Swap(record) => {
                    self.beyond |= !self.bounds.absent && self.gives_up_on_somebody(index, record);
                    if let Some(chair) = self.chair(index) {
                        chair.swap = Some(record.clone());
                    }
                }
                Asked::End(Outcome::Fatal { message, .. } | Outcome::Diverged { message, .. }) => {
                    self.violated(format!("coordinator {index}: {message}"))
                }
                Asked::End(_) => self.end_chair(index),
            }
        }
    }

    /// Whether an older state is taken while somebody who is alive is not connected with this coordinator.
    fn gives_up_on_somebody(&self, index: usize, record: &Record) -> bool {
        let Some(chair) = self.chairs[index].as_ref() else { return false };
        let rollback = record.active.as_ref().is_some_and(|active| active.rollback);
        let is_here = |process: &Process| {
            let line = process.line.and_then(|line| self.lines.get(&line));
            line.is_some_and(|line| line.chair == index && line.open_here && line.greeted)
        };
        rollback && record.active != chair.record.active && !self.processes.iter().all(|process| is_here(process))
    }

    fn chair(&mut self, index: usize) -> Option<&mut Chair> {
        self.chairs[index].as_mut().map(Arc::make_mut)
    }

    /// Whether anything comes of time for this coordinator. To ask again is nothing new.
    pub(crate) fn comes_due(&self, index: usize) -> bool {
        let Some(chair) = self.chairs[index].as_deref() else { return false };
        let later = coordinator_later(&chair.machine, self.heard_by(index), LATER);
        let asks = |asked: &Asked| matches!(asked, Asked::Say(_, said) if matches!(**said, Message::Prepare { .. }));
        let stages = (chair.machine.status(NOW).stage, later.after.status(LATER).stage);
        !later.commands.iter().all(asks) || stages.0 != stages.1
    }

    /// Time passes, in which members say that they are alive.
    pub(crate) fn time_passes(&mut self, index: usize) {
        let heard = self.heard_by(index);
        let Some(chair) = self.chair(index) else { return };
        chair.now = LATER;
        let later = coordinator_later(&chair.machine, heard, LATER);
        self.decided(index, &later);
    }

    fn heard_by(&self, index: usize) -> Vec<u64> {
        let here = |line: &Line| line.chair == index && line.open_here && line.greeted;
        self.lines.iter().filter(|(_, line)| here(line)).map(|(line, _)| *line).collect()
    }

    pub(crate) fn swap(&mut self, index: usize) {
        let (newest, mutant) = (self.store.1, self.mutant);
        let Some(chair) = self.chair(index) else { return };
        let Some(record) = chair.swap.take() else { return };
        let activates = record.active != chair.record.active;
        let heedless = activates && mutant == Some(Mutant::RecordsWithoutVersion);
        if chair.known != newest && !heedless {
            return self.coordinate(index, coordinator::Event::Conflict);
        }
        let version = newest + 1;
        (chair.known, chair.record) = (version, record.clone());
        self.chairs.iter_mut().flatten().map(Arc::make_mut).for_each(|chair| chair.fresh = false);
        self.store = (Some(record.clone()), version);
        if let (true, Some(active)) = (activates, &record.active) {
            self.check_base(active);
        }
        self.coordinate(index, coordinator::Event::Swapped);
    }
}
