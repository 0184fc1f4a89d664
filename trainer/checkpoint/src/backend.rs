//! The two kinds of storage: a [file system](crate::file_backend::FileBackend) and an [object
//! store](crate::object_backend::ObjectBackend). A backend turns parts into a checkpoint in one
//! instant, and deletes one in one instant. The modules above decide for both what is stored,
//! verified and deleted.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::{
    CheckpointError, Position,
    checkpoint_id::{CheckpointId, Leftover},
    chunk::Chunk,
    file_operation::Contents,
    read_error::ReadError,
};

/// All paths begin with [`Backend::root`]. In a bucket the root is a URI.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// The job's folder.
    fn root(&self) -> &Path;

    /// Returns the name that a checkpoint of this position gets if it is free.
    fn id(&self, position: Position) -> CheckpointId;

    /// Returns the checkpoints, whole or damaged, newest first.
    fn ids(&self) -> Result<Vec<CheckpointId>, CheckpointError>;

    /// Returns the checkpoints, whole or damaged, that compete with one of this position, newest
    /// first.
    fn rivals(&self, position: Position) -> Result<Vec<CheckpointId>, CheckpointError>;

    /// Waits until the names of all checkpoints are durable. A member that named one may have ended
    /// too early.
    fn sync_checkpoint_names(&self) -> Result<(), CheckpointError>;

    /// Returns unfinished saves, including those that nobody continues.
    fn leftovers(&self) -> Result<Vec<Leftover>, CheckpointError>;

    /// Deletes an unfinished save. If its committer still works, it finds all parts or cannot
    /// commit.
    fn discard(&self, leftover: Leftover) -> Result<(), CheckpointError>;

    /// Deletes a checkpoint. Nobody can take a half-deleted checkpoint for a whole one.
    fn delete(&self, id: CheckpointId) -> Result<(), CheckpointError>;

    /// Returns the length of a regular file, or `None` if there is no such file.
    fn length(&self, path: &Path) -> Result<Option<u64>, ReadError>;

    /// Reads a file of a known length in blocks. All blocks but the last hold whole values.
    fn read(&self, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), ReadError>;

    /// Returns the names in a folder.
    fn file_names(&self, folder: &Path) -> Result<Vec<String>, CheckpointError>;

    /// Writes a file in one instant. Replaces a file with the same name. On return it survives a
    /// power failure.
    fn store(&self, path: &Path, contents: Contents<'_>) -> Result<(), CheckpointError>;

    /// Deletes a file. Succeeds if it is already gone.
    fn remove(&self, path: &Path) -> Result<(), CheckpointError>;

    /// Returns the staging folder: the parts lie there until the checkpoint is whole. All writers
    /// of a generation use the same one. No other generation uses it.
    fn staging(&self, position: Position) -> PathBuf;

    /// Makes the staging folder unless it exists.
    fn make_staging(&self, position: Position) -> Result<(), CheckpointError>;

    /// Stores a chunk in the folder `staging`. It may instead refer to the newest checkpoint,
    /// `before`, if that holds the same chunk.
    fn write_chunk(
        &self,
        staging: &Path,
        before: Option<&Path>,
        chunk: &Chunk,
        contents: Contents<'_>,
    ) -> Result<Written, CheckpointError>;

    /// Waits until the bytes of a chunk are stored.
    fn sync_chunk(&self, written: &Written) -> Result<(), CheckpointError>;

    /// Gives chunks their names. On return they survive a power failure.
    fn name_chunks(&self, staging: &Path, written: &[(Chunk, Written)]) -> Result<(), CheckpointError>;

    /// True if an earlier save must have left this file. The file lies in a staging folder and
    /// belongs to no part.
    fn is_left_over(&self, name: &str) -> bool;

    /// Turns the parts and their manifest into a checkpoint in one instant. On return it survives a
    /// power failure.
    fn publish(&self, position: Position, manifest: &[u8], replacing: Replacing) -> Result<Published, CheckpointError>;

    /// Deletes the parts of a checkpoint that its committer abandons. Succeeds if they are already
    /// gone.
    fn abandon(&self, position: Position) -> Result<(), CheckpointError>;
}

/// The outcome of writing a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The storage already held the chunk.
    Unchanged,
    /// The chunk lies in this file and needs its name.
    Unnamed(PathBuf),
    /// The chunk has its name.
    Named,
}

/// Says if a new checkpoint competes with others of the same step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacing {
    Nothing,
    /// Damaged checkpoints, or those of older groups.
    Others,
}

/// The outcome of publishing.
#[derive(Debug)]
pub(crate) enum Published {
    /// This checkpoint was published.
    Done(CheckpointId),
    /// Another committer was faster. The caller gets this error unless the other checkpoint will
    /// do.
    Taken(CheckpointError),
}
