//! Bugs that the simulation must find. Each one is a plausible omission of the checkpoint code.

use std::{io, path::Path};

use super::machine::is_checkpoints;
use crate::{
    file_backend::TEMPORARY,
    file_operation::{FileOperation, PathKind},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The names of parts are not stored before the checkpoint.
    NamesAreNotSynced,
    /// The manifest is published before the chunks are stored.
    ChunksAreNotSynced,
    /// The checkpoint's own name is not stored.
    PublishedIsNotSynced,
    /// A failed sync counts as a success.
    FailedSyncPasses,
    /// A checkpoint is deleted without moving it aside.
    DeletedInPlace,
    /// Old checkpoints are deleted before the newest one was read again.
    PrunedUnread,
    /// An unreadable path counts as absent.
    ErrorsPassForAbsence,
}

impl Bug {
    pub(super) const ALL: [Self; 7] = [
        Self::NamesAreNotSynced,
        Self::ChunksAreNotSynced,
        Self::PublishedIsNotSynced,
        Self::FailedSyncPasses,
        Self::DeletedInPlace,
        Self::PrunedUnread,
        Self::ErrorsPassForAbsence,
    ];

    /// Performs an operation with this bug.
    pub(super) fn perform(
        self,
        operation: &FileOperation<'_>,
        perform: impl Fn(&FileOperation<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        match (self, operation) {
            (Self::NamesAreNotSynced, FileOperation::Sync(path)) if is_of(path, "step-") => Ok(()),
            (Self::ChunksAreNotSynced, FileOperation::Sync(path)) if is_of(path, "chunk-") => Ok(()),
            (Self::PublishedIsNotSynced, FileOperation::Sync(path)) if is_checkpoints(path) => Ok(()),
            (Self::FailedSyncPasses, FileOperation::Sync(_)) => perform(operation).or(Ok(())),
            (Self::DeletedInPlace, FileOperation::Rename(from, to)) if is_of(to, "deleted-") => {
                perform(&FileOperation::Remove(from.clone()))
            }
            _ => perform(operation),
        }
    }

    /// Looks at a path with this bug.
    pub(super) fn look(self, look: impl Fn() -> io::Result<PathKind>) -> io::Result<PathKind> {
        match self {
            Self::ErrorsPassForAbsence => look().map_err(|_| io::ErrorKind::NotFound.into()),
            _ => look(),
        }
    }
}

fn is_of(path: &Path, purpose: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix(TEMPORARY)).is_some_and(|rest| rest.starts_with(purpose))
}
