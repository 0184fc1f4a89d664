//! Processes on one disk. One process works at a time. At any operation the seed may switch to
//! another process or inject a fault.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use super::{
    coverage::{Coverage, Fault, Moment, Victim},
    dice::{Dice, mixed},
    disk::{Disk, Extent, ROOT, digest},
    history::History,
    planted_bug::Bug,
    process::Process,
};
use crate::{checkpoint_id::CheckpointId, file_backend::TEMPORARY, file_operation::FileOperation};

/// The most operations that one process performs before another one may go on.
const MOST_AT_A_TIME: usize = 80;
/// The same for short turns.
const FEW_AT_A_TIME: usize = 6;

#[derive(Debug)]
pub(super) struct Machine {
    world: Mutex<World>,
    /// Signals that no process can go on by itself.
    idle: Condvar,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) disk: Disk,
    pub(super) dice: Dice,
    pub(super) history: History,
    pub(super) coverage: Coverage,
    pub(super) planned: Vec<Planned>,
    pub(super) tasks: Vec<Task>,
    pub(super) bug: Option<Bug>,
    pub(super) traced: bool,
    /// All processes were killed or the power failed, and the job has not noticed yet.
    pub(super) down: bool,
    /// A digest of all operations, which shows if a seed replays.
    pub(super) digest: u64,
    /// The process whose turn it is. It is the job's turn if there is none.
    pub(super) running: Option<usize>,
    pub(super) burst: usize,
    pub(super) without_space: usize,
    pub(super) drawn: u64,
}

/// A fault that strikes after so many operations that it could have hit.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) fault: Fault,
    pub(super) moment: Moment,
    pub(super) after: usize,
}

/// The purpose of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessRole {
    Writer,
    Committer,
    Pruner,
    Loader,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) role: ProcessRole,
    pub(super) moment: Moment,
    /// Its generation is over.
    pub(super) is_late: bool,
    /// The time when it began to verify, by the disk's clock.
    pub(super) verifies_since: u64,
    pub(super) alive: bool,
    pub(super) frozen: bool,
    pub(super) finished: bool,
    pub(super) turn: Arc<Condvar>,
}

impl Machine {
    pub(super) fn new(seed: u64, bug: Option<Bug>, traced: bool) -> Arc<Self> {
        let world = World {
            disk: Disk::new(),
            dice: Dice(seed),
            history: History::default(),
            coverage: Coverage::default(),
            planned: Vec::new(),
            tasks: Vec::new(),
            bug,
            traced,
            down: false,
            digest: seed,
            running: None,
            burst: 0,
            without_space: 0,
            drawn: 0,
        };
        Arc::new(Self { world: Mutex::new(world), idle: Condvar::new() })
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("not poisoned")
    }

    /// Ends all processes, unless a panic has poisoned the lock.
    pub(super) fn end_all(&self) -> bool {
        let world = self.world.lock();
        world.is_ok_and(|mut world| {
            world.tasks.iter_mut().for_each(|task| task.alive = false);
            true
        })
    }

    /// Adds a process that waits for its turn.
    pub(super) fn process(self: &Arc<Self>, name: String, role: ProcessRole) -> Process {
        let (turn, mut world) = (Arc::new(Condvar::new()), self.world());
        let moment = match role {
            ProcessRole::Writer => Moment::Copying,
            ProcessRole::Committer => Moment::Gathering,
            ProcessRole::Pruner => Moment::Verifying,
            ProcessRole::Loader => Moment::Loading,
        };
        let (task, verifies_since) = (world.tasks.len(), world.disk.clock);
        world.tasks.push(Task {
            name,
            role,
            moment,
            is_late: false,
            verifies_since,
            alive: true,
            frozen: false,
            finished: false,
            turn: Arc::clone(&turn),
        });
        Process::new(Arc::clone(self), task, turn)
    }

    /// Lets the processes go on until each has ended or is held up.
    pub(super) fn play(&self) {
        let mut world = self.world();
        world.pass(self);
        drop(self.idle.wait_while(world, |world| world.running.is_some()).expect("not poisoned"));
    }
}

impl World {
    /// Gives the turn to a random process that can go on.
    pub(super) fn pass(&mut self, machine: &Machine) {
        let able = |task: &Task| !task.finished && (!task.frozen || !task.alive);
        let able: Vec<usize> = (0..self.tasks.len()).filter(|task| able(&self.tasks[*task])).collect();
        self.running = (!able.is_empty()).then(|| self.dice.one_of(&able));
        self.burst =
            if self.dice.percent(30) { self.dice.below(FEW_AT_A_TIME) } else { self.dice.below(MOST_AT_A_TIME) };
        match self.running {
            Some(next) => self.tasks[next].turn.notify_one(),
            None => machine.idle.notify_one(),
        }
    }

    /// Ends all processes. Some that are held up stay: their node does not answer.
    pub(super) fn kill_all(&mut self) {
        for task in &mut self.tasks {
            task.alive &= task.frozen && self.dice.percent(60);
        }
        if self.dice.percent(50) {
            self.disk.drop_caches();
        }
        self.down = true;
    }

    pub(super) fn lose_power(&mut self) {
        self.tasks.iter_mut().for_each(|task| task.alive = false);
        self.history.lose_power(&self.disk);
        self.disk.lose_power(&mut self.dice);
        self.down = true;
    }

