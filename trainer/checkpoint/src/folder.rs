use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    CheckpointError,
    chunk::CHUNK_BYTES,
    operation::{Contents, FileSystem, Operation, Perform, sync},
};

/// What a save in progress is called, so that no reader takes it for a checkpoint.
pub(crate) const TEMPORARY: &str = ".tmp-";
const STEP: &str = "step-";
/// Digits of a step in a name, so that names sort as steps do; greater steps take more.
const STEP_DIGITS: usize = 8;

/// A folder that keeps checkpoints. All members write their parts of one and any may read; one commits and prunes.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    /// Bytes of a chunk; smaller in tests.
    pub(crate) chunk_bytes: u64,
    pub(crate) performer: Arc<dyn Perform>,
}

impl Folder {
    /// Opens the folder at `path`, making it where it is missing, and sees that it can be written.
    ///
    /// # Errors
    /// [`CheckpointError::NotAFolder`], [`CheckpointError::ReadOnly`], [`CheckpointError::Unwritable`] or
    /// [`CheckpointError::Full`], each with the path and what to do.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let folder = Self::at(path.into());
        for needed in [folder.checkpoints(), folder.probes()] {
            make(&needed).map_err(|source| folder.unwritable(source))?;
        }
        // Not among the checkpoints, where another member may be pruning leftovers.
        let trial = temporary_in(&folder.probes(), "trial");
        File::create_new(&trial).and_then(|_| fs::remove_file(&trial)).map_err(|source| folder.unwritable(source))?;
        Ok(folder)
    }

    /// Opens the folder at `path` to read from it; nothing is made there.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoints`] where it is no folder of checkpoints.
    pub fn open_existing(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let folder = Self::at(path.into());
        match folder.checkpoints().metadata() {
            Ok(found) if found.is_dir() => Ok(folder),
            Err(source) if !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(CheckpointError::of("reading", folder.checkpoints(), source))
            }
            _ => Err(CheckpointError::NoCheckpoints { path: folder.root }),
        }
    }

    fn at(root: PathBuf) -> Self {
        Self { root, chunk_bytes: CHUNK_BYTES, performer: Arc::new(FileSystem) }
    }

    pub(crate) fn perform(&self, operation: &Operation<'_>) -> Result<(), CheckpointError> {
        self.performer.perform(operation)
    }

    /// Writes a file in one instant, in place of one of that name.
    pub(crate) fn store(&self, path: &Path, contents: Contents<'_>) -> Result<(), CheckpointError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let temporary = temporary_in(folder, "file");
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
        stored
    }

    /// As it was given to [`Folder::open`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    pub(crate) fn probes(&self) -> PathBuf {
        self.root.join("probes")
    }

    /// Where the checkpoint of `step` lies once it is whole.
    pub(crate) fn step(&self, step: u64) -> PathBuf {
        self.checkpoints().join(format!("{STEP}{step:0STEP_DIGITS$}"))
    }

    /// Where the parts of a checkpoint lie until it is whole: all its writers know the name, and none of another generation has it.
    pub(crate) fn staging(&self, step: u64, generation: u64) -> PathBuf {
        self.checkpoints().join(format!("{TEMPORARY}{STEP}{step:0STEP_DIGITS$}.g{generation}"))
    }

    /// A path beside the checkpoints that no other save uses.
    pub(crate) fn temporary(&self, purpose: &str) -> PathBuf {
        temporary_in(&self.checkpoints(), purpose)
    }

    /// Steps that have a folder, whole or not, newest first.
    pub(crate) fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut steps: Vec<u64> =
            self.names()?.iter().filter_map(|name| name.strip_prefix(STEP)?.parse().ok()).collect();
        steps.retain(|step| self.step(*step).is_dir());
        steps.sort_unstable_by(|a, b| b.cmp(a));
        steps.dedup();
        Ok(steps)
    }

    /// Saves under way, and what such that never ended have left.
    pub(crate) fn leftovers(&self) -> Result<Vec<Leftover>, CheckpointError> {
        let names = self.names()?.into_iter().filter(|name| name.starts_with(TEMPORARY));
        let leftover = |name: String| Leftover { staged: staged(&name), path: self.checkpoints().join(name) };
        Ok(names.map(leftover).collect())
    }

    /// Deletes the unfinished saves of generations before this one: their members have left.
    pub(crate) fn clear_generations_before(&self, generation: u64) -> Result<(), CheckpointError> {
        let old = |leftover: &Leftover| leftover.staged.is_some_and(|staged| staged.generation < generation);
        self.leftovers()?.into_iter().filter(old).try_for_each(|leftover| self.discard(leftover))
    }

    /// Deletes an unfinished save. Its committer may still be at work, whose rename must find all of it or nothing.
    pub(crate) fn discard(&self, leftover: Leftover) -> Result<(), CheckpointError> {
        let Leftover { path, staged } = leftover;
        let Some(Staged { step, .. }) = staged else { return self.perform(&Operation::Remove(path)) };
        let aside = self.temporary(&format!("discarded-{step}"));
        match self.perform(&Operation::Rename(path.clone(), aside.clone())) {
            Err(_) if !path.exists() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.perform(&Operation::Remove(aside)),
        }
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let path = self.checkpoints();
        let listed = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        match listed {
            Ok(entries) => Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect()),
            Err(source) => Err(CheckpointError::of("listing", path, source)),
        }
    }

    fn unwritable(&self, source: io::Error) -> CheckpointError {
        let path = self.root.clone();
        match source.kind() {
            // `create_dir_all` says this where a file stands in the way.
            io::ErrorKind::AlreadyExists => CheckpointError::NotAFolder { path },
            _ => match CheckpointError::of("writing", path, source) {
                CheckpointError::Storage { path, source, .. } => CheckpointError::Unwritable { path, source },
                clear => clear,
            },
        }
    }
}

/// A file or folder beside the checkpoints that is none.
pub(crate) struct Leftover {
    pub(crate) path: PathBuf,
    /// Which checkpoint it was to become.
    pub(crate) staged: Option<Staged>,
}

/// Which checkpoint a save is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) step: u64,
    pub(crate) generation: u64,
}

fn staged(name: &str) -> Option<Staged> {
    let (step, generation) = name.strip_prefix(TEMPORARY)?.strip_prefix(STEP)?.split_once(".g")?;
    Some(Staged { step: step.parse().ok()?, generation: generation.parse().ok()? })
}

/// A path in `folder` that nobody else uses. It is drawn at random: members in containers share process ids.
pub(crate) fn temporary_in(folder: &Path, purpose: &str) -> PathBuf {
    let random = RandomState::new().build_hasher().finish();
    folder.join(format!("{TEMPORARY}{purpose}-{random:016x}"))
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
