//! The smallest training that the rules allow on top of a member: contribute, complete, learn that
//! all have done it, seal, copy.

use lockstep_elastic::{Active, Break, Digest, HeldState, member::Event};

use crate::{
    interned::Interned,
    job::{Job, SAMPLER},
    rules::Mutant,
};

/// The state and the activity of a worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    /// The generation of each step that it holds.
    pub(crate) held: Option<Vec<u64>>,
    /// The generation whose collectives it takes part in.
    pub(crate) group: Option<Interned<Active>>,
    pub(crate) copying: bool,
    pub(crate) contributed: bool,
    /// True once it knows that all members have done its last step.
    pub(crate) stable: bool,
    /// True once it was asked to seal.
    pub(crate) sealing: bool,
    /// The generation that it follows.
    pub(crate) trail: Option<u64>,
}

/// A possible action of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerAction {
    Contribute,
    Complete,
    LearnStable,
    Seal,
    Break,
    Copy,
    /// The worker receives this worker's state of the generation that it follows.
    TakeOver(usize),
}

/// Returns the state at the end of a lineage. Its digest is the lineage itself.
pub(crate) fn state(lineage: &[u64]) -> HeldState {
    let mut digest = [0; 32];
    digest.iter_mut().zip(lineage).for_each(|(byte, generation)| *byte = *generation as u8);
    HeldState { step: lineage.len() as u64, digest: Digest::from_bytes(digest), sampler: SAMPLER }
}

/// Returns the generation of each step of a state.
pub(crate) fn lineage(of: &HeldState) -> Vec<u64> {
    of.digest.as_bytes()[..of.step as usize].iter().map(|generation| u64::from(*generation)).collect()
}

pub(crate) fn base(active: &Active) -> HeldState {
    HeldState { step: active.base_step, digest: active.base_digest, sampler: active.sampler }
}

impl Job {
    pub(crate) fn worker_actions(&self, worker: usize) -> Vec<WorkerAction> {
        let process = &self.processes[worker];
        let mut worker_actions = Vec::new();
        if let Some(generation) = process.worker.trail {
            let held = process.worker.held.as_ref().map_or(0, Vec::len);
            let ahead = |of: &usize| self.holds_of(*of, generation).is_some_and(|theirs| theirs.len() > held);
            worker_actions.extend((0..self.bounds.workers).filter(ahead).map(WorkerAction::TakeOver));
            worker_actions.push(WorkerAction::Seal);
        }
        let Some(group) = process.worker.group.as_ref() else { return worker_actions };
        let Worker { held, copying, contributed, stable, sealing, .. } = &process.worker;
        let generation = group.generation;
        let everybody = group.members.len();
        let steps = held.as_ref().map_or(0, Vec::len) as u64;
        let said = |what: &std::collections::BTreeMap<(u64, u64), u8>, step: u64| {
            what.get(&(generation, step)).map_or(0, |mask| mask.count_ones()) as usize == everybody
        };
        if *copying {
            if group.members.iter().any(|ranked| self.is_source(ranked, group)) {
                worker_actions.push(WorkerAction::Copy);
            }
        } else {
            if !contributed && steps < self.bounds.steps && (steps == group.base_step || *stable) {
                worker_actions.push(WorkerAction::Contribute);
            }
            if *contributed && said(&self.contributed, steps) {
                worker_actions.push(WorkerAction::Complete);
            }
            if !stable && steps > group.base_step && said(&self.done, steps) {
                worker_actions.push(WorkerAction::LearnStable);
            }
        }
        if *sealing {
            worker_actions.push(WorkerAction::Seal);
        } else if group.members.iter().any(|ranked| !self.takes_part(ranked, generation)) {
            worker_actions.push(WorkerAction::Break);
        }
        worker_actions
    }

    /// Returns the state that a worker holds as a member of this generation.
    fn holds_of(&self, worker: usize, generation: u64) -> Option<&Vec<u64>> {
        let Worker { held, group, copying, .. } = &self.processes[worker].worker;
        let trains = group.as_ref().is_some_and(|group| group.generation == generation) && !copying;
        held.as_ref().filter(|_| trains)
    }

