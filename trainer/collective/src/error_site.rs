//! How far an operation was when it broke. Ranks that wait for each other all starve in the end, and each names whom it waited for; but
//! all do their transfers in one order, so that the first transfer that any of them lacks is what the others came to wait for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tag::{BESIDE, NO_STEP};

/// A transfer of the group's operations, in the order in which all ranks do them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ErrorSite {
    /// Operations that all ranks of the group had begun before: tags need not ascend.
    pub operation: u64,
    /// The step of the operation's tag.
    pub step: u64,
    /// The bucket of its tag.
    pub bucket: u32,
    /// The hop, or in memory that ranks share the meeting, from 1.
    pub hop: u32,
    /// The rank that sends, or is to come.
    pub from: u32,
    /// The rank that receives, or waits.
    pub to: u32,
    /// Hops of the operation.
    pub hops: u32,
}

/// What broke an operation, as far as one rank knows; [`Origin::first`] finds what broke it for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The first transfer that was lacking.
    #[serde(rename = "position")]
    pub site: ErrorSite,
    /// The rank that was waited for.
    pub rank: usize,
    /// What became of it.
    #[serde(rename = "loss")]
    pub fault: PeerFault,
}

impl Origin {
    /// What broke a group, by what some of its ranks know of it, each with the rank that does: who has failed tells nothing of another one,
    /// and of those that are named and do not, the one is meant for which a rank waited first.
    #[must_use]
    pub fn first(known: &[(usize, Self)]) -> Option<Self> {
        let names_another = |rank: usize| known.iter().any(|(knows, origin)| *knows == rank && origin.rank != rank);
        let origins = || known.iter().map(|(_, origin)| *origin);
        origins().filter(|origin| !names_another(origin.rank)).min().or(origins().min())
    }
}

/// How a rank fails another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PeerFault {
    /// Its connection closed without a word.
    Closed,
    /// It sent what does not belong there.
    Refused,
    /// Nothing moved to or from it.
    Silent,
}

impl PeerFault {
    pub(crate) const ALL: [Self; 3] = [Self::Closed, Self::Refused, Self::Silent];

    /// Its number in a frame.
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
            NO_STEP => f.write_str("an operation of no step"),
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
            PeerFault::Refused => "sent what does not belong there",
            PeerFault::Silent => "was silent",
        };
        write!(f, "rank {rank} {fault} in {site}")
    }
}

/// How a message begins of what befell an operation.
pub(crate) fn within(at: &Option<Box<ErrorSite>>) -> impl fmt::Display {
    fmt::from_fn(|f| at.iter().try_for_each(|site| write!(f, "in {site}: ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_ranks_that_are_named_the_first_one_is_meant_that_names_nobody() {
        use PeerFault::{Closed, Silent};
        /// What a rank knows: in which hop, from whom to whom, whom it names, and how.
        type Known = (usize, u32, [u32; 2], usize, PeerFault);
        let cases: [(&str, &[Known], Option<usize>); 7] = [
            ("nobody knows anything", &[], None),
            ("one is gone", &[(0, 1, [2, 0], 2, Closed), (1, 3, [1, 2], 2, Closed)], Some(2)),
            ("each waits for the one before", &[(2, 2, [1, 2], 1, Silent), (1, 1, [0, 1], 0, Silent)], Some(0)),
            (
                "as before, and one of them has not told",
                &[(3, 3, [2, 3], 2, Silent), (1, 1, [0, 1], 0, Silent)],
                Some(0),
            ),
            ("who noticed it has closed", &[(0, 1, [2, 0], 2, Closed), (1, 1, [0, 1], 0, Closed)], Some(2)),
            ("who was slow is told so", &[(1, 1, [0, 1], 0, Silent), (0, 1, [0, 1], 0, Silent)], Some(0)),
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
