use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    CheckpointError, Objects, backend::Backend, checkpoint_id::CheckpointId, chunk::CHUNK_BYTES,
    file_backend::FileBackend, object_backend::ObjectBackend,
};

/// The number of chunks that one writer or reader works on at once.
const AT_ONCE: usize = 3;

/// A folder of checkpoints in a file system or an object store. All members write their parts, and
/// any member may read. One member commits checkpoints and deletes old ones.
#[derive(Clone, Debug)]
pub struct Folder {
    pub(crate) backend: Arc<dyn Backend>,
    /// The bytes of a chunk. Tests use less.
    pub(crate) chunk_bytes: u64,
    /// The number of chunks that one writer or reader works on at once. It is one in the
    /// simulation, where a seed decides the order of everything.
    pub(crate) at_once: usize,
}

impl Folder {
    /// Opens the folder at `path`. A missing folder is made, and it must be writable. An existing
    /// one may be full or read-only now: saving waits until it is writable again.
    ///
    /// # Errors
    /// [`CheckpointError::NotAFolder`], [`CheckpointError::ReadOnly`],
    /// [`CheckpointError::Unwritable`] or [`CheckpointError::Full`], each with the path and the
    /// remedy.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let files = FileBackend::at(path.into());
        files.make()?;
        Ok(Self::on(Arc::new(files)))
    }

    /// Opens the folder at `path` for reading. Makes nothing.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoints`] if it holds no checkpoints.
    pub fn open_existing(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let files = FileBackend::at(path.into());
        files.check_exists()?;
        Ok(Self::on(Arc::new(files)))
    }

    /// Opens a prefix in a bucket and checks that objects can be created there.
    ///
    /// # Errors
    /// [`CheckpointError::Objects`] if the store refuses, or if it would let two workers create the
    /// same object.
    pub fn open_bucket(objects: Arc<dyn Objects>) -> Result<Self, CheckpointError> {
        let bucket = ObjectBackend::of(objects);
        bucket.check_creation()?;
        Ok(Self::on(Arc::new(bucket)))
    }

    /// Opens a prefix in a bucket for reading. Makes nothing.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoints`] if it holds no checkpoints, and
    /// [`CheckpointError::Objects`].
    pub fn open_existing_bucket(objects: Arc<dyn Objects>) -> Result<Self, CheckpointError> {
        let bucket = ObjectBackend::of(objects);
        bucket.check_not_empty()?;
        Ok(Self::on(Arc::new(bucket)))
    }

    pub(crate) fn on(backend: Arc<dyn Backend>) -> Self {
        Self { backend, chunk_bytes: CHUNK_BYTES, at_once: AT_ONCE }
    }

    /// Returns the path that [`Folder::open`] was given, or the URI of a bucket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.backend.root()
    }

    /// Returns the path at which this checkpoint is, or would be.
    pub(crate) fn path_of(&self, id: CheckpointId) -> PathBuf {
        self.path().join("checkpoints").join(id.to_string())
    }

    /// Deletes the unfinished saves of generations before this one. Their members have moved on.
    ///
    /// # Errors
    /// Any error of the storage.
    pub fn clear_generations_before(&self, generation: u64) -> Result<(), CheckpointError> {
        let leftovers = self.backend.leftovers()?.into_iter();
        let mut old = leftovers.filter(|leftover| leftover.staged.is_some_and(|staged| staged.generation < generation));
        old.try_for_each(|leftover| self.backend.discard(leftover))
    }
}
