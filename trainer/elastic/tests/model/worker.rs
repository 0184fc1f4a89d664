//! The training on top of a member, as small as the rules allow: contribute, complete, know that all have done it, stop, copy.

use lockstep_elastic::{Active, Break, Digest, State, member::Event};

use crate::{
    job::{Job, SAMPLER},
    part::Part,
    rules::Mutant,
};

/// What a worker holds and does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    /// The generation of each step that it holds.
    pub(crate) held: Option<Vec<u64>>,
    /// The generation whose collectives it takes part in.
    pub(crate) group: Option<Part<Active>>,
    pub(crate) copying: bool,
    pub(crate) contributed: bool,
    /// It knows that all have done what it has done.
    pub(crate) stable: bool,
    /// It is to stand still.
    pub(crate) sealing: bool,
    /// The generation that it follows.
    pub(crate) trail: Option<u64>,
}

/// What a worker may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Contribute,
    Complete,
    LearnStable,
    Stand,
    Break,
    Copy,
    /// What this worker holds of the generation that it follows.
    TakeOver(usize),
}

/// The state that a lineage ends in, with a digest that tells it.
pub(crate) fn state(lineage: &[u64]) -> State {
    let mut digest = [0; 32];
    digest.iter_mut().zip(lineage).for_each(|(byte, generation)| *byte = *generation as u8);
    State { step: lineage.len() as u64, digest: Digest::from_bytes(digest), sampler: SAMPLER }
}

/// The generation of each step that a state came from.
pub(crate) fn lineage(of: &State) -> Vec<u64> {
    of.digest.as_bytes()[..of.step as usize].iter().map(|generation| u64::from(*generation)).collect()
}

pub(crate) fn base(active: &Active) -> State {
    State { step: active.base_step, digest: active.base_digest, sampler: active.sampler }
}

impl Job {
    pub(crate) fn deeds(&self, worker: usize) -> Vec<Deed> {
        let process = &self.processes[worker];
        let mut deeds = Vec::new();
        if let Some(generation) = process.worker.trail {
            let held = process.worker.held.as_ref().map_or(0, Vec::len);
            let ahead = |of: &usize| self.holds_of(*of, generation).is_some_and(|theirs| theirs.len() > held);
            deeds.extend((0..self.bounds.workers).filter(ahead).map(Deed::TakeOver));
            deeds.push(Deed::Stand);
        }
        let Some(group) = process.worker.group.as_ref() else { return deeds };
        let Worker { held, copying, contributed, stable, sealing, .. } = &process.worker;
        let generation = group.generation;
        let everybody = group.members.len();
        let steps = held.as_ref().map_or(0, Vec::len) as u64;
        let said = |what: &std::collections::BTreeMap<(u64, u64), u8>, step: u64| {
            what.get(&(generation, step)).map_or(0, |mask| mask.count_ones()) as usize == everybody
        };
        if *copying {
            if group.members.iter().any(|seat| self.is_source(seat, group)) {
                deeds.push(Deed::Copy);
            }
        } else {
            if !contributed && steps < self.bounds.steps && (steps == group.base_step || *stable) {
                deeds.push(Deed::Contribute);
            }
            if *contributed && said(&self.contributed, steps) {
                deeds.push(Deed::Complete);
            }
            if !stable && steps > group.base_step && said(&self.done, steps) {
                deeds.push(Deed::LearnStable);
            }
        }
        if *sealing {
            deeds.push(Deed::Stand);
        } else if group.members.iter().any(|seat| !self.takes_part(seat, generation)) {
            deeds.push(Deed::Break);
        }
        deeds
    }

    /// What a worker holds as a member of this generation.
    fn holds_of(&self, worker: usize, generation: u64) -> Option<&Vec<u64>> {
        let Worker { held, group, copying, .. } = &self.processes[worker].worker;
        let trains = group.as_ref().is_some_and(|group| group.generation == generation) && !copying;
        held.as_ref().filter(|_| trains)
    }

