//! What a save does to the file system, as values: the order is what makes a checkpoint whole or absent, so it is decided
//! in one place, and a test can stop after any of its parts.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::CheckpointError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Makes a folder that is not there yet.
    Create(PathBuf),
    /// Writes a file that is not there yet and waits until its bytes are stored.
    Write(PathBuf, Vec<u8>),
    /// Waits until the names in a folder are stored.
    Sync(PathBuf),
    /// Moves a file or folder, in one instant; onto a file replaces it.
    Rename(PathBuf, PathBuf),
}

impl Operation {
    pub(crate) fn perform(&self) -> Result<(), CheckpointError> {
        match self {
            Self::Create(path) => fs::create_dir(path).map_err(|error| of("creating", path, error)),
            Self::Write(path, bytes) => write(path, bytes).map_err(|error| of("writing", path, error)),
            Self::Sync(path) => sync_folder(path).map_err(|error| of("syncing", path, error)),
            Self::Rename(from, to) => fs::rename(from, to).map_err(|error| of("renaming to", to, error)),
        }
    }
}

/// Waits until the names in a folder are stored.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn of(attempt: &'static str, path: &Path, source: io::Error) -> CheckpointError {
    CheckpointError::of(attempt, path.to_owned(), source)
}