    fn process_of(&self, ranked: &lockstep_elastic::RankedMember) -> Option<&crate::job::Process> {
        self.processes
            .iter()
            .map(|process| &**process)
            .find(|process| process.id.incarnation == ranked.incarnation && process.id.pod == ranked.pod)
    }

    /// Returns true if this member is in the generation, or may still enter it.
    fn takes_part(&self, ranked: &lockstep_elastic::RankedMember, generation: u64) -> bool {
        self.process_of(ranked).is_some_and(|process| {
            let in_it = process.worker.group.as_ref().is_some_and(|group| group.generation == generation);
            in_it || process.entered < generation
        })
    }

    fn is_source(&self, ranked: &lockstep_elastic::RankedMember, group: &Active) -> bool {
        self.process_of(ranked).is_some_and(|process| {
            let there = process.worker.group.as_ref().is_some_and(|theirs| theirs.generation == group.generation);
            let held = process.worker.held.as_deref().map(state);
            there && !process.worker.copying && held == Some(base(group))
        })
    }

    pub(crate) fn work(&mut self, index: usize, action: WorkerAction) {
        if let Some(generation) = self.processes[index].worker.trail {
            return self.follow(index, generation, action);
        }
        let process = self.process(index);
        let Some(group) = process.worker.group.clone() else { return };
        let bit = 1 << index;
        let generation = group.generation;
        let worker = &mut process.worker;
        match action {
            WorkerAction::Contribute => {
                worker.contributed = true;
                let steps = worker.held.as_ref().map_or(0, Vec::len) as u64;
                *self.contributed.entry((generation, steps)).or_default() |= bit;
            }
            WorkerAction::Complete => {
                let mut held = worker.held.clone().unwrap_or_default();
                held.push(generation);
                (worker.contributed, worker.stable, worker.held) = (false, false, Some(held.clone()));
                *self.done.entry((generation, held.len() as u64)).or_default() |= bit;
                if self.mutant == Some(Mutant::ToldAtLocalCompletion) {
                    self.tell(&held);
                }
            }
            WorkerAction::LearnStable => {
                worker.stable = true;
                let held = worker.held.clone().unwrap_or_default();
                self.tell(&held);
            }
            WorkerAction::Seal | WorkerAction::Break => {
                let broken = (action == WorkerAction::Break).then(|| Break::from("a peer is gone"));
                let held = if worker.copying { None } else { worker.held.clone() };
                *worker = Worker { held: held.clone(), ..Worker::default() };
                self.act(index, Event::Sealed { held: held.as_deref().map(state), broken });
            }
            WorkerAction::Copy => {
                let lineage = lineage(&base(&group));
                let worker = &mut self.process(index).worker;
                (worker.held, worker.copying) = (Some(lineage), false);
                self.act(index, Event::Entered);
            }
            WorkerAction::TakeOver(_) => {}
        }
        self.check_divergence(generation);
    }

    fn follow(&mut self, index: usize, generation: u64, action: WorkerAction) {
        let worker = &self.processes[index].worker;
        match action {
            WorkerAction::TakeOver(source) => {
                let held = self.holds_of(source, generation).cloned();
                self.process(index).worker.held = held;
                self.act(index, Event::TookOver);
                self.act(index, Event::CaughtUp);
            }
            WorkerAction::Seal => {
                let held = worker.held.clone();
                self.process(index).worker = Worker { held: held.clone(), ..Worker::default() };
                self.act(index, Event::Sealed { held: held.as_deref().map(state), broken: None });
            }
            WorkerAction::Contribute
            | WorkerAction::Complete
            | WorkerAction::LearnStable
            | WorkerAction::Break
            | WorkerAction::Copy => {}
        }
    }

    /// Checks that two members of a generation differ by one step at most, and agree on all common
    /// steps.
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
                    self.violated(format!(
                        "in generation {generation} one member holds {one:?}, another one {other:?}"
                    ));
                }
            }
        }
    }
}