    /// Returns the fault that hits the next operation of a process, if any.
    pub(super) fn strike(
        &mut self,
        task: usize,
        moment: Moment,
        operation: Option<&FileOperation<'_>>,
    ) -> Option<Fault> {
        let fits = |planned: &Planned| planned.moment == moment && is_met_by(planned.fault, operation);
        let which = self.planned.iter().position(fits)?;
        if self.planned[which].after > 0 {
            self.planned[which].after -= 1;
            return None;
        }
        let fault = self.planned.swap_remove(which).fault;
        self.coverage.hit(fault, moment, self.tasks[task].victim());
        self.tell(|world| format!("{}: {fault:?} while {moment:?}", world.tasks[task].name));
        Some(fault)
    }

    /// Performs an operation or half of it, and records the result.
    pub(super) fn perform(&mut self, operation: &FileOperation<'_>, extent: Extent, since: u64) -> io::Result<()> {
        let newer = match operation {
            FileOperation::Rename(from, to) if extent == Extent::All => {
                self.history.is_moved(&self.disk, from, to, since)
            }
            FileOperation::Remove(path) if extent != Extent::None => self.history.is_deleted(&self.disk, path, since),
            _ => Ok(()),
        };
        let performed = self.disk.perform_partly(operation, extent);
        if let (Ok(()), Err(violation)) = (&performed, newer) {
            self.history.violations.push(violation);
        }
        performed
    }

    pub(super) fn flip(&mut self) {
        let Self { disk, dice, .. } = self;
        disk.flip(dice);
    }

    pub(super) fn tell(&self, line: impl FnOnce(&Self) -> String) {
        if self.traced {
            println!("{}", line(self));
        }
    }

    pub(super) fn note(&mut self, task: usize, path: &Path, went_well: bool) {
        let number = task as u64 ^ digest(path.as_os_str().as_encoded_bytes()) ^ u64::from(went_well) << 63;
        self.digest = mixed(self.digest ^ number);
    }
}

impl Task {
    fn victim(&self) -> Victim {
        match (self.role, self.is_late) {
            (ProcessRole::Writer, false) => Victim::Writer,
            (ProcessRole::Writer, true) => Victim::LateWriter,
            (ProcessRole::Committer, false) => Victim::Committer,
            (ProcessRole::Committer, true) => Victim::LateCommitter,
            (ProcessRole::Pruner, _) => Victim::Pruner,
            (ProcessRole::Loader, _) => Victim::Loader,
        }
    }

    pub(super) fn moment_of(&self, operation: &FileOperation<'_>) -> Moment {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let purpose = |path: &Path| name(path).strip_prefix(TEMPORARY).unwrap_or_default().to_owned();
        match operation {
            FileOperation::Create(_) | FileOperation::Link(..) => Moment::Copying,
            FileOperation::Write(path, _) if purpose(path).starts_with("chunk") => Moment::Copying,
            FileOperation::Write(..) if self.role == ProcessRole::Writer => Moment::Noting,
            FileOperation::Write(..) => Moment::Publishing,
            FileOperation::Sync(path) if purpose(path).starts_with("chunk") => Moment::Syncing,
            FileOperation::Sync(path) if self.moment == Moment::Gathering && is_checkpoints(path) => Moment::Publishing,
            FileOperation::Sync(_) => self.moment,
            FileOperation::Rename(_, to) if !purpose(to).is_empty() => Moment::Deleting,
            FileOperation::Rename(_, to) if name(to).ends_with(".chunk") => Moment::Naming,
            FileOperation::Rename(..) if self.role == ProcessRole::Writer => Moment::Noting,
            FileOperation::Rename(_, to)
                if CheckpointId::of_name(&name(to)).is_some_and(|id| id.generation.is_some()) =>
            {
                Moment::Replacing
            }
            FileOperation::Rename(..) => Moment::Publishing,
            FileOperation::Remove(path) if path.parent().is_some_and(is_checkpoints) => Moment::Deleting,
            FileOperation::Remove(_) => self.moment,
        }
    }

    pub(super) fn moment_of_reading(&self) -> Moment {
        match (self.role, self.moment) {
            (ProcessRole::Writer, _) => Moment::Copying,
            (ProcessRole::Loader, _) => Moment::Loading,
            (ProcessRole::Committer, moment @ (Moment::Gathering | Moment::Publishing | Moment::Replacing)) => moment,
            (ProcessRole::Committer | ProcessRole::Pruner, _) => Moment::Verifying,
        }
    }
}

pub(super) fn checkpoint_path(id: CheckpointId) -> PathBuf {
    Path::new(ROOT).join("checkpoints").join(id.to_string())
}

pub(super) fn is_checkpoints(path: &Path) -> bool {
    path == Path::new(ROOT).join("checkpoints")
}

/// True if a fault can hit an operation. `None` is a read.
pub(super) fn is_met_by(fault: Fault, operation: Option<&FileOperation<'_>>) -> bool {
    match fault {
        Fault::Kill | Fault::KillAll | Fault::PowerOff | Fault::Freeze | Fault::Error | Fault::Flip => true,
        Fault::LostAnswer => operation.is_some(),
        Fault::Full => matches!(
            operation,
            Some(
                FileOperation::Create(_)
                    | FileOperation::Write(..)
                    | FileOperation::Link(..)
                    | FileOperation::Rename(..)
            )
        ),
        Fault::SyncFails | Fault::SyncLies => matches!(operation, Some(FileOperation::Sync(_))),
    }
}
