//! Where a process stands: in which job, generation and place.

use std::fmt;

/// A job's identity: the 16 bytes of its UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(pub [u8; 16]);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A place in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankId {
    /// The job.
    pub job: JobId,
    /// The membership.
    pub generation: u64,
    /// This process's rank in it.
    pub rank: usize,
}
