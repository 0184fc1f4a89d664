//! What a group may take, and how its ranks wait.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::stripes::Sockets;

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

/// How a rank waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It sleeps at once: right where ranks outnumber cores.
    Block,
    /// It looks again for some microseconds first: lower latency where each rank has a core to itself.
    SpinThenBlock,
    /// The latter where this process may use a core for each thread of the group's ranks on this host, else the former, as while the
    /// group forms and in a star. A rank whose host nobody knows counts as alone on it.
    Adaptive,
}

/// How long a rank looks before it sleeps, when told to look at all: ranks that compute the same come together sooner, and one that
/// sleeps costs them a wake-up, some 50 µs in a virtual machine.
const SPIN: Duration = Duration::from_micros(400);

impl Waiting {
    /// Whether a rank that has found nothing for so long looks again at once.
    pub(crate) fn looks_again(self, idle: Duration) -> bool {
        self == Self::SpinThenBlock && idle < SPIN
    }

    /// What [`Waiting::Adaptive`] means where so many ranks, of so many threads each, share so many cores.
    pub(crate) fn resolved(self, ranks: usize, threads: NonZeroUsize, cores: usize) -> Self {
        match self {
            Self::Adaptive if ranks.saturating_mul(threads.get()) <= cores => Self::SpinThenBlock,
            Self::Adaptive => Self::Block,
            Self::Block | Self::SpinThenBlock => self,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_spin_only_where_each_of_their_threads_has_a_core() {
        for (ranks, threads, cores, meant) in [
            (1, 1, 1, Waiting::SpinThenBlock),
            (2, 1, 2, Waiting::SpinThenBlock),
            (3, 1, 2, Waiting::Block),
            (2, 2, 4, Waiting::SpinThenBlock),
            (2, 2, 3, Waiting::Block),
            (1, 2, 1, Waiting::Block),
            (2, usize::MAX, 64, Waiting::Block),
        ] {
            let threads = NonZeroUsize::new(threads).unwrap();
            assert_eq!(Waiting::Adaptive.resolved(ranks, threads, cores), meant, "{ranks} of {threads} on {cores}");
        }
        for given in [Waiting::Block, Waiting::SpinThenBlock] {
            assert_eq!(given.resolved(2, NonZeroUsize::MIN, 1), given);
            assert_eq!(given.resolved(1, NonZeroUsize::MIN, 1), given);
        }
    }
}
