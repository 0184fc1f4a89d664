//! The file system of one process. It waits for its turn, and then performs an operation or meets a
//! fault.

use std::{
    fmt,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, MutexGuard},
};

use super::{
    coverage::{Fault, Moment},
    disk::{Disk, Extent, ROOT},
    machine::{Machine, World, is_checkpoints, is_met_by},
};
use crate::{
    CheckpointError, Folder,
    file_backend::FileBackend,
    file_operation::{FileOperation, PathKind, Perform},
};

/// The most operations that fail after the space is used up.
const MOST_WITHOUT_SPACE: usize = 8;

/// A process of the job and its view of the disk.
#[derive(Debug)]
pub(super) struct Process {
    machine: Arc<Machine>,
    pub(super) task: usize,
    turn: Arc<Condvar>,
}

impl Process {
    pub(super) fn new(machine: Arc<Machine>, task: usize, turn: Arc<Condvar>) -> Self {
        Self { machine, task, turn }
    }

    pub(super) fn folder(self: &Arc<Self>) -> Folder {
        folder(Arc::clone(self) as Arc<dyn Perform>)
    }

    /// The process calls this before anything else.
    pub(super) fn begin(&self) {
        let waits = |world: &mut World| world.running != Some(self.task);
        drop(self.turn.wait_while(self.machine.world(), waits).expect("not poisoned"));
    }

    /// The process calls this after everything else.
    pub(super) fn end(&self) {
        let mut world = self.machine.world();
        world.tasks[self.task].finished = true;
        world.pass(&self.machine);
    }

    /// Waits until the process may perform its next operation. Returns an error once it is dead.
    fn wait(&self) -> io::Result<MutexGuard<'_, World>> {
        let mut world = self.machine.world();
        if world.tasks[self.task].alive && world.burst == 0 {
            world = self.pass(world);
        }
        world.burst = world.burst.saturating_sub(1);
        if world.tasks[self.task].alive { Ok(world) } else { Err(dead()) }
    }

    fn pass<'a>(&self, mut world: MutexGuard<'a, World>) -> MutexGuard<'a, World> {
        world.pass(&self.machine);
        self.turn.wait_while(world, |world| world.running != Some(self.task)).expect("not poisoned")
    }

    fn change(&self, operation: &FileOperation<'_>) -> io::Result<()> {
        let mut world = self.wait()?;
        let moment = world.tasks[self.task].moment_of(operation);
        let follows = match (operation, moment) {
            (FileOperation::Sync(path), Moment::Publishing | Moment::Replacing) if is_checkpoints(path) => {
                Moment::Verifying
            }
            _ => moment,
        };
        let since = world.tasks[self.task].verifies_since;
        if follows == Moment::Verifying && moment != Moment::Verifying {
            world.tasks[self.task].verifies_since = world.disk.clock;
        }
        world.tasks[self.task].moment = follows;
        let fault = world.strike(self.task, moment, Some(operation));
        let done = self.change_in(&mut world, operation, fault, since);
        let done = match done {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                world = self.pass(world);
                match world.tasks[self.task].alive {
                    true => world.perform(operation, Extent::All, since),
                    false => Err(dead()),
                }
            }
            done => done,
        };
        world.note(self.task, path_of(operation), done.is_ok());
        world.tell(|world| format!("{}: {moment:?} {} {done:?}", world.tasks[self.task].name, Brief(operation)));
        done
    }

    fn change_in(
        &self,
        world: &mut World,
        operation: &FileOperation<'_>,
        fault: Option<Fault>,
        since: u64,
    ) -> io::Result<()> {
        let allocates = is_met_by(Fault::Full, Some(operation));
        match fault {
            Some(Fault::Kill | Fault::KillAll | Fault::PowerOff) => {
                let extent = world.dice.one_of(&[Extent::None, Extent::Half, Extent::All]);
                // The process is dead, so nobody learns the result.
                let _ = world.perform(operation, extent, since);
                self.end_by(world, fault);
                Err(dead())
            }
            Some(Fault::Freeze) => {
                world.tasks[self.task].frozen = true;
                Err(ErrorKind::WouldBlock.into())
            }
            Some(Fault::Error) => Err(broken()),
            Some(Fault::LostAnswer) => world.perform(operation, Extent::All, since).and(Err(broken())),
            Some(Fault::Full) => {
                world.without_space = world.dice.below(MOST_WITHOUT_SPACE);
                self.fill(world, operation, since)
            }
            None | Some(Fault::Flip) if allocates && world.without_space > 0 => {
                world.without_space -= 1;
                self.fill(world, operation, since)
            }
            Some(Fault::SyncFails) => {
                let World { disk, dice, .. } = world;
                disk.fail_to_sync(path_of(operation), dice).and(Err(broken()))
            }
            Some(Fault::SyncLies) => world.disk.lie_about_sync(path_of(operation)),
            Some(Fault::Flip) => {
                world.flip();
                world.perform(operation, Extent::All, since)
            }
            None => world.perform(operation, Extent::All, since),
        }
    }

    /// Performs half of the operation, because the space ends there.
    fn fill(&self, world: &mut World, operation: &FileOperation<'_>, since: u64) -> io::Result<()> {
        world.perform(operation, Extent::Half, since).and(Err(ErrorKind::StorageFull.into()))
    }

    fn end_by(&self, world: &mut World, fault: Option<Fault>) {
        match fault {
            Some(Fault::KillAll) => world.kill_all(),
            Some(Fault::PowerOff) => world.lose_power(),
            _ => {}
        }
        world.tasks[self.task].alive = false;
    }

    fn observe<R>(&self, path: &Path, read: impl Fn(&Disk) -> io::Result<R>) -> io::Result<R> {
        let mut world = self.wait()?;
        let moment = world.tasks[self.task].moment_of_reading();
        let fault = world.strike(self.task, moment, None);
        let found = match fault {
            None | Some(Fault::LostAnswer | Fault::Full | Fault::SyncFails | Fault::SyncLies) => read(&world.disk),
            Some(Fault::Kill | Fault::KillAll | Fault::PowerOff) => {
                self.end_by(&mut world, fault);
                Err(dead())
            }
            Some(Fault::Freeze) => {
                world.tasks[self.task].frozen = true;
                world = self.pass(world);
                if world.tasks[self.task].alive { read(&world.disk) } else { Err(dead()) }
            }
            Some(Fault::Error) => Err(broken()),
            Some(Fault::Flip) => {
                world.flip();
                read(&world.disk)
            }
        };
        world.note(self.task, path, found.is_ok());
        found
    }
}

