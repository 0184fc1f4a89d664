//! Checkpoints in a file system. Parts are gathered and synced in a `.tmp-…` folder, which is then
//! renamed.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::io::Errno;

use crate::{
    CheckpointError, Position,
    backend::{Backend, Published, Replacing, Written},
    checkpoint_id::{CheckpointId, Leftover, Staged},
    chunk::Chunk,
    file_operation::{Contents, FileOperation, FileSystem, PathKind, Perform, sync},
    format::MANIFEST,
    read::{file_name, read_chunk},
    read_error::ReadError,
};

/// The prefix of an unfinished save, so that no reader takes it for a checkpoint.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// The purpose of a temporary file that is stored in one piece, such as a model.
const STORED: &str = "file";

/// A job's folder in a file system.
#[derive(Clone, Debug)]
pub(crate) struct FileBackend {
    root: PathBuf,
    performer: Arc<dyn Perform>,
}

impl FileBackend {
    pub(crate) fn at(root: PathBuf) -> Self {
        Self::performed_by(Arc::new(FileSystem), root)
    }

    pub(crate) fn performed_by(performer: Arc<dyn Perform>, root: PathBuf) -> Self {
        Self { root, performer }
    }

    /// Makes the folder if it is missing, and checks that it can be written. A folder that exists
    /// may be full or read-only now. Reading needs no more, and saving waits until it is writable
    /// again.
    pub(crate) fn make(&self) -> Result<(), CheckpointError> {
        let was_made = self.is_made()?;
        let probes = self.root.join("probes");
        for needed in [&probes, &self.checkpoints()] {
            make(needed).map_err(|source| self.unwritable(source))?;
        }
        // The trial lies apart from the checkpoints, where another member may be pruning leftovers.
        let trial = self.temporary_in(&probes, "trial");
        match File::create_new(&trial).and_then(|_| fs::remove_file(&trial)) {
            Err(source) if !was_made => Err(self.unwritable(source)),
            _ => Ok(()),
        }
    }

    /// True if there is a folder of checkpoints. It is an error if the storage cannot tell: an
    /// existing folder must not be made again.
    fn is_made(&self) -> Result<bool, CheckpointError> {
        match self.checkpoints().metadata() {
            Ok(found) => Ok(found.is_dir()),
            Err(source) if passes(&source) => Err(CheckpointError::of("reading", self.checkpoints(), source)),
            // Making it reports the cause.
            Err(_) => Ok(false),
        }
    }

