//! The causes of a change of the group.

use std::time::Duration;

use lockstep_collective::{Origin, PeerFault};

use crate::{Break, MemberId};

/// The events that affected the membership since the last one was recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Reasons {
    pub(super) since: Option<Duration>,
    pub(super) lost: Vec<(String, String)>,
    /// The failures of members that were not lost, in the order of their reports.
    broken: Vec<ReportedBreak>,
}

#[derive(Clone, Debug)]
struct ReportedBreak {
    reason: String,
    /// The rank that reported it, and the origin that it knows.
    origin: Option<(usize, Origin)>,
}

impl Reasons {
    pub(super) fn begin(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    pub(super) fn lose(&mut self, member: &MemberId, reason: &str) {
        if self.lost.iter().all(|(pod, _)| *pod != member.pod) {
            self.lost.push((member.pod.clone(), reason.to_owned()));
        }
    }

    /// Notes a failure of the group that no single member reported.
    pub(super) fn fail(&mut self, reason: String) {
        if self.broken.is_empty() {
            self.broken.push(ReportedBreak { reason, origin: None });
        }
    }

    /// Notes a failed operation of the member with this rank.
    pub(super) fn fail_for(&mut self, member: &MemberId, rank: u32, broken: Break) {
        let rank = rank as usize;
        let Break { reason, origin, .. } = broken;
        let has_told = |told: &ReportedBreak| told.origin.is_some_and(|(knows, _)| knows == rank);
        if self.broken.is_empty() || origin.is_some() && !self.broken.iter().any(has_told) {
            let (reason, origin) = (format!("{}: {reason}", member.pod), origin.map(|origin| (rank, origin)));
            self.broken.push(ReportedBreak { reason, origin });
        }
    }

    /// Returns the ranks (from, to) between which nothing arrived, if that was the first failure.
    pub(super) fn silent_pair(&self) -> Option<(usize, usize)> {
        let known: Vec<_> = self.broken.iter().filter_map(|told| told.origin).collect();
        let Origin { site, fault, .. } = Origin::first(&known)?;
        (fault == PeerFault::Silent).then_some((site.from as usize, site.to as usize))
    }

    /// Returns the report of the member that met the failure first, as far as that is known.
    pub(super) fn broken(&self) -> Option<String> {
        let known: Vec<_> = self.broken.iter().filter_map(|told| told.origin).collect();
        let first = Origin::first(&known);
        let is_first = |told: &&ReportedBreak| told.origin.is_some_and(|(_, origin)| Some(origin) == first);
        self.broken.iter().find(is_first).or(self.broken.first()).map(|told| told.reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use lockstep_collective::ErrorSite;

    use super::*;
    use crate::Incarnation;

    #[test]
    fn the_cause_is_the_report_of_the_member_that_failed_first() {
        let cause = |members: &[(u32, Option<u32>)]| {
            let mut reasons = Reasons::default();
            for (rank, hop) in members {
                let member = MemberId { pod: format!("w{rank}"), incarnation: Incarnation::random() };
                let site =
                    |hop| ErrorSite { operation: 7, step: 3, bucket: 0, hop, from: rank - 1, to: *rank, hops: 4 };
                let rank = *rank as usize;
                let origin = hop.map(|hop| Origin { site: site(hop), rank: rank - 1, fault: PeerFault::Silent });
                let broken = Break { origin, ..Break::from(format!("hop {hop:?}")) };
                reasons.fail_for(&member, rank as u32, broken);
            }
            reasons.broken()
        };
        let first = |reason: &str| Some(reason.to_owned());
        assert_eq!(cause(&[]), None);
        assert_eq!(cause(&[(1, None), (2, None)]), first("w1: hop None"), "without an origin the first report counts");
        assert_eq!(cause(&[(1, None), (3, Some(2))]), first("w3: hop Some(2)"));
        assert_eq!(cause(&[(3, Some(2)), (2, Some(1))]), first("w2: hop Some(1)"), "the others only waited for it");
        assert_eq!(cause(&[(2, Some(3)), (2, Some(1))]), first("w2: hop Some(3)"), "a repeated report does not count");
    }
}
