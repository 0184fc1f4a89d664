use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    CheckpointError, Objects, bucket::Bucket, chunk::CHUNK_BYTES, files::Files, medium::Medium, shard::AT_ONCE,
    slot::Slot,
};

/// A folder that keeps checkpoints, in a file system or in an object store. All members write their parts of one and any may read; one
/// commits and prunes.
#[derive(Clone, Debug)]
pub struct Folder {
    pub(crate) medium: Arc<dyn Medium>,
    /// Bytes of a chunk; smaller in tests.
    pub(crate) chunk_bytes: u64,
    /// Chunks that one writer or reader works on at once; one in the simulation, where a seed decides the order of everything.
    pub(crate) at_once: usize,
}

impl Folder {
    /// Opens the folder at `path`, making it where it is missing, and sees that it can be written; one that was made before need not take
    /// anything now.
    ///
    /// # Errors
    /// [`CheckpointError::NotAFolder`], [`CheckpointError::ReadOnly`], [`CheckpointError::Unwritable`] or
    /// [`CheckpointError::Full`], each with the path and what to do.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let files = Files::at(path.into());
        files.make()?;
        Ok(Self::on(Arc::new(files)))
    }

    /// Opens the folder at `path` to read from it; nothing is made there.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoints`] where it is no folder of checkpoints.
    pub fn open_existing(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let files = Files::at(path.into());
        files.find()?;
        Ok(Self::on(Arc::new(files)))
    }

    /// Opens a place in a bucket, and sees that objects can be created there.
    ///
    /// # Errors
    /// [`CheckpointError::Objects`] where the store refuses, or would let two workers create the same object.
    pub fn open_bucket(objects: Arc<dyn Objects>) -> Result<Self, CheckpointError> {
        let bucket = Bucket::of(objects);
        bucket.try_out()?;
        Ok(Self::on(Arc::new(bucket)))
    }

    /// Opens a place in a bucket to read from it; nothing is made there.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoints`] where it has none, and [`CheckpointError::Objects`].
    pub fn open_existing_bucket(objects: Arc<dyn Objects>) -> Result<Self, CheckpointError> {
        let bucket = Bucket::of(objects);
        bucket.find()?;
        Ok(Self::on(Arc::new(bucket)))
    }

    pub(crate) fn on(medium: Arc<dyn Medium>) -> Self {
        Self { medium, chunk_bytes: CHUNK_BYTES, at_once: AT_ONCE }
    }

    /// As it was given to [`Folder::open`]; of a bucket, the URI.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.medium.root()
    }

    /// Where a checkpoint lies once it is whole.
    pub(crate) fn place(&self, slot: Slot) -> PathBuf {
        self.path().join("checkpoints").join(slot.to_string())
    }

    /// Deletes the unfinished saves of generations before this one: their members have left.
    ///
    /// # Errors
    /// Any error of the storage.
    pub fn clear_generations_before(&self, generation: u64) -> Result<(), CheckpointError> {
        let leftovers = self.medium.leftovers()?.into_iter();
        let mut old = leftovers.filter(|leftover| leftover.staged.is_some_and(|staged| staged.generation < generation));
        old.try_for_each(|leftover| self.medium.discard(leftover))
    }
}