    /// Checks that there is a folder of checkpoints.
    pub(crate) fn check_exists(&self) -> Result<(), CheckpointError> {
        match self.checkpoints().metadata() {
            Ok(found) if found.is_dir() => Ok(()),
            Err(source) if !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(CheckpointError::of("reading", self.checkpoints(), source))
            }
            _ => Err(CheckpointError::NoCheckpoints { path: self.root.clone() }),
        }
    }

    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        self.performer.perform(operation)
    }

    fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    fn path_of(&self, id: CheckpointId) -> PathBuf {
        self.checkpoints().join(id.to_string())
    }

    /// Returns a unique path beside the checkpoints.
    fn temporary(&self, purpose: &str) -> PathBuf {
        self.temporary_in(&self.checkpoints(), purpose)
    }

    /// Returns a unique path in `folder`.
    fn temporary_in(&self, folder: &Path, purpose: &str) -> PathBuf {
        folder.join(format!("{TEMPORARY}{purpose}-{}", self.performer.unique_word()))
    }

    /// Moves what is at `path` aside in one instant and returns its new path, or `None` if it is
    /// gone.
    fn put_aside(&self, path: PathBuf, purpose: &str) -> Result<Option<PathBuf>, CheckpointError> {
        let aside = self.temporary(purpose);
        match self.perform(&FileOperation::Rename(path.clone(), aside.clone())) {
            Err(_) if matches!(self.look(&path), Ok(None)) => Ok(None),
            renamed => renamed.map(|()| Some(aside)),
        }
    }

    /// True if a chunk need not be written. An interrupted save of the same step may have left it,
    /// another range of the state may be equal, or the checkpoint before may hold it. The last case
    /// gives its file a second name.
    fn refer(&self, staging: &Path, before: Option<&Path>, chunk: &Chunk) -> bool {
        let name = |folder: &Path| folder.join(chunk.file());
        // A damaged chunk is never referred to.
        let is_whole = |folder: &Path| read_chunk(self, folder, chunk, &mut |_| {}).is_ok();
        // Linking fails on some file systems, or if another member deletes the first name. The
        // chunk is then written.
        let linked =
            |before: &Path| is_whole(before) && self.perform(&FileOperation::Link(name(before), name(staging))).is_ok();
        is_whole(staging) || before.is_some_and(linked)
    }

    /// Returns the kind of thing at a path, or `None` if nothing is there. It is an error if the
    /// storage cannot tell: an existing thing must not pass for absent.
    fn look(&self, path: &Path) -> Result<Option<PathKind>, CheckpointError> {
        match self.performer.look(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(source) => Err(CheckpointError::Storage { action: "reading", path: path.to_owned(), source }),
        }
    }

    fn unwritable(&self, source: io::Error) -> CheckpointError {
        let path = self.root.clone();
        match source.kind() {
            // `create_dir_all` reports this error if a file is in the way.
            io::ErrorKind::AlreadyExists => CheckpointError::NotAFolder { path },
            _ if passes(&source) => CheckpointError::of("making", path, source),
            _ => match CheckpointError::of("writing", path, source) {
                CheckpointError::Storage { path, source, .. } => CheckpointError::Unwritable { path, source },
                clear => clear,
            },
        }
    }
}

impl Backend for FileBackend {
    fn root(&self) -> &Path {
        &self.root
    }

    fn id(&self, position: Position) -> CheckpointId {
        CheckpointId { step: position.step, generation: None }
    }

    fn ids(&self) -> Result<Vec<CheckpointId>, CheckpointError> {
        let mut ids = Vec::new();
        for id in self.file_names(&self.checkpoints())?.iter().filter_map(|name| CheckpointId::of_name(name)) {
            // If the storage cannot tell, it may be a checkpoint. A reader then gets the error.
            if matches!(self.look(&self.path_of(id)), Ok(Some(PathKind::Folder)) | Err(_)) {
                ids.push(id);
            }
        }
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        Ok(ids)
    }

    fn rivals(&self, position: Position) -> Result<Vec<CheckpointId>, CheckpointError> {
        Ok(self.ids()?.into_iter().filter(|id| id.step == position.step).collect())
    }

    fn sync_checkpoint_names(&self) -> Result<(), CheckpointError> {
        self.perform(&FileOperation::Sync(self.checkpoints()))
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
        let (beside, below) = (self.file_names(&self.root)?, self.file_names(&self.checkpoints())?);
        Ok(beside.into_iter().filter_map(left_beside).chain(below.into_iter().filter_map(leftover)).collect())
    }

    fn discard(&self, leftover: Leftover) -> Result<(), CheckpointError> {
        let Leftover { path, staged } = leftover;
        let Some(Staged { step, .. }) = staged else { return self.perform(&FileOperation::Remove(path)) };
        // Its committer's rename must find all of it or nothing.
        match self.put_aside(path, &format!("discarded-{step}"))? {
            Some(aside) => self.perform(&FileOperation::Remove(aside)),
            None => Ok(()),
        }
    }

    fn delete(&self, id: CheckpointId) -> Result<(), CheckpointError> {
        let aside = self.put_aside(self.path_of(id), &format!("deleted-{}", id.step))?;
        let Some(aside) = aside else { return Ok(()) };
        self.sync_checkpoint_names()?;
        self.perform(&FileOperation::Remove(aside))
    }

    /// Looks before opening, because a pipe would block the reader.
    fn length(&self, path: &Path) -> Result<Option<u64>, ReadError> {
        match self.look(path).map_err(|error| ReadError::Unread(Box::new(error)))? {
            None => Ok(None),
            Some(PathKind::File { bytes }) => Ok(Some(bytes)),
            Some(PathKind::Folder | PathKind::Other) => {
                Err(ReadError::Damaged(format!("{} is no regular file", file_name(path))))
            }
        }
    }