    fn seated(&self, seat: &lockstep_elastic::Seat) -> Option<&crate::job::Process> {
        self.processes
            .iter()
            .map(|process| &**process)
            .find(|process| process.id.incarnation == seat.incarnation && process.id.pod == seat.pod)
    }

    /// Whether this member is in the generation, or may still come.
    fn takes_part(&self, seat: &lockstep_elastic::Seat, generation: u64) -> bool {
        self.seated(seat).is_some_and(|process| {
            let in_it = process.worker.group.as_ref().is_some_and(|group| group.generation == generation);
            in_it || process.entered < generation
        })
    }

    fn is_source(&self, seat: &lockstep_elastic::Seat, group: &Active) -> bool {
        self.seated(seat).is_some_and(|process| {
            let there = process.worker.group.as_ref().is_some_and(|theirs| theirs.generation == group.generation);
            let held = process.worker.held.as_deref().map(state);
            there && !process.worker.copying && held == Some(base(group))
        })
    }

    pub(crate) fn work(&mut self, index: usize, deed: Deed) {
        if let Some(generation) = self.processes[index].worker.trail {
            return self.follow(index, generation, deed);
        }
        let process = self.process(index);
        let Some(group) = process.worker.group.clone() else { return };
        let bit = 1 << index;
        let generation = group.generation;
        let worker = &mut process.worker;
        match deed {
            Deed::Contribute => {
                worker.contributed = true;
                let steps = worker.held.as_ref().map_or(0, Vec::len) as u64;
                *self.contributed.entry((generation, steps)).or_default() |= bit;
            }
            Deed::Complete => {
                let mut held = worker.held.clone().unwrap_or_default();
                held.push(generation);
                (worker.contributed, worker.stable, worker.held) = (false, false, Some(held.clone()));
                *self.done.entry((generation, held.len() as u64)).or_default() |= bit;
                if self.mutant == Some(Mutant::ToldAtLocalCompletion) {
                    self.tell(&held);
                }
            }
            Deed::LearnStable => {
                worker.stable = true;
                let held = worker.held.clone().unwrap_or_default();
                self.tell(&held);
            }
            Deed::Stand | Deed::Break => {
                let broken = (deed == Deed::Break).then(|| Break::from("a peer is gone"));
                let held = if worker.copying { None } else { worker.held.clone() };
                *worker = Worker { held: held.clone(), ..Worker::default() };
                self.act(index, Event::Stand { held: held.as_deref().map(state), broken });
            }
            Deed::Copy => {
                let lineage = lineage(&base(&group));
                let worker = &mut self.process(index).worker;
                (worker.held, worker.copying) = (Some(lineage), false);
                self.act(index, Event::Entered);
            }
            Deed::TakeOver(_) => {}
        }
        self.check_divergence(generation);
    }

    fn follow(&mut self, index: usize, generation: u64, deed: Deed) {
        let worker = &self.processes[index].worker;
        match deed {
            Deed::TakeOver(source) => {
                let held = self.holds_of(source, generation).cloned();
                self.process(index).worker.held = held;
                self.act(index, Event::TookOver);
                self.act(index, Event::CaughtUp);
            }
            Deed::Stand => {
                let held = worker.held.clone();
                self.process(index).worker = Worker { held: held.clone(), ..Worker::default() };
                self.act(index, Event::Stand { held: held.as_deref().map(state), broken: None });
            }
            Deed::Contribute | Deed::Complete | Deed::LearnStable | Deed::Break | Deed::Copy => {}
        }
    }

    /// Inside a generation two members differ by one step at most, and in nothing that both did.
    fn check_divergence(&mut self, generation: u64) {
        let held: Vec<Vec<u64>> = self
            .processes
            .iter()
            .filter(|process| !process.worker.copying)
            .filter(|process| process.worker.group.as_ref().is_some_and(|group| group.generation == generation))
            .filter_map(|process| process.worker.held.clone())
            .collect();
        for one in &held {
            for other in &held {
                let shared = one.len().min(other.len());
                if one[..shared] != other[..shared] || one.len().abs_diff(other.len()) > 1 {
                    self.violated(format!("in generation {generation} one holds {one:?}, another {other:?}"));
                }
            }
        }
    }
}
