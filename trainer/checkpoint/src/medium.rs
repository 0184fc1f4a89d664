//! What keeps checkpoints: a [file system](crate::files::Files) or an [object store](crate::bucket::Bucket). Each knows how parts become
//! a checkpoint in one instant, and how one ceases to be; what is stored, verified and deleted is decided above, for both.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::{
    CheckpointError, Position,
    chunk::Chunk,
    manifest::Unusable,
    operation::Contents,
    slot::{Leftover, Slot},
};

/// Paths begin with [`Medium::root`]; in a bucket that is a URI.
pub(crate) trait Medium: fmt::Debug + Send + Sync {
    /// The job's folder.
    fn root(&self) -> &Path;

    /// The checkpoint that a position is saved as where its place is free.
    fn slot(&self, position: Position) -> Slot;

    /// Checkpoints, whole or not, newest first.
    fn slots(&self) -> Result<Vec<Slot>, CheckpointError>;

    /// Checkpoints, whole or not, that have the place of a position, newest first.
    fn rivals(&self, position: Position) -> Result<Vec<Slot>, CheckpointError>;

    /// Waits until the names of all checkpoints are stored: who gave one may have ended before that.
    fn sync_slots(&self) -> Result<(), CheckpointError>;

    /// Saves under way, and what such that never ended have left.
    fn leftovers(&self) -> Result<Vec<Leftover>, CheckpointError>;

    /// Deletes an unfinished save. Its committer may still be at work: it then finds all of its parts or cannot commit.
    fn discard(&self, leftover: Leftover) -> Result<(), CheckpointError>;

    /// Deletes a checkpoint: at no instant is half of it taken for a whole one.
    fn delete(&self, slot: Slot) -> Result<(), CheckpointError>;

    /// Bytes of a regular file, or none where there is no such file.
    fn length(&self, path: &Path) -> Result<Option<u64>, Unusable>;

    /// Reads a file that was found to have so many bytes, in blocks of whole values but for the last.
    fn read(&self, path: &Path, length: u64, act: &mut dyn FnMut(&[u8])) -> Result<(), Unusable>;

    /// The names in a folder.
    fn names(&self, folder: &Path) -> Result<Vec<String>, CheckpointError>;

    /// Writes a file in one instant, in place of one of that name; when this returns, it survives a power failure.
    fn store(&self, path: &Path, contents: Contents<'_>) -> Result<(), CheckpointError>;

    /// Deletes a file, unless somebody else was faster.
    fn remove(&self, path: &Path) -> Result<(), CheckpointError>;

    /// Where the parts of a checkpoint lie until it is whole: all its writers know the place, and none of another generation has it.
    fn staging(&self, position: Position) -> PathBuf;

    /// Makes that place, unless it is there.
    fn make_staging(&self, position: Position) -> Result<(), CheckpointError>;

    /// Sees that a chunk is, or will be, among the parts in `staging`; the newest checkpoint, `before`, may have it too.
    fn write_chunk(
        &self,
        staging: &Path,
        before: Option<&Path>,
        chunk: &Chunk,
        contents: Contents<'_>,
    ) -> Result<Written, CheckpointError>;

    /// Waits until the bytes of what was written are stored.
    fn sync_chunk(&self, written: &Written) -> Result<(), CheckpointError>;

    /// Gives what was written the names of its chunks; when this returns, they survive a power failure.
    fn name_chunks(&self, staging: &Path, written: &[(Chunk, Written)]) -> Result<(), CheckpointError>;

    /// Whether what lies in a staging under this name, and is none of the parts, can only be left over from an earlier save.
    fn is_left_over(&self, name: &str) -> bool;

    /// Makes a checkpoint of the parts and their manifest, in one instant; when this returns, it survives a power failure.
    fn publish(&self, position: Position, manifest: &[u8], place: Replacing) -> Result<Published, CheckpointError>;

    /// Deletes the parts of a checkpoint that its own committer gives up; no error where they are gone already.
    fn abandon(&self, position: Position) -> Result<(), CheckpointError>;
}

/// What became of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was there already.
    Unchanged,
    /// It lies in this file, which has yet to get its name.
    Unnamed(PathBuf),
    /// It has its name.
    Named,
}

/// Whether others have the place of a checkpoint that is to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacing {
    Nothing,
    /// Damaged ones, or those of older groups.
    Others,
}

/// How publishing ended.
#[derive(Debug)]
pub(crate) enum Published {
    /// It is this one.
    Done(Slot),
    /// Somebody else was faster; this is to be said unless theirs does as well.
    Taken(CheckpointError),
}
