//! The operations of a group. Every frame names its operation, so that ranks which disagree get an
//! error instead of a wrong result.

use std::fmt;

use crate::Hosts;
use crate::algorithm::{self, Algorithm, MAX_FRAME, Schedule};
use crate::element::{ElementType, Reduction};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// All ranks end with the reduction.
    AllReduce(Algorithm),
    /// Each rank ends with its part of the reduction.
    ReduceScatter,
    /// All ranks end with the parts of all ranks.
    AllGather,
    /// All ranks end with the root's elements.
    Broadcast {
        /// The rank that has them.
        root: usize,
    },
    /// The root ends with the reduction.
    Reduce {
        /// The rank that gets it.
        root: usize,
    },
    /// The root ends with the parts of all ranks.
    Gather {
        /// The rank that gets them.
        root: usize,
    },
    /// Each rank ends with its part of the root's elements.
    Scatter {
        /// The rank that has them.
        root: usize,
    },
    /// Each rank ends with its block of every rank's elements.
    AllToAll,
    /// One rank ends with the elements of another.
    Send {
        /// The rank that has them.
        from: usize,
        /// The rank that gets them.
        to: usize,
    },
}

impl Operation {
    /// Returns the schedule of `rank` among the ranks of `hosts`, over an arena of `length`
    /// elements ([`Operation::AllToAll`]: twice as many).
    pub(crate) fn schedule(self, rank: usize, hosts: &Hosts, length: usize) -> Schedule {
        let world = hosts.world();
        match self {
            Self::AllReduce(algorithm) => algorithm::all_reduce(algorithm, rank, hosts, length, MAX_FRAME),
            Self::ReduceScatter => algorithm::reduce_scatter(rank, world, length, MAX_FRAME),
            Self::AllGather => algorithm::all_gather(rank, world, length, MAX_FRAME),
            Self::Broadcast { root } => algorithm::broadcast(rank, world, root, length, MAX_FRAME),
            Self::Reduce { root } => algorithm::reduce(rank, world, root, length, MAX_FRAME),
            Self::Gather { root } => algorithm::gather(rank, world, root, length, MAX_FRAME),
            Self::Scatter { root } => algorithm::scatter(rank, world, root, length, MAX_FRAME),
            Self::AllToAll => algorithm::all_to_all(rank, world, length, MAX_FRAME),
            Self::Send { from, to } => algorithm::send(rank, world, from, to, length, MAX_FRAME),
        }
    }

    /// Returns the lowest byte of the root, the receiver or the number of columns.
    fn shape(self) -> u8 {
        let number = match self {
            Self::AllReduce(algorithm) => algorithm.code().1,
            Self::Broadcast { root } | Self::Reduce { root } | Self::Gather { root } | Self::Scatter { root } => root,
            Self::Send { to, .. } => to,
            _ => 0,
        };
        number as u8
    }

    fn code(self) -> u8 {
        match self {
            Self::AllReduce(algorithm) => ALL_REDUCE | algorithm.code().0,
            Self::ReduceScatter => 1,
            Self::AllGather => 2,
            Self::Broadcast { .. } => 3,
            Self::Reduce { .. } => 4,
            Self::Gather { .. } => 5,
            Self::Scatter { .. } => 6,
            Self::AllToAll => 7,
            Self::Send { .. } => 8,
        }
    }
}

/// The code of the all-reduce in shared memory, which needs no frames.
const IN_MEMORY: u8 = 9;
/// The bit that marks an all-reduce; the lower bits hold its algorithm's code.
const ALL_REDUCE: u8 = 1 << 5;

/// The names of the other operations by their code.
const NAMES: [&str; 10] = [
    "none",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "send",
    "all-reduce in memory",
];

/// An operation as a frame names it, in three bytes. The first is its code. The second holds the
/// code of its elements, and in the upper half that of its reduction. The third is the lowest byte
/// of its root, or of its torus' columns. All are zero while no operation is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCode(pub [u8; 3]);

impl OperationCode {
    /// Returns the code of an operation; `element` is the code of the elements in the frames.
    pub(crate) fn new(operation: Operation, element: u8, reduction: Option<Reduction>) -> Self {
        Self([operation.code(), element | reduction.map_or(0, Reduction::code) << 4, operation.shape()])
    }

    /// Returns the elements and the reduction of an all-reduce in shared memory as a number.
    pub(crate) fn kind(element: ElementType, reduction: Reduction) -> u64 {
        u64::from(element.code() | reduction.code() << 4)
    }

    /// Returns the code of the all-reduce in shared memory with this number.
    pub(crate) fn all_reduce_in_memory(kind: u64) -> Self {
        Self([IN_MEMORY, kind as u8, 0])
    }
}

impl fmt::Display for OperationCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([operation, kind, shape]) = *self;
        let (element, reduction) = (ElementType::name_of(kind & 0xf), Reduction::name_of(kind >> 4));
        let all_reduce = Algorithm::from_code(operation & !ALL_REDUCE, 1).filter(|_| operation & ALL_REDUCE != 0);
        match (all_reduce, NAMES.get(usize::from(operation))) {
            (Some(algorithm), _) => write!(f, "{} all-reduce", algorithm.name())?,
            (None, Some(name)) => write!(f, "{name}")?,
            (None, None) => write!(f, "unknown operation")?,
        }
        write!(f, " ({shape}) of {element} by {reduction}")
    }
}
