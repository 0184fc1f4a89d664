use std::{io, path::PathBuf};

use crate::{CheckpointError, format::FORMAT_VERSION};

/// Why a file of a checkpoint cannot be used.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The file is damaged, or it is no file of a checkpoint.
    Damaged(String),
    /// The manifest is whole, but this program does not know its version.
    UnknownFormat(u64),
    /// The storage did not return the file. Its content is unknown.
    Unread(Box<CheckpointError>),
}

impl ReadError {
    /// Returns the error that a caller gets for a checkpoint at `path`.
    pub(crate) fn at(self, path: PathBuf) -> CheckpointError {
        match self {
            Self::UnknownFormat(found) => CheckpointError::UnknownFormat { path, found, supported: FORMAT_VERSION },
            Self::Unread(error) => *error,
            Self::Damaged(reason) => {
                CheckpointError::Storage { action: "reading", path, source: io::Error::other(reason) }
            }
        }
    }
}

impl From<CheckpointError> for ReadError {
    fn from(error: CheckpointError) -> Self {
        Self::Unread(Box::new(error))
    }
}
