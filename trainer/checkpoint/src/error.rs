use std::{io, path::PathBuf};

use crate::ObjectsError;

/// Why state cannot be stored or found.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The path leads to or through something that is no folder.
    #[error("checkpoint folder {}: it, or a part of its path, is no folder; set spec.checkpoint.uri to a folder", path.display())]
    NotAFolder {
        /// As it was given.
        path: PathBuf,
    },
    /// The file system takes no writes.
    #[error("checkpoint folder {} lies on a read-only file system; mount it writable or set spec.checkpoint.uri to another folder", path.display())]
    ReadOnly {
        /// Where writing was tried.
        path: PathBuf,
    },
    /// The folder cannot be made or written to.
    #[error("checkpoint folder {} cannot be written: {source}; let the user of this process write there or set spec.checkpoint.uri to another folder", path.display())]
    Unwritable {
        /// Where writing was tried.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file system is full.
    #[error("writing {}: no space left; free some or keep fewer checkpoints (spec.checkpoint.keepLast)", path.display())]
    Full {
        /// What was being written.
        path: PathBuf,
    },
    /// A file operation failed on the way to a whole checkpoint; nothing of it is visible.
    #[error("{attempt} {}: {source}; the checkpoints before are untouched, check the storage", path.display())]
    Storage {
        /// What was tried: `writing`, `reading`, …
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An object store refused, or gave no answer.
    #[error("{0}; the checkpoints before are untouched")]
    Objects(#[from] ObjectsError),
    /// Of two that commit, the other one was faster, with another state or to give the checkpoint up.
    #[error("{} was created by another worker of the same generation, or by one that cleared it away; nothing was overwritten, the next checkpoint will be another", path.display())]
    Conflict {
        /// The manifest.
        path: PathBuf,
    },
    /// A checkpoint of another job.
    #[error("{} belongs to another job: its {field} is `{found}`, this job's is `{expected}`; nothing was overwritten, set spec.checkpoint.uri to another folder or move this one away", path.display())]
    Foreign {
        /// The checkpoint.
        path: PathBuf,
        /// What differs: `model` or `workload digest`.
        field: &'static str,
        /// In the checkpoint.
        found: String,
        /// In this job.
        expected: String,
    },
    /// A checkpoint of this job whose tensors are not those of its model.
    #[error("{} does not fit the model: {problem}; nothing was overwritten, move it away or train with the version of lockstep that wrote it", path.display())]
    Misfit {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        problem: String,
    },
    /// A checkpoint in a format that this program does not know.
    #[error("{} has format version {found}, which this program does not know: it reads version {supported}; nothing was overwritten, use the program that wrote it or another folder", path.display())]
    UnknownFormat {
        /// The checkpoint.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that this program reads.
        supported: u64,
    },
    /// Nobody has saved a checkpoint there.
    #[error("{} is no folder of checkpoints: it has no folder `checkpoints`; name the folder of a job", path.display())]
    NoCheckpoints {
        /// As it was given.
        path: PathBuf,
    },
    /// Parts that are no whole checkpoint.
    #[error("{} cannot become a checkpoint: {problem}; the checkpoints before are untouched", path.display())]
    Shards {
        /// Where the parts lie.
        path: PathBuf,
        /// What is missing, or does not fit.
        problem: String,
    },
    /// The save was given up, as was asked for.
    #[error("{} was given up before it was whole; the checkpoints before are untouched", path.display())]
    Cancelled {
        /// Where its parts lie.
        path: PathBuf,
    },
    /// The system gives no thread.
    #[error("starting the thread that saves: {source}")]
    Thread {
        /// Why.
        source: io::Error,
    },
    /// Tensors that no arena can hold.
    #[error("the state cannot be stored: {problem}")]
    Layout {
        /// What is wrong with them.
        problem: String,
    },
    /// Tensors that no file can hold: two of one name, or a name that is reserved.
    #[error("{} cannot hold the tensors: {problem}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        problem: String,
    },
    /// What lies at a path is nothing to write a file into.
    #[error("{} is {found}: name a file", path.display())]
    NotAFile {
        /// As it was given.
        path: PathBuf,
        /// What is there, as `a folder`.
        found: &'static str,
    },
    /// A token that is no plain file name.
    #[error("probe token `{token}` is no plain name: 1 to {most} letters, digits, `-`, `_` or `.`, not starting with `.`", most = crate::MAX_TOKEN_BYTES)]
    Token {
        /// As it was given.
        token: String,
    },
}

impl CheckpointError {
    /// The error of `attempt` on `path`, where a folder is being opened or written.
    pub(crate) fn of(attempt: &'static str, path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotADirectory => Self::NotAFolder { path },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::PermissionDenied => Self::Unwritable { path, source },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Storage { attempt, path, source },
        }
    }
}