impl Perform for Process {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        let bug = self.machine.world().bug;
        let performed = match bug {
            Some(bug) => bug.perform(operation, |operation| self.change(operation)),
            None => self.change(operation),
        };
        performed.map_err(|error| operation.failed(error))
    }

    fn look(&self, path: &Path) -> io::Result<PathKind> {
        let look = || self.observe(path, |disk| disk.look(path));
        let bug = self.machine.world().bug;
        bug.map_or_else(look, |bug| bug.look(look))
    }

    fn read(&self, path: &Path, most: u64, act: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        act(&self.observe(path, |disk| disk.read(path, most))?);
        Ok(())
    }

    fn file_names(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.observe(folder, |disk| disk.names(folder))
    }

    fn unique_word(&self) -> String {
        self.machine.unique_word()
    }
}

impl Machine {
    fn unique_word(&self) -> String {
        let mut world = self.world();
        world.drawn += 1;
        format!("{:016x}", world.drawn)
    }

    /// Returns the folder as an onlooker without faults sees it. No process may be at work.
    pub(super) fn folder(self: &Arc<Self>) -> Folder {
        folder(Arc::new(Onlooker(Arc::clone(self))))
    }
}

#[derive(Debug)]
struct Onlooker(Arc<Machine>);

impl Perform for Onlooker {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        self.0.world().disk.perform(operation).map_err(|error| operation.failed(error))
    }

    fn look(&self, path: &Path) -> io::Result<PathKind> {
        self.0.world().disk.look(path)
    }

    fn read(&self, path: &Path, most: u64, act: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        act(&self.0.world().disk.read(path, most)?);
        Ok(())
    }

    fn file_names(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.0.world().disk.names(folder)
    }

    fn unique_word(&self) -> String {
        self.0.unique_word()
    }
}

fn folder(performer: Arc<dyn Perform>) -> Folder {
    let mut folder = Folder::on(Arc::new(FileBackend::performed_by(performer, PathBuf::from(ROOT))));
    (folder.chunk_bytes, folder.at_once) = (super::CHUNK_BYTES, 1);
    folder
}

fn path_of<'a>(operation: &'a FileOperation<'_>) -> &'a Path {
    match operation {
        FileOperation::Create(path)
        | FileOperation::Write(path, _)
        | FileOperation::Sync(path)
        | FileOperation::Remove(path) => path,
        FileOperation::Link(_, to) | FileOperation::Rename(_, to) => to,
    }
}

/// Shows an operation without the content that it writes.
struct Brief<'a>(&'a FileOperation<'a>);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            FileOperation::Write(path, _) => write!(f, "Write({})", path.display()),
            other => write!(f, "{other:?}"),
        }
    }
}

fn dead() -> io::Error {
    io::Error::other("the process has ended")
}

fn broken() -> io::Error {
    io::Error::other("input/output error")
}
