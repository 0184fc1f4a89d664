//! What a group may take.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::sockets::Sockets;
use crate::waiting::Waiting;

/// Operations that may be submitted to a [`Communicator`](crate::Communicator) and not yet waited for.
pub const MAX_PENDING: usize = 1024;

/// What a group may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long the ranks of a group may take to connect, and then one to tell the others anything, before the group is formed.
    pub forming: Duration,
    /// How long a rank may go without a whole frame, at most 1 MiB of f32, moving in an operation. It must exceed the time by which one rank may come to
    /// an operation later than another, and the longest operation. So long, too, a peer's system may acknowledge nothing, until
    /// [`Group::set_silence`](crate::Group::set_silence) says otherwise.
    pub silence: Duration,
    /// How a rank waits for bytes; [`Waiting::Adaptive`] on all ranks or none.
    pub waiting: Waiting,
    /// The threads that each rank computes with.
    pub threads: NonZeroUsize,
    /// Whether ranks that share a host, all at one IP address, may reduce through memory that all of them map; the same on all.
    pub shares_memory: bool,
    /// How many connections each pair of ranks has, more than one where the network limits each flow; the same on all. One thread drives
    /// them all: where a core is what limits it, more are no faster. A star has one for each rank in any case.
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
