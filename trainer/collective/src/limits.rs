//! The limits of a group.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::sockets::Sockets;
use crate::waiting::Waiting;

/// The most operations that may be submitted to a [`Communicator`](crate::Communicator) and not yet
/// waited for.
pub const MAX_PENDING: usize = 1024;

/// The limits of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest time for the ranks to connect. After that it is the longest silence until the
    /// group is formed.
    pub forming: Duration,
    /// The longest time without a whole frame (at most 1 MiB of `f32`) in an operation. It must
    /// exceed the longest operation, and the time by which one rank may come later than another. A
    /// peer's system may also acknowledge nothing for this long, until
    /// [`Group::set_silence`](crate::Group::set_silence) changes it.
    pub silence: Duration,
    /// How a rank waits for bytes. All ranks use [`Waiting::Adaptive`], or none.
    pub waiting: Waiting,
    /// The number of threads with which each rank computes.
    pub threads: NonZeroUsize,
    /// True if ranks of one host, all at one IP address, may reduce through shared memory; the same
    /// on all ranks.
    pub shares_memory: bool,
    /// The number of connections of each pair of ranks, the same on all ranks. Several help if the
    /// network limits each flow. One thread drives them all, so they do not help if a core is the
    /// limit. A star always has one connection for each pair.
    pub sockets: Sockets,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            forming: Duration::from_secs(60),
            silence: Duration::from_secs(30),
            waiting: Waiting::Block,
            threads: NonZeroUsize::MIN,
            shares_memory: true,
            sockets: Sockets::ONE,
        }
    }
}
