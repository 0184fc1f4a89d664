use std::{io, path::PathBuf};

use crate::{ObjectsError, plain_name::MAX_TOKEN_BYTES};

/// Why a state cannot be stored or loaded.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The path leads to something that is not a folder, or passes through it.
    #[error("checkpoint folder {}: it, or a part of its path, is no folder; set spec.checkpoint.uri to a folder", path.display())]
    NotAFolder {
        /// The path that the caller gave.
        path: PathBuf,
    },
    /// The file system is read-only.
    #[error("checkpoint folder {} lies on a read-only file system; mount it writable or set spec.checkpoint.uri to another folder", path.display())]
    ReadOnly {
        /// The path of the failed write.
        path: PathBuf,
    },
    /// The folder cannot be made or written.
    #[error("checkpoint folder {} cannot be written: {source}; let the user of this process write there or set spec.checkpoint.uri to another folder", path.display())]
    Unwritable {
        /// The path of the failed write.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file system is full.
    #[error("writing {}: no space left; free some or keep fewer checkpoints (spec.checkpoint.keepLast)", path.display())]
    Full {
        /// The path of the failed write.
        path: PathBuf,
    },
    /// A file operation failed. No unfinished checkpoint is visible.
    #[error("{action} {}: {source}; the checkpoints before are untouched, check the storage", path.display())]
    Storage {
        /// The operation: `writing`, `reading`, …
        action: &'static str,
        /// The path of the operation.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An object store refused a request or did not answer.
    #[error("{error}{}", if *checkpoint_seen { "; the checkpoints before are untouched" } else { "" })]
    Objects {
        /// The request, the cause and the remedy.
        error: ObjectsError,
        /// True if the store has shown or accepted a checkpoint before.
        checkpoint_seen: bool,
    },
    /// Another committer of the same generation was faster. It stored another state or abandoned
    /// the checkpoint.
    #[error("{} was created by another worker of the same generation, or by one that cleared it away; nothing was overwritten, the next checkpoint will be another", path.display())]
    Conflict {
        /// The path of the manifest.
        path: PathBuf,
    },
    /// The checkpoint belongs to another job.
    #[error("{} belongs to another job: its {field} is `{found}`, this job's is `{expected}`; nothing was overwritten, set spec.checkpoint.uri to another folder or move this one away", path.display())]
    Foreign {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The field that differs: `model` or `workload digest`.
        field: &'static str,
        /// Its value in the checkpoint.
        found: String,
        /// Its value in this job.
        expected: String,
    },
    /// A checkpoint of this job has other tensors than the job's model.
    #[error("{} does not fit the model: {problem}; nothing was overwritten, move it away or train with the version of lockstep that wrote it", path.display())]
    Misfit {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The difference.
        problem: String,
    },
    /// A checkpoint in a format that this program does not know.
    #[error("{} has format version {found}, which this program does not know: it reads version {supported}; nothing was overwritten, use the program that wrote it or another folder", path.display())]
    UnknownFormat {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The version of its format.
        found: u64,
        /// The version that this program reads.
        supported: u64,
    },
    /// The path holds no checkpoints.
    #[error("{} is no folder of checkpoints: it has no folder `checkpoints`; name the folder of a job", path.display())]
    NoCheckpoints {
        /// The path that the caller gave.
        path: PathBuf,
    },
    /// The stored parts do not make a whole checkpoint.
    #[error("{} cannot become a checkpoint: {problem}; the checkpoints before are untouched", path.display())]
    Parts {
        /// The path of the parts.
        path: PathBuf,
        /// The part that is missing or does not fit.
        problem: String,
    },
    /// The save was cancelled on request.
    #[error("{} was cancelled before it was whole; the checkpoints before are untouched", path.display())]
    Cancelled {
        /// The path of its parts.
        path: PathBuf,
    },
    /// The system refused to start a thread.
    #[error("starting the thread that saves: {source}")]
    Thread {
        /// The cause.
        source: io::Error,
    },
    /// No arena can hold these tensors.
    #[error("the state cannot be stored: {problem}")]
    Layout {
        /// The reason.
        problem: String,
    },
    /// No file can hold these tensors: two share a name, or a name is reserved.
    #[error("{} cannot hold the tensors: {problem}", path.display())]
    Tensors {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// No file can be written at this path.
    #[error("{} is {found}: name a file", path.display())]
    NotAFile {
        /// The path that the caller gave.
        path: PathBuf,
        /// The kind of thing at the path, as `a folder`.
        found: &'static str,
    },
    /// The token is not a plain file name.
    #[error("probe token `{token}` is no plain name: 1 to {most} letters, digits, `-`, `_` or `.`, not starting with `.`", most = MAX_TOKEN_BYTES)]
    Token {
        /// The token that the caller gave, cut to the limit.
        token: String,
    },
}

impl CheckpointError {
    /// Returns the error of `action` on `path`.
    pub(crate) fn of(action: &'static str, path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotADirectory => Self::NotAFolder { path },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::PermissionDenied => Self::Unwritable { path, source },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Storage { action, path, source },
        }
    }
}

impl From<ObjectsError> for CheckpointError {
    fn from(error: ObjectsError) -> Self {
        Self::Objects { error, checkpoint_seen: false }
    }
}
