use std::fmt;
use std::time::Duration;

use crate::CollectiveError;

/// The bytes and the time of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transferred {
    /// Bytes sent, including the frames' headers.
    pub bytes_sent: u64,
    /// Bytes received, including the frames' headers.
    pub bytes_received: u64,
    /// Bytes of the data, if it was reduced through shared memory.
    pub bytes_through_memory: u64,
    /// The time from the operation's start to its end.
    pub took: Duration,
}

/// An operation that ended well.
#[derive(Debug)]
pub struct Completed<M> {
    /// The step of its tag.
    pub step: u64,
    /// The bucket of its tag.
    pub bucket: u32,
    /// The caller's memory, holding the result.
    pub memory: M,
    /// The bytes that it moved, and the time that it took.
    pub transferred: Transferred,
}

/// An operation that has no result.
pub struct Failed<M> {
    /// The step of its tag.
    pub step: u64,
    /// The bucket of its tag.
    pub bucket: u32,
    /// The caller's memory, its values undefined.
    pub memory: M,
    /// The cause. All operations after the first failed one carry the same cause.
    pub error: CollectiveError,
}

/// The end of an operation.
pub(crate) type Outcome<M> = Result<Completed<M>, Failed<M>>;

impl<M> fmt::Debug for Failed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed")
            .field("step", &self.step)
            .field("bucket", &self.bucket)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<M> fmt::Display for Failed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot exchange bucket {} of step {}", self.bucket, self.step)
    }
}

impl<M> std::error::Error for Failed<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<M> From<Failed<M>> for CollectiveError {
    fn from(failed: Failed<M>) -> Self {
        failed.error
    }
}
