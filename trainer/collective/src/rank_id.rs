//! The identity of a rank: its job, its generation and its number.

use std::fmt;

/// The identity of a job: the 16 bytes of its UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(pub [u8; 16]);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A rank of one generation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankId {
    /// The job.
    pub job: JobId,
    /// The generation.
    pub generation: u64,
    /// The rank's number in it.
    pub rank: usize,
}
