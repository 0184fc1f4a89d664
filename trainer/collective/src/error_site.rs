//! The transfer at which an operation broke.
//!
//! Ranks that wait for each other all time out, and each names the rank that it waited for. But all
//! ranks do their transfers in one order. So the earliest transfer that any rank lacks is the one
//! that the others came to wait for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tag::{BESIDE, NO_STEP};

/// A transfer of the group's operations. Sites are ordered as all ranks do their transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ErrorSite {
    /// The number of operations that all ranks of the group had begun before. Tags need not ascend.
    pub operation: u64,
    /// The step of the operation's tag.
    pub step: u64,
    /// The bucket of its tag.
    pub bucket: u32,
    /// The hop, from 1. In shared memory it is the barrier.
    pub hop: u32,
    /// The rank that sends, or is awaited at the barrier.
    pub from: u32,
    /// The rank that receives, or waits.
    pub to: u32,
    /// The number of hops of the operation.
    pub hops: u32,
}

/// The origin of a failure as one rank knows it. [`Origin::first`] finds the origin for the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The first transfer that was lacking.
    #[serde(rename = "position")]
    pub site: ErrorSite,
    /// The rank that was waited for.
    pub rank: usize,
    /// The fault of that rank.
    #[serde(rename = "loss")]
    pub fault: PeerFault,
}

impl Origin {
    /// Returns the origin of a failure, given what some ranks know, each with its rank.
    ///
    /// A rank that failed names nobody else. So among the named ranks that name nobody, it is the
    /// one that some rank waited for first.
    #[must_use]
    pub fn first(known: &[(usize, Self)]) -> Option<Self> {
        let names_another = |rank: usize| known.iter().any(|(knows, origin)| *knows == rank && origin.rank != rank);
        let origins = || known.iter().map(|(_, origin)| *origin);
        origins().filter(|origin| !names_another(origin.rank)).min().or(origins().min())
    }
}

/// The way in which a rank fails another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PeerFault {
    /// Its connection closed without a failure notice.
    Closed,
    /// It sent something that does not belong there.
    Refused,
    /// Nothing moved to or from it.
    Silent,
}

impl PeerFault {
    /// Every fault.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Refused, Self::Silent];

    /// Returns its number in a frame.
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::Closed => 1,
            Self::Refused => 2,
            Self::Silent => 3,
        }
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.code() == code)
    }
}

impl fmt::Display for ErrorSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hop, hops, bucket, step, .. } = self;
        write!(f, "hop {hop} of {hops} of ")?;
        match *step {
            NO_STEP => f.write_str("an operation outside the steps"),
            step => match *bucket {
                BESIDE.. => write!(f, "step {step}"),
                bucket => write!(f, "bucket {bucket} of step {step}"),
            },
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { site, rank, fault } = self;
        let fault = match fault {
            PeerFault::Closed => "closed its connection",
            PeerFault::Refused => "sent data that does not belong there",
            PeerFault::Silent => "was silent",
        };
        write!(f, "rank {rank} {fault} in {site}")
    }
}

/// Begins a message with the site, if it is known.
pub(crate) fn within(at: &Option<Box<ErrorSite>>) -> impl fmt::Display {
    fmt::from_fn(|f| at.iter().try_for_each(|site| write!(f, "in {site}: ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_is_the_first_named_rank_that_names_nobody() {
        use PeerFault::{Closed, Silent};
        /// The hop, the sender and receiver, the named rank and its fault, preceded by the rank
        /// that knows it.
        type Known = (usize, u32, [u32; 2], usize, PeerFault);
        let cases: [(&str, &[Known], Option<usize>); 7] = [
            ("nobody knows anything", &[], None),
            ("one is gone", &[(0, 1, [2, 0], 2, Closed), (1, 3, [1, 2], 2, Closed)], Some(2)),
            ("each waits for the one before", &[(2, 2, [1, 2], 1, Silent), (1, 1, [0, 1], 0, Silent)], Some(0)),
            (
                "as before, without a report of one of them",
                &[(3, 3, [2, 3], 2, Silent), (1, 1, [0, 1], 0, Silent)],
                Some(0),
            ),
            ("the rank that noticed it has closed", &[(0, 1, [2, 0], 2, Closed), (1, 1, [0, 1], 0, Closed)], Some(2)),
            ("a slow rank is told so", &[(1, 1, [0, 1], 0, Silent), (0, 1, [0, 1], 0, Silent)], Some(0)),
            ("all name another", &[(0, 2, [1, 0], 1, Silent), (1, 1, [0, 1], 0, Silent)], Some(0)),
        ];
        for (situation, known, named) in cases {
            let origin = |(knows, hop, [from, to], rank, fault): Known| {
                let site = ErrorSite { operation: 9, step: 4, bucket: 0, hop, from, to, hops: 4 };
                (knows, Origin { site, rank, fault })
            };
            let known: Vec<_> = known.iter().copied().map(origin).collect();
            assert_eq!(Origin::first(&known).map(|origin| origin.rank), named, "{situation}");
        }
    }
}
