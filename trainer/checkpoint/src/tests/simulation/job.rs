//! A job of several members. It saves step after step, loses members and restarts until enough has
//! happened.

use std::{
    num::NonZeroU32,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicBool},
};

use super::{
    coverage::{Coverage, Fault, Moment, impossible},
    dice::{Dice, mixed},
    history::{checkpoints, id_of, ids, look},
    machine::{Machine, Planned, ProcessRole, World},
    planted_bug::Bug,
    process::Process,
    state::state,
    thread_pool::{Given, give},
};
use crate::{
    CheckpointError, CheckpointPart, Committed, Ended, Folder, Layout, Position, Pruned,
    checkpoint_id::CheckpointId,
    snapshotter::{BackgroundWriter, SaveCommand},
    tests::{
        number,
        state::{Loaded, SampleState, Whole, load},
    },
};

/// A run has at least so many saved steps and generations.
const STEPS: u64 = 50;
const GENERATIONS: u64 = 3;
/// A run has at least one fault for so many steps.
const STEPS_PER_FAULT: u64 = 3;
const MOST_MEMBERS: usize = 4;
const MOST_KEPT: usize = 3;
/// A planned fault may wait for its moment during so many processes.
const PATIENCE: u64 = 8;
/// The number of faults that are planned at a time.
const FAULTS_PLANNED: usize = 2;
/// The most failed loads in a row. More would be no accident.
const MOST_LOADS: usize = 50;

/// The events of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// Steps that the job tried to save.
    pub(super) steps: u64,
    pub(super) work: u64,
    pub(super) generations: u64,
    pub(super) restarts: u64,
    pub(super) saved: u64,
    /// Parts and commits that failed.
    pub(super) refused: u64,
    /// Commits of an old generation.
    pub(super) late: u64,
    pub(super) pruned: u64,
    /// Loads that skipped a damaged checkpoint, and loads that found none.
    pub(super) fallen_back: u64,
    pub(super) reset: u64,
    pub(super) coverage: Coverage,
    /// A digest of every operation and its result.
    pub(super) digest: u64,
}

pub(super) struct Job {
    machine: Arc<Machine>,
    keep_last: NonZeroU32,
    generation: u64,
    members: u32,
    step: u64,
    /// The number of the state that the members hold.
    number: u64,
    at_work: Vec<AtWork>,
    run: Run,
    /// The time when the next fault was planned.
    planned: u64,
    /// True once no more faults are planned.
    closing: bool,
}

struct AtWork {
    task: usize,
    generation: u64,
    given: Given<Done>,
}

enum Done {
    Ended(Ended),
    Pruned(Result<Pruned, CheckpointError>),
    Loaded(Result<Loaded, CheckpointError>),
    Panicked(String),
}

