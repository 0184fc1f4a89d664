//! Checkpoints in a file system: parts are gathered in a `.tmp-…` folder, every file synced, and that is renamed.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::io::Errno;

use crate::{
    CheckpointError, Position,
    chunk::Chunk,
    manifest::{MANIFEST, Unusable},
    medium::{Medium, Published, Replacing, Written},
    operation::{Contents, FileSystem, Found, Operation, Perform, sync},
    read::{name_of, read_chunk},
    slot::{Leftover, Slot, Staged},
};

/// What a save in progress is called, so that no reader takes it for a checkpoint.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// A file that is stored in one piece, such as a model, until it is.
const STORED: &str = "file";

/// A job's folder in a file system.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
    performer: Arc<dyn Perform>,
}

impl Files {
    pub(crate) fn at(root: PathBuf) -> Self {
        Self::performed_by(Arc::new(FileSystem), root)
    }

    pub(crate) fn performed_by(performer: Arc<dyn Perform>, root: PathBuf) -> Self {
        Self { root, performer }
    }

    /// Makes the folder where it is missing, and sees that it can be written. One that was made before may be full or read-only now: who
    /// only reads it needs no more, and saving waits until it is writable again.
    pub(crate) fn make(&self) -> Result<(), CheckpointError> {
        let was_made = self.is_made()?;
        let probes = self.root.join("probes");
        for needed in [&probes, &self.checkpoints()] {
            make(needed).map_err(|source| self.unwritable(source))?;
        }
        // Not among the checkpoints, where another member may be pruning leftovers.
        let trial = self.temporary_in(&probes, "trial");
        match File::create_new(&trial).and_then(|_| fs::remove_file(&trial)) {
            Err(source) if !was_made => Err(self.unwritable(source)),
            _ => Ok(()),
        }
    }

    /// Whether there is a folder of checkpoints. One that the storage does not give now is not to be made anew.
    fn is_made(&self) -> Result<bool, CheckpointError> {
        match self.checkpoints().metadata() {
            Ok(found) => Ok(found.is_dir()),
            Err(source) if passes(&source) => Err(CheckpointError::of("reading", self.checkpoints(), source)),
            // Making it says what is wrong.
            Err(_) => Ok(false),
        }
    }

    /// Sees that there is a folder of checkpoints.
    pub(crate) fn find(&self) -> Result<(), CheckpointError> {
        match self.checkpoints().metadata() {
            Ok(found) if found.is_dir() => Ok(()),
            Err(source) if !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(CheckpointError::of("reading", self.checkpoints(), source))
            }
            _ => Err(CheckpointError::NoCheckpoints { path: self.root.clone() }),
        }
    }

    fn perform(&self, operation: &Operation<'_>) -> Result<(), CheckpointError> {
        self.performer.perform(operation)
    }

    fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    fn place(&self, slot: Slot) -> PathBuf {
        self.checkpoints().join(slot.to_string())
    }

    /// A path beside the checkpoints that no other save uses.
    fn temporary(&self, purpose: &str) -> PathBuf {
        self.temporary_in(&self.checkpoints(), purpose)
    }

    /// A path in `folder` that nobody else uses.
    fn temporary_in(&self, folder: &Path, purpose: &str) -> PathBuf {
        folder.join(format!("{TEMPORARY}{purpose}-{}", self.performer.draw()))
    }

    /// Takes what is at `path` out of its place, in one instant, to be removed from where it is then; `None` where it was gone.
    fn put_aside(&self, path: PathBuf, purpose: &str) -> Result<Option<PathBuf>, CheckpointError> {
        let aside = self.temporary(purpose);
        match self.perform(&Operation::Rename(path.clone(), aside.clone())) {
            Err(_) if matches!(self.look(&path), Ok(None)) => Ok(None),
            renamed => renamed.map(|()| Some(aside)),
        }
    }

    /// Whether a chunk need not be written: a torn save of the same step has left it, another part of the state is equal, or so is
    /// the checkpoint before, from which it gets its second name.
    fn refer(&self, staging: &Path, before: Option<&Path>, chunk: &Chunk) -> bool {
        let name = |folder: &Path| folder.join(chunk.file());
        // What is damaged is not referred to again.
        let is_whole = |folder: &Path| read_chunk(self, folder, chunk, &mut |_| {}).is_ok();
        // Some file systems have no second names, and another member may be deleting the first: then it is written.
        let linked =
            |before: &Path| is_whole(before) && self.perform(&Operation::Link(name(before), name(staging))).is_ok();
        is_whole(staging) || before.is_some_and(linked)
    }

    /// What a path leads to, or nothing. Where the storage does not say, that is an error: what is there must not pass for absent.
    fn look(&self, path: &Path) -> Result<Option<Found>, CheckpointError> {
        match self.performer.look(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(source) => Err(CheckpointError::Storage { attempt: "reading", path: path.to_owned(), source }),
        }
    }

    fn unwritable(&self, source: io::Error) -> CheckpointError {
        let path = self.root.clone();
        match source.kind() {
            // `create_dir_all` says this where a file stands in the way.
            io::ErrorKind::AlreadyExists => CheckpointError::NotAFolder { path },
            _ if passes(&source) => CheckpointError::of("making", path, source),
            _ => match CheckpointError::of("writing", path, source) {
                CheckpointError::Storage { path, source, .. } => CheckpointError::Unwritable { path, source },
                clear => clear,
            },
        }
    }
}

