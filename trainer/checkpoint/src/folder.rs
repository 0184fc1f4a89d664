use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    path::{Path, PathBuf},
};

use crate::{CheckpointError, operation::sync_folder};

/// What a save in progress is called, so that no reader takes it for a checkpoint.
pub(crate) const TEMPORARY: &str = ".tmp-";
const STEP: &str = "step-";
/// Digits of a step in a name, so that names sort as steps do; greater steps take more.
const STEP_DIGITS: usize = 8;

/// A folder that keeps checkpoints. One member writes at a time; any member may read.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Opens the folder at `path`, making it where it is missing, and sees that it can be written.
    ///
    /// # Errors
    /// [`CheckpointError::NotAFolder`], [`CheckpointError::ReadOnly`], [`CheckpointError::Unwritable`] or
    /// [`CheckpointError::Full`], each with the path and what to do.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let folder = Self { root: path.into() };
        for needed in [folder.checkpoints(), folder.probes()] {
            make(&needed).map_err(|source| folder.unwritable(source))?;
        }
        // Not among the checkpoints, where another member may be pruning leftovers.
        let trial = temporary_in(&folder.probes(), "trial");
        File::create_new(&trial).and_then(|_| fs::remove_file(&trial)).map_err(|source| folder.unwritable(source))?;
        Ok(folder)
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

    /// What saves that never ended have left.
    pub(crate) fn leftovers(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let names = self.names()?.into_iter().filter(|name| name.starts_with(TEMPORARY));
        Ok(names.map(|name| self.checkpoints().join(name)).collect())
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
        Ok(()) => sync_folder(parent.unwrap_or(Path::new("."))),
    }
}
