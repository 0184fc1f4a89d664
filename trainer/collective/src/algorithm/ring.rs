//! The ring: each member sends to the next one and receives from the previous one.
//!
//! The elements are cut into one part for each member. A part that is longer than a frame is cut
//! into strips, so that the line is busy while a member reduces. Strip s takes its hop h in hop s +
//! lag·h of the whole.

use std::ops::Range;

use super::{AllReduce, Arrival, Builder, Terms, all, part};
use crate::Hosts;

/// Hops of the whole between two hops of a strip.
const LAG: usize = 2;

pub(super) struct Scheme;

impl AllReduce for Scheme {
    fn code(&self) -> u8 {
        1
    }

    fn name(&self) -> &'static str {
        "ring"
    }

    fn describe(&self, builder: &mut Builder, _: &Hosts, length: usize) {
        let ring = Ring::new(all(builder.world), 0..length, builder.frame);
        let middle = ring.reduce_scatter(builder, 0);
        ring.all_gather(builder, middle);
    }

    fn seconds(&self, terms: &Terms<'_>) -> f64 {
        terms.in_parts(2.0 * (terms.ranks() - 1.0))
    }

    fn crossings(&self, hosts: &Hosts) -> usize {
        hosts.crossings()
    }
}

/// The members of a ring, and the elements that go round.
pub(super) struct Ring {
    members: Vec<usize>,
    range: Range<usize>,
    strips: usize,
    lag: usize,
}

impl Ring {
    pub(super) fn new(members: Vec<usize>, range: Range<usize>, frame: usize) -> Self {
        let longest = (range.end - range.start).div_ceil(members.len());
        // Shorter strips cost more per frame than they hide.
        let strips = longest.div_ceil(frame).max(1);
        Self { members, range, strips, lag: LAG.min(strips) }
    }

    /// Reduces: member m ends with part m. Returns the hop in which the same ring may go on.
    pub(super) fn reduce_scatter(&self, builder: &mut Builder, first_hop: usize) -> usize {
        // In hop h, member m sends part m−h−1, to which the next member has yet to add.
        let count = self.members.len();
        self.walk(builder, first_hop, Arrival::Reduce, |member, hop| member + 2 * count - hop - 1)
    }

    /// Gathers: member m begins with part m. Returns the hop in which the same ring may go on.
    pub(super) fn all_gather(&self, builder: &mut Builder, first_hop: usize) -> usize {
        let count = self.members.len();
        self.walk(builder, first_hop, Arrival::Copy, |member, hop| member + count - hop)
    }

    /// Returns the number of hops after which another ring may go on.
    pub(super) fn drain(&self) -> usize {
        self.strips
    }

    fn walk(
        &self,
        builder: &mut Builder,
        first_hop: usize,
        arrival: Arrival,
        sent: impl Fn(usize, usize) -> usize,
    ) -> usize {
        let Self { members, range, strips, lag } = self;
        let count = members.len();
        for hop in 0..count - 1 {
            for (member, rank) in members.iter().enumerate() {
                let whole = part(range, count, sent(member, hop) % count);
                for strip in 0..*strips {
                    let elements = part(&whole, *strips, strip);
                    let next = members[(member + 1) % count];
                    builder.transfer(first_hop + strip + lag * hop, *rank, next, &elements, arrival);
                }
            }
        }
        first_hop + lag * (count - 1)
    }
}