impl Medium for Files {
    fn root(&self) -> &Path {
        &self.root
    }

    fn slot(&self, position: Position) -> Slot {
        Slot { step: position.step, generation: None }
    }

    fn slots(&self) -> Result<Vec<Slot>, CheckpointError> {
        let mut slots = Vec::new();
        for slot in self.names(&self.checkpoints())?.iter().filter_map(|name| Slot::of_name(name)) {
            // Where the storage does not say, it may be one: whoever reads it is told.
            if matches!(self.look(&self.place(slot)), Ok(Some(Found::Folder)) | Err(_)) {
                slots.push(slot);
            }
        }
        slots.sort_unstable_by(|a, b| b.cmp(a));
        slots.dedup();
        Ok(slots)
    }

    fn rivals(&self, position: Position) -> Result<Vec<Slot>, CheckpointError> {
        Ok(self.slots()?.into_iter().filter(|slot| slot.step == position.step).collect())
    }

    fn sync_slots(&self) -> Result<(), CheckpointError> {
        self.perform(&Operation::Sync(self.checkpoints()))
    }

    fn leftovers(&self) -> Result<Vec<Leftover>, CheckpointError> {
        let leftover = |name: String| {
            let staged = Staged::of_name(name.strip_prefix(TEMPORARY)?);
            Some(Leftover { staged, path: self.checkpoints().join(name) })
        };
        let left_beside = |name: String| {
            name.starts_with(&format!("{TEMPORARY}{STORED}-"))
                .then(|| Leftover { staged: None, path: self.root.join(name) })
        };
        let (beside, below) = (self.names(&self.root)?, self.names(&self.checkpoints())?);
        Ok(beside.into_iter().filter_map(left_beside).chain(below.into_iter().filter_map(leftover)).collect())
    }

    fn discard(&self, leftover: Leftover) -> Result<(), CheckpointError> {
        let Leftover { path, staged } = leftover;
        let Some(Staged { step, .. }) = staged else { return self.perform(&Operation::Remove(path)) };
        // Its committer's rename must find all of it or nothing.
        match self.put_aside(path, &format!("discarded-{step}"))? {
            Some(aside) => self.perform(&Operation::Remove(aside)),
            None => Ok(()),
        }
    }

    fn delete(&self, slot: Slot) -> Result<(), CheckpointError> {
        let aside = self.put_aside(self.place(slot), &format!("deleted-{}", slot.step))?;
        let Some(aside) = aside else { return Ok(()) };
        self.sync_slots()?;
        self.perform(&Operation::Remove(aside))
    }

    /// A pipe would hold up the reader, hence the look before opening.
    fn length(&self, path: &Path) -> Result<Option<u64>, Unusable> {
        match self.look(path).map_err(|error| Unusable::Unread(Box::new(error)))? {
            None => Ok(None),
            Some(Found::File { bytes }) => Ok(Some(bytes)),
            Some(Found::Folder | Found::Other) => {
                Err(Unusable::Damaged(format!("{} is no regular file", name_of(path))))
            }
        }
    }

