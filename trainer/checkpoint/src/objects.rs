//! What checkpoints need of an object store. This crate knows no protocol: whoever opens a folder in a bucket brings an implementation.

use std::{collections::BTreeMap, fmt};

/// The objects of one job. Keys are relative to its place in the bucket: `checkpoints/step-00000120.g4/manifest.json`.
///
/// What was put is seen by every later `get`, `length` and `list`, whoever asks, as S3, Google Cloud Storage and Azure Blob Storage promise.
/// An implementation tries again, within a limit of its own, what failed on the way.
pub trait Objects: fmt::Debug + Send + Sync {
    /// The job's place, as a URI.
    fn uri(&self) -> &str;

    /// Stores an object, in place of one of that key.
    ///
    /// # Errors
    /// The store refuses, or gives no answer.
    fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), ObjectsError>;

    /// Stores an object unless there is one of that key; of several that try at once, one succeeds. Where an answer was lost on the
    /// way the object that is there may be this one.
    ///
    /// # Errors
    /// The store refuses, or gives no answer; the object may be there then.
    fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, ObjectsError>;

    /// The bytes of an object, or none where there is no such object. One of more than `most` bytes is not read.
    ///
    /// # Errors
    /// The store refuses, gives no answer or cuts it, or the object is longer.
    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, ObjectsError>;

    /// The bytes that an object has, or none where there is no such object.
    ///
    /// # Errors
    /// The store refuses, or gives no answer.
    fn length(&self, key: &str) -> Result<Option<u64>, ObjectsError>;

    /// All keys below `folder`, which ends with `/`, with the bytes that each has.
    ///
    /// # Errors
    /// The store refuses, or gives no answer.
    fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, ObjectsError>;

    /// Deletes an object; no error where there is none.
    ///
    /// # Errors
    /// The store refuses, or gives no answer.
    fn delete(&self, key: &str) -> Result<(), ObjectsError>;
}

/// Whether an object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// There was none of its key.
    Now,
    /// There is one of its key, which was left as it is.
    Before,
}

/// Why an object store did not do what was asked: what was tried on which object, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ObjectsError {
    problem: String,
    passing: bool,
}

impl ObjectsError {
    /// The same may go well later.
    pub fn passing(problem: impl ToString) -> Self {
        Self { problem: problem.to_string(), passing: true }
    }

    /// The same will fail until somebody changes something.
    pub fn lasting(problem: impl ToString) -> Self {
        Self { problem: problem.to_string(), passing: false }
    }

    /// Whether the same may go well later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.passing
    }
}