    fn read(&self, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), ReadError> {
        match self.performer.read(path, length, act) {
            Ok(()) => Ok(()),
            Err(error) if is_absence(&error) => {
                Err(ReadError::Damaged(format!("{} cannot be read: {error}", file_name(path))))
            }
            Err(error) => Err(unread(path, error)),
        }
    }

    fn file_names(&self, folder: &Path) -> Result<Vec<String>, CheckpointError> {
        self.performer.file_names(folder).map_err(|source| CheckpointError::of("listing", folder.to_owned(), source))
    }

    fn store(&self, path: &Path, contents: Contents<'_>) -> Result<(), CheckpointError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let temporary = self.temporary_in(folder, STORED);
        let stored = [
            FileOperation::Write(temporary.clone(), contents),
            FileOperation::Sync(temporary.clone()),
            FileOperation::Rename(temporary.clone(), path.to_owned()),
        ];
        let stored = stored.iter().try_for_each(|operation| self.perform(operation));
        if stored.is_err() {
            // The next save may need the space. The error at hand matters more.
            let _ = self.perform(&FileOperation::Remove(temporary));
        }
        stored?;
        self.perform(&FileOperation::Sync(folder.to_owned()))
    }

    fn remove(&self, path: &Path) -> Result<(), CheckpointError> {
        self.perform(&FileOperation::Remove(path.to_owned()))
    }

    fn staging(&self, position: Position) -> PathBuf {
        let Position { step, generation, .. } = position;
        self.checkpoints().join(format!("{TEMPORARY}{}", CheckpointId { step, generation: Some(generation) }))
    }

    fn make_staging(&self, position: Position) -> Result<(), CheckpointError> {
        self.perform(&FileOperation::Create(self.staging(position)))
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
        if let Err(error) = self.perform(&FileOperation::Write(temporary.clone(), contents)) {
            // On a full disk the next save needs the space.
            let _ = self.remove(&temporary);
            return Err(error);
        }
        Ok(Written::Unnamed(temporary))
    }

    fn sync_chunk(&self, written: &Written) -> Result<(), CheckpointError> {
        match written {
            Written::Unnamed(file) => self.perform(&FileOperation::Sync(file.clone())),
            Written::Unchanged | Written::Named => Ok(()),
        }
    }

    fn name_chunks(&self, staging: &Path, written: &[(Chunk, Written)]) -> Result<(), CheckpointError> {
        for (chunk, file) in unnamed(written) {
            self.perform(&FileOperation::Rename(file.clone(), staging.join(chunk.file())))?;
        }
        self.perform(&FileOperation::Sync(staging.to_owned()))
    }

    fn is_left_over(&self, _: &str) -> bool {
        true
    }

    fn publish(&self, position: Position, manifest: &[u8], replacing: Replacing) -> Result<Published, CheckpointError> {
        let (staging, mut id) = (self.staging(position), self.id(position));
        self.store(&staging.join(MANIFEST), Contents::Bytes(manifest))?;
        match replacing {
            Replacing::Nothing => {}
            // The new checkpoint lies beside the others. If they were removed first, a crash could
            // leave none.
            Replacing::Others => id.generation = Some(position.generation),
        }
        // A folder cannot replace a folder with content, so that the second of two committers gets
        // an error.
        if let Err(error) = self.perform(&FileOperation::Rename(staging, self.path_of(id))) {
            return Ok(Published::Taken(error));
        }
        self.sync_checkpoint_names()?;
        Ok(Published::Done(id))
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

/// True for an error that says nothing about the path: the storage is away, or others may free a
/// resource.
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

fn unread(path: &Path, source: io::Error) -> ReadError {
    ReadError::Unread(Box::new(CheckpointError::Storage { action: "reading", path: path.to_owned(), source }))
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
    fn only_an_error_that_may_pass_lets_a_folder_be_made_later() {
        let files = FileBackend::at(PathBuf::from("/job"));
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