    fn read(&self, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), Unusable> {
        match self.performer.read(path, length, act) {
            Ok(()) => Ok(()),
            Err(error) if is_absence(&error) => {
                Err(Unusable::Damaged(format!("{} cannot be read: {error}", name_of(path))))
            }
            Err(error) => Err(unread(path, error)),
        }
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>, CheckpointError> {
        self.performer.names(folder).map_err(|source| CheckpointError::of("listing", folder.to_owned(), source))
    }

    fn store(&self, path: &Path, contents: Contents<'_>) -> Result<(), CheckpointError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let temporary = self.temporary_in(folder, STORED);
        let stored = [
            Operation::Write(temporary.clone(), contents),
            Operation::Sync(temporary.clone()),
            Operation::Rename(temporary.clone(), path.to_owned()),
        ];
        let stored = stored.iter().try_for_each(|operation| self.perform(operation));
        if stored.is_err() {
            // The space may be what the next save lacks; the error that matters is the one at hand.
            let _ = self.perform(&Operation::Remove(temporary));
        }
        stored?;
        self.perform(&Operation::Sync(folder.to_owned()))
    }

    fn remove(&self, path: &Path) -> Result<(), CheckpointError> {
        self.perform(&Operation::Remove(path.to_owned()))
    }

    fn staging(&self, position: Position) -> PathBuf {
        let Position { step, generation, .. } = position;
        self.checkpoints().join(format!("{TEMPORARY}{}", Slot { step, generation: Some(generation) }))
    }

    fn make_staging(&self, position: Position) -> Result<(), CheckpointError> {
        self.perform(&Operation::Create(self.staging(position)))
    }

    fn write_chunk(
        &self,
        staging: &Path,
        before: Option<&Path>,
        chunk: &Chunk,
        contents: Contents<'_>,
    ) -> Result<Written, CheckpointError> {
        if self.refer(staging, before, chunk) {
            return Ok(Written::Unchanged);
        }
        let temporary = self.temporary_in(staging, "chunk");
        if let Err(error) = self.perform(&Operation::Write(temporary.clone(), contents)) {
            // On a full disk its room is what the next attempt lacks.
            let _ = self.remove(&temporary);
            return Err(error);
        }
        Ok(Written::Unnamed(temporary))
    }

    fn sync_chunk(&self, written: &Written) -> Result<(), CheckpointError> {
        match written {
            Written::Unnamed(file) => self.perform(&Operation::Sync(file.clone())),
            Written::Unchanged | Written::Named => Ok(()),
        }
    }

    fn name_chunks(&self, staging: &Path, written: &[(Chunk, Written)]) -> Result<(), CheckpointError> {
        for (chunk, file) in unnamed(written) {
            self.perform(&Operation::Rename(file.clone(), staging.join(chunk.file())))?;
        }
        self.perform(&Operation::Sync(staging.to_owned()))
    }

    fn is_left_over(&self, _: &str) -> bool {
        true
    }

    fn publish(&self, position: Position, manifest: &[u8], replacing: Replacing) -> Result<Published, CheckpointError> {
        let (staging, mut slot) = (self.staging(position), self.slot(position));
        self.store(&staging.join(MANIFEST), Contents::Bytes(manifest))?;
        match replacing {
            Replacing::Nothing => {}
            // Beside them: if they had to give way first, a crash could leave neither them nor this one.
            Replacing::Others => slot.generation = Some(position.generation),
        }
        // A folder replaces no folder that has anything in it: of two that commit, the second is told.
        if let Err(error) = self.perform(&Operation::Rename(staging, self.place(slot))) {
            return Ok(Published::Taken(error));
        }
        self.sync_slots()?;
        Ok(Published::Done(slot))
    }

    fn abandon(&self, position: Position) -> Result<(), CheckpointError> {
        let Position { step, generation, .. } = position;
        let path = self.staging(position);
        match self.look(&path)? {
            Some(_) => self.discard(Leftover { path, staged: Some(Staged { step, generation }) }),
            None => Ok(()),
        }
    }
}

fn unnamed(written: &[(Chunk, Written)]) -> impl Iterator<Item = (&Chunk, &PathBuf)> {
    written.iter().filter_map(|(chunk, written)| match written {
        Written::Unnamed(file) => Some((chunk, file)),
        Written::Unchanged | Written::Named => None,
    })
}

/// Whether storage is away, or a resource is used up, which others may give back: nothing is wrong with the path.
fn passes(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::IO
                | Errno::STALE
                | Errno::NOTCONN
                | Errno::SHUTDOWN
                | Errno::REMOTEIO
                | Errno::TIMEDOUT
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::BUSY
                | Errno::AGAIN
                | Errno::INTR
                | Errno::NOMEM
                | Errno::MFILE
                | Errno::NFILE
        )
    )
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn unread(path: &Path, source: io::Error) -> Unusable {
    Unusable::Unread(Box::new(CheckpointError::Storage { attempt: "reading", path: path.to_owned(), source }))
}

/// Makes a folder with its parents and stores their names.
fn make(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make(parent)?;
    }
    match fs::create_dir(path) {
        // Another member was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync(parent.unwrap_or(Path::new("."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_made_while_the_storage_is_away_is_tried_again_and_one_that_never_can_is_not() {
        let files = Files::at(PathBuf::from("/job"));
        let error = |errno: Errno| files.unwritable(io::Error::from(errno));
        for passing in [Errno::IO, Errno::STALE, Errno::NOTCONN, Errno::TIMEDOUT, Errno::MFILE] {
            assert!(matches!(error(passing), CheckpointError::Storage { .. }), "{passing}");
        }
        assert!(matches!(error(Errno::ACCESS), CheckpointError::Unwritable { .. }));
        assert!(matches!(error(Errno::NAMETOOLONG), CheckpointError::Unwritable { .. }));
        assert!(matches!(error(Errno::NOTDIR), CheckpointError::NotAFolder { .. }));
        assert!(matches!(error(Errno::ROFS), CheckpointError::ReadOnly { .. }));
        assert!(matches!(error(Errno::NOSPC), CheckpointError::Full { .. }));
    }
}