impl Job {
    pub(super) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let machine = Machine::new(seed, bug, false);
        let keep_last = number(1 + machine.world().dice.below(MOST_KEPT) as u32);
        let at_work = Vec::new();
        let run = Run::default();
        Self {
            machine,
            keep_last,
            generation: 0,
            members: 1,
            step: 0,
            number: 0,
            at_work,
            run,
            planned: 0,
            closing: false,
        }
    }

    /// Prints every event.
    pub(super) fn traced(self) -> Self {
        self.machine.world().traced = true;
        self
    }

    /// Runs to the end, or to the first violation.
    pub(super) fn run(mut self) -> Result<Run, String> {
        self.form();
        while !self.has_seen_enough() {
            self.plan();
            self.thaw();
            let lives = match self.dice(|dice| dice.below(100)) {
                0..8 => {
                    self.end_all();
                    false
                }
                8..16 => {
                    self.form();
                    true
                }
                16..24 => self.prune()?,
                _ => self.save()?,
            };
            let down = self.machine.world().down;
            if down || !lives && self.dice(|dice| dice.percent(50)) {
                self.restart()?;
            } else if !lives {
                // The remaining members hold the state in memory.
                self.form();
            }
        }
        self.close()?;
        let world = self.machine.world();
        (self.run.coverage, self.run.digest) = (world.coverage.clone(), world.digest);
        Ok(self.run.clone())
    }

    fn has_seen_enough(&self) -> bool {
        let Run { steps, generations, .. } = self.run;
        let faults = self.machine.world().coverage.faults();
        steps >= STEPS && generations >= GENERATIONS && STEPS_PER_FAULT * faults >= steps
    }

    fn dice<R>(&self, throw: impl FnOnce(&mut Dice) -> R) -> R {
        throw(&mut self.machine.world().dice)
    }

    /// Plans faults. Keeps earlier ones that may still find their moment.
    fn plan(&mut self) {
        let mut world = self.machine.world();
        let World { dice, planned, .. } = &mut *world;
        if self.run.work > self.planned + PATIENCE {
            // This moment is rare, so its fault waits.
            planned.retain(|planned| planned.moment == Moment::Replacing);
        }
        while planned.len() < FAULTS_PLANNED {
            self.planned = self.run.work;
            let (fault, moment) = match dice.below(100) {
                // A held-up committer returns to a step that a newer generation has reached as
                // well.
                0..12 => (Fault::Freeze, dice.one_of(&[Moment::Gathering, Moment::Publishing])),
                12..24 => (Fault::Freeze, Moment::Copying),
                _ => (dice.one_of(&Fault::ALL), dice.one_of(&Moment::ALL)),
            };
            let after = if moment == Moment::Replacing { dice.below(3) } else { dice.below(12) };
            let is_new = planned.iter().all(|planned| planned.moment != moment);
            if impossible(fault, moment).is_none() && moment != Moment::Loading && is_new {
                planned.push(Planned { fault, moment, after });
            }
        }
    }

    /// Plans a fault for the next load.
    fn plan_for_loading(&self) {
        let mut world = self.machine.world();
        let World { dice, planned, .. } = &mut *world;
        let (fault, moment, after) = (dice.one_of(&Fault::ALL), Moment::Loading, dice.below(12));
        if impossible(fault, moment).is_none() && dice.percent(30) {
            planned.push(Planned { fault, moment, after });
        }
    }

    /// Lets some held-up processes go on.
    fn thaw(&self) {
        let mut world = self.machine.world();
        let World { dice, tasks, .. } = &mut *world;
        tasks.iter_mut().for_each(|task| task.frozen &= !dice.percent(30));
    }

    /// Forms a new generation of the remaining members and perhaps others.
    fn form(&mut self) {
        self.generation += 1;
        self.run.generations += 1;
        self.machine.world().tasks.iter_mut().for_each(|task| task.is_late = true);
        self.members = 1 + self.dice(|dice| dice.below(MOST_MEMBERS)) as u32;
    }

    fn end_all(&self) {
        let mut world = self.machine.world();
        match world.dice.percent(50) {
            true => world.kill_all(),
            false => world.lose_power(),
        }
    }

    /// Lets the members write their parts and one of them commit. Returns true if the group lives
    /// on.
    fn save(&mut self) -> Result<bool, String> {
        self.run.steps += 1;
        // A state is sometimes saved again, as the last one of a job is.
        if self.step == 0 || self.closing || self.dice(|dice| dice.percent(85)) {
            self.step += 1 + self.dice(|dice| dice.below(5)) as u64 / 4;
            self.number = mixed(self.number ^ mixed(self.step << 8 | u64::from(self.members)));
        }
        let position = Position { step: self.step, generation: self.generation, ..Position::default() };
        let (state, writers) = (state(position, self.number), number(self.members));
        let layout = Arc::new(state.layout());
        let mut written = 0;
        while written < self.members {
            let Some(parts) = self.write(&state, &layout)? else { return Ok(false) };
            written = parts;
            // At the end of the job, parts are written until all are stored.
            if self.dice(|dice| dice.percent(50)) {
                break;
            }
        }
        let name = format!("committer of generation {}", self.generation);
        if written < self.members {
            self.begin(name, ProcessRole::Committer, move |worker| {
                Done::Ended(worker.perform(SaveCommand::Abandon { position }).ended)
            });
            return self.play(|_| {});
        }
        self.machine.world().history.is_tried(&state, self.number);
        let facts = state.facts();
        self.begin(name, ProcessRole::Committer, move |worker| {
            // All notes were reported as stored, so the committer looks once.
            let cancelled = Arc::new(AtomicBool::new(true));
            let facts = Box::new(|_: &[String]| Ok(facts));
            Done::Ended(worker.perform(SaveCommand::Commit { position, layout, writers, facts, cancelled }).ended)
        });
        self.play(|_| {})
    }

    /// Lets the members write their parts. Returns the number of written parts if all members live
    /// on.
    fn write(&mut self, state: &SampleState, layout: &Arc<Layout>) -> Result<Option<u32>, String> {
        let (position, writers) = (state.position, number(self.members));
        for writer in 0..self.members {
            let values = state.values()[layout.values_of(&layout.part(writer, writers))].to_vec();
            let part = CheckpointPart { position, layout: Arc::clone(layout), writer, writers };
            let name = format!("writer {writer} of {writers}, generation {}", self.generation);
            self.begin(name, ProcessRole::Writer, move |worker| {
                let cancelled = Arc::new(AtomicBool::new(false));
                let digest = Box::new(|_: &[f32]| "of a part".to_owned());
                Done::Ended(worker.perform(SaveCommand::Write { part, digest, values, cancelled }).ended)
            });
        }
        let mut written = 0;
        let lives =
            self.play(|done| written += u32::from(matches!(done, Done::Ended(Ended::Part { result: Ok(()), .. }))))?;
        Ok(lives.then_some(written))
    }

    /// A user prunes by hand.
    fn prune(&mut self) -> Result<bool, String> {
        let bug = self.machine.world().bug;
        let fewer = number(1 + self.dice(|dice| dice.below(self.keep_last.get() as usize)) as u32);
        self.begin("prune".to_owned(), ProcessRole::Pruner, move |BackgroundWriter { folder, .. }| {
            let identity = SampleState::at(0).identity;
            Done::Pruned(match bug {
                Some(Bug::PrunedUnread) => prune_unread(folder, fewer),
                _ => folder.prune(fewer, &identity),
            })
        });
        self.play(|_| {})?;
        Ok(true)
    }

    /// Begins a new generation with the newest checkpoint.
    fn restart(&mut self) -> Result<(), String> {
        self.run.restarts += 1;
        for _ in 0..MOST_LOADS {
            self.machine.world().down = false;
            if !self.closing {
                self.plan_for_loading();
                self.thaw();
            }
            let (alone, before, flips) = (self.at_work.is_empty(), self.promised(), self.flips());
            self.begin("loader".to_owned(), ProcessRole::Loader, |BackgroundWriter { folder, .. }| {
                Done::Loaded(load(folder, &SampleState::at(0).identity))
            });
            let mut loaded = None;
            self.play(|done| {
                if let Done::Loaded(Ok(newest)) = done {
                    loaded = Some(newest);
                }
            })?;
            let (found, after) = (look(&self.machine)?, self.promised());
            if self.machine.world().down {
                continue;
            }
            let Some(Loaded { checkpoint, skipped }) = loaded else { continue };
            self.run.fallen_back += u64::from(!skipped.is_empty());
            // A flip during the load may have come before or after the read of that file.
            if flips == self.flips() {
                let id = |of: &Option<Whole>| of.as_ref().map(|checkpoint| id_of(&checkpoint.path));
                if alone && id(&checkpoint) != id(&found) {
                    return Err(format!("{:?} was loaded, then {:?}", id(&checkpoint), id(&found)));
                }
                if id(&checkpoint) < before.min(after) {
                    let loaded = id(&checkpoint);
                    return Err(format!("{before:?} was promised, {loaded:?} was loaded; {skipped:?}"));
                }
            }
            self.go_on(checkpoint.as_ref())?;
            if self.dice(|dice| dice.percent(60)) {
                // A held-up process finishes work that the newest generation knows nothing of.
                self.machine.world().tasks.iter_mut().for_each(|task| task.frozen = false);
                self.play(|_| {})?;
            }
            return Ok(());
        }
        Err(format!("{MOST_LOADS} loads failed"))
    }

    fn flips(&self) -> u64 {
        self.machine.world().coverage.of(Fault::Flip)
    }

    /// Returns the oldest checkpoint that may be the newest one now.
    fn promised(&self) -> Option<CheckpointId> {
        let world = self.machine.world();
        world.history.floor(&world.disk)
    }

    fn go_on(&mut self, checkpoint: Option<&Whole>) -> Result<(), String> {
        (self.step, self.number) = match checkpoint {
            None => (0, 0),
            Some(checkpoint) => (checkpoint.position.step, self.machine.world().history.identify(checkpoint)?),
        };
        self.run.reset += u64::from(checkpoint.is_none());
        self.form();
        Ok(())
    }

    fn begin(&mut self, name: String, role: ProcessRole, act: impl FnOnce(&BackgroundWriter) -> Done + Send + 'static) {
        self.run.work += 1;
        let process: Arc<Process> = Arc::new(self.machine.process(name, role));
        let (task, keep_last) = (process.task, self.keep_last);
        let given = give(move || {
            process.begin();
            let worker = BackgroundWriter { folder: process.folder(), keep_last };
            let done = catch_unwind(AssertUnwindSafe(|| act(&worker)));
            process.end();
            done.unwrap_or_else(|panic| Done::Panicked(text_of(&*panic)))
        });
        self.at_work.push(AtWork { task, generation: self.generation, given });
    }

    /// Lets all processes go on until each has ended or is held up, and records the results.
    /// Returns true if all members of this generation are left.
    fn play(&mut self, mut see: impl FnMut(Done)) -> Result<bool, String> {
        self.machine.play();
        let mut lives = true;
        for work in std::mem::take(&mut self.at_work) {
            let (alive, frozen) = {
                let task = &self.machine.world().tasks[work.task];
                (task.alive, task.frozen)
            };
            let own = work.generation == self.generation;
            lives &= !own || alive && !frozen;
            if frozen && alive {
                self.at_work.push(work);
                continue;
            }
            let done = work.given.result();
            self.note(&done, own, alive)?;
            if own && alive {
                see(done);
            }
        }
        match self.machine.world().history.violations.first() {
            Some(violation) => Err(violation.clone()),
            None => Ok(lives),
        }
    }

    fn note(&mut self, done: &Done, own: bool, alive: bool) -> Result<(), String> {
        match done {
            Done::Ended(Ended::Commit { result: Ok(Committed { saved, pruned }), .. }) => {
                self.run.saved += 1;
                self.run.late += u64::from(!own);
                self.run.pruned += pruned.as_ref().map_or(0, |pruned| pruned.steps.len() as u64);
                // The checkpoint may be deleted again or hit by a fault.
                let generation = self
                    .machine
                    .folder()
                    .manifest_of(id_of(&saved.path))
                    .map_or(0, |(found, ..)| found.position.generation);
                let mut world = self.machine.world();
                if alive {
                    let World { history, disk, .. } = &mut *world;
                    history.is_promised(disk, saved, generation);
                }
            }
            Done::Ended(Ended::Commit { result: Err(_), .. } | Ended::Part { result: Err(_), .. }) => {
                self.run.refused += 1
            }
            Done::Ended(Ended::Part { result: Ok(()), .. } | Ended::Abandonment { .. }) => {}
            Done::Pruned(pruned) => self.run.pruned += pruned.as_ref().map_or(0, |pruned| pruned.steps.len() as u64),
            Done::Loaded(_) => {}
            Done::Panicked(text) => return Err(text.clone()),
        }
        Ok(())
    }

    /// Saves one more step without faults. Nothing else may be left then.
    fn close(&mut self) -> Result<(), String> {
        self.closing = true;
        {
            let mut world = self.machine.world();
            world.planned.clear();
            world.without_space = 0;
            world.tasks.iter_mut().for_each(|task| task.alive = false);
        }
        self.restart()?;
        let newest = ids(&self.machine.world().disk).last().map_or(0, |id| id.step);
        self.step = self.step.max(newest);
        self.keep_last = NonZeroU32::MIN;
        self.save()?;
        let saved = look(&self.machine)?.map(|checkpoint| checkpoint.position.step);
        if saved != Some(self.step) {
            return Err(format!("step {} is not saved at the end: {saved:?}", self.step));
        }
        let left = self.machine.world().disk.names(&checkpoints());
        match left.map_err(|error| error.to_string())? {
            left if left.len() == 1 => Ok(()),
            left => Err(format!("leftovers: {left:?}")),
        }
    }
}

impl Drop for Job {
    /// After a violation some processes may still be held up.
    fn drop(&mut self) {
        if self.machine.end_all() {
            self.machine.play();
        }
    }
}

/// Prunes without reading anything first.
fn prune_unread(folder: &Folder, keep_last: NonZeroU32) -> Result<Pruned, CheckpointError> {
    let old = folder.backend.ids()?.into_iter().skip(keep_last.get() as usize);
    old.for_each(|id| drop(folder.backend.delete(id)));
    Ok(Pruned::default())
}

pub(super) fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
