//! What ranks do together. Every frame says it, so that ranks which disagree are told so instead of being given a wrong result.

use std::fmt;

use crate::Hosts;
use crate::algorithm::{self, Algorithm, Schedule};
use crate::element::{ElementType, Reduction};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// All ranks end with the reduction.
    AllReduce(Algorithm),
    /// Each rank ends with its part of the reduction.
    ReduceScatter,
    /// All ranks end with every rank's part.
    AllGather,
    /// All ranks end with what the root has.
    Broadcast {
        /// A rank.
        root: usize,
    },
    /// The root ends with the reduction.
    Reduce {
        /// A rank.
        root: usize,
    },
    /// The root ends with every rank's part.
    Gather {
        /// A rank.
        root: usize,
    },
    /// Each rank ends with its part of what the root has.
    Scatter {
        /// A rank.
        root: usize,
    },
    /// Each rank ends with its block of what every rank has.
    AllToAll,
    /// One rank ends with what another has.
    Send {
        /// The rank that has it.
        from: usize,
        /// The rank that gets it.
        to: usize,
    },
}

impl Operation {
    /// The part of `rank` among those of `hosts`, over an arena of `length` elements ([`Operation::AllToAll`]: of twice as many).
    pub(crate) fn schedule(self, rank: usize, hosts: &Hosts, length: usize) -> Schedule {
        let world = hosts.world();
        match self {
            Self::AllReduce(algorithm) => algorithm::all_reduce(algorithm, rank, hosts, length),
            Self::ReduceScatter => algorithm::reduce_scatter(rank, world, length),
            Self::AllGather => algorithm::all_gather(rank, world, length),
            Self::Broadcast { root } => algorithm::broadcast(rank, world, root, length),
            Self::Reduce { root } => algorithm::reduce(rank, world, root, length),
            Self::Gather { root } => algorithm::gather(rank, world, root, length),
            Self::Scatter { root } => algorithm::scatter(rank, world, root, length),
            Self::AllToAll => algorithm::all_to_all(rank, world, length),
            Self::Send { from, to } => algorithm::send(rank, world, from, to, length),
        }
    }

    /// The lowest byte of what ranks must agree on besides.
    const fn shape(self) -> u8 {
        let number = match self {
            Self::AllReduce(Algorithm::Torus { columns }) => columns,
            Self::Broadcast { root } | Self::Reduce { root } | Self::Gather { root } | Self::Scatter { root } => root,
            Self::Send { to, .. } => to,
            _ => 0,
        };
        number as u8
    }

    const fn code(self) -> u8 {
        match self {
            Self::AllReduce(Algorithm::Ring) => 1,
            Self::AllReduce(Algorithm::RecursiveDoubling) => 2,
            Self::AllReduce(Algorithm::HalvingDoubling) => 3,
            Self::AllReduce(Algorithm::DoubleTree) => 4,
            Self::AllReduce(Algorithm::Torus { .. }) => 5,
            Self::AllReduce(Algorithm::Direct) => 15,
            Self::AllReduce(Algorithm::Hierarchical) => 16,
            Self::ReduceScatter => 6,
            Self::AllGather => 7,
            Self::Broadcast { .. } => 8,
            Self::Reduce { .. } => 9,
            Self::Gather { .. } => 10,
            Self::Scatter { .. } => 11,
            Self::AllToAll => 12,
            Self::Send { .. } => 13,
        }
    }
}

/// The code of the all-reduce that needs no frames.
const IN_MEMORY: u8 = 14;

/// The names of operations by their code.
const NAMES: [&str; 17] = [
    "none",
    "ring all-reduce",
    "recursive doubling all-reduce",
    "halving-doubling all-reduce",
    "double tree all-reduce",
    "torus all-reduce",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "send",
    "all-reduce in memory",
    "direct all-reduce",
    "hierarchical all-reduce",
];

/// An operation as a frame names it: its code; that of its elements, and in the upper half that of its reduction; and the lowest byte
/// of its root, or of its torus' columns. Zeros where no operation is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call(pub [u8; 3]);

impl Call {
    /// `element` is the code of the elements in the frames.
    pub(crate) fn new(operation: Operation, element: u8, reduction: Option<Reduction>) -> Self {
        Self([operation.code(), element | reduction.map_or(0, Reduction::code) << 4, operation.shape()])
    }

    /// As a number: what an all-reduce through memory reduces, and how.
    pub(crate) fn kind(element: ElementType, reduction: Reduction) -> u64 {
        u64::from(element.code() | reduction.code() << 4)
    }

    /// The all-reduce through memory of such a kind.
    pub(crate) fn all_reduce_in_memory(kind: u64) -> Self {
        Self([IN_MEMORY, kind as u8, 0])
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([operation, kind, shape]) = *self;
        let name = NAMES.get(usize::from(operation)).unwrap_or(&"unknown operation");
        let (element, reduction) = (ElementType::name_of(kind & 0xf), Reduction::name_of(kind >> 4));
        write!(f, "{name} ({shape}) of {element} by {reduction}")
    }
}
