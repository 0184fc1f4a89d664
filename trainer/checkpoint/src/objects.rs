//! The interface to an object store. This crate knows no protocol. The caller that opens a folder
//! in a bucket brings an implementation.

use std::{collections::BTreeMap, fmt};

/// The objects of one job. Keys are relative to the job's prefix in the bucket:
/// `checkpoints/step-00000120.g4/manifest.json`.
///
/// Every later `get`, `length` and `list` of any process sees a stored object. S3, Google Cloud
/// Storage and Azure Blob Storage promise this. An implementation repeats a failed request within a
/// limit of its own.
pub trait Objects: fmt::Debug + Send + Sync {
    /// The URI of the job's prefix.
    fn uri(&self) -> &str;

    /// Stores an object. Replaces an object with the same key.
    ///
    /// # Errors
    /// The store refuses or does not answer.
    fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), ObjectsError>;

    /// Stores an object unless its key exists. If several callers try at once, exactly one
    /// succeeds. If an answer was lost on the way, the object in the store may be the caller's own.
    ///
    /// # Errors
    /// The store refuses or does not answer. The object may exist then.
    fn create(&self, key: &str, bytes: Vec<u8>) -> Result<Created, ObjectsError>;

    /// Returns the bytes of an object, or `None` if there is no such object. An object of more than
    /// `most` bytes is not read.
    ///
    /// # Errors
    /// The store refuses, does not answer or cuts the answer, or the object is longer.
    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, ObjectsError>;

    /// Returns the length of an object in bytes, or `None` if there is no such object.
    ///
    /// # Errors
    /// The store refuses or does not answer.
    fn length(&self, key: &str) -> Result<Option<u64>, ObjectsError>;

    /// Returns all keys below `folder`, which ends with `/`, and the length of each object.
    ///
    /// # Errors
    /// The store refuses or does not answer.
    fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, ObjectsError>;

    /// Deletes an object. Succeeds if there is none.
    ///
    /// # Errors
    /// The store refuses or does not answer.
    fn delete(&self, key: &str) -> Result<(), ObjectsError>;
}

/// The outcome of [`Objects::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The key was free. The object is stored.
    Now,
    /// The key was taken. The object there is unchanged.
    Before,
}

/// Why an object store did not do a request. The text names the request, the object and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ObjectsError {
    problem: String,
    passing: bool,
}

impl ObjectsError {
    /// Makes an error of a request that may succeed later.
    pub fn passing(problem: impl ToString) -> Self {
        Self { problem: problem.to_string(), passing: true }
    }

    /// Makes an error of a request that fails until somebody changes something.
    pub fn lasting(problem: impl ToString) -> Self {
        Self { problem: problem.to_string(), passing: false }
    }

    /// True if the same request may succeed later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.passing
    }
}
