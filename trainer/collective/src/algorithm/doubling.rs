//! Recursive doubling: in hop h, ranks that differ in bit h exchange all their elements.

use super::{AllReduce, Arrival, Builder, Terms};
use crate::Hosts;

pub(super) struct Scheme;

impl AllReduce for Scheme {
    fn code(&self) -> u8 {
        2
    }

    fn name(&self) -> &'static str {
        "recursive doubling"
    }

    fn describe(&self, builder: &mut Builder, _: &Hosts, length: usize) {
        in_core(builder, length, |builder, core, first_hop| {
            for bit in 0..core.bits() {
                for member in 0..core.size {
                    let (from, to) = (core.rank(member), core.rank(member ^ (1 << bit)));
                    builder.transfer(first_hop + bit, from, to, &(0..length), Arrival::Reduce);
                }
            }
            first_hop + core.bits()
        });
    }

    fn seconds(&self, terms: &Terms<'_>) -> f64 {
        terms.levels() * (terms.message + terms.whole()) + folded(terms)
    }
}

/// Returns the cost of ranks beyond a power of two: they lend their elements before and get the
/// result after.
pub(super) fn folded(terms: &Terms<'_>) -> f64 {
    match terms.hosts.world().is_power_of_two() {
        true => 0.0,
        false => 2.0 * terms.message + terms.whole() + terms.bytes * terms.wire_byte,
    }
}

/// The greatest power of two of the ranks. For every rank beyond it, one of the first even ranks is
/// left out.
pub(super) struct Core {
    pub(super) size: usize,
    left_out: usize,
}

impl Core {
    pub(super) fn bits(&self) -> usize {
        self.size.trailing_zeros() as usize
    }

    pub(super) fn rank(&self, member: usize) -> usize {
        if member < self.left_out { 2 * member + 1 } else { member + self.left_out }
    }
}

/// Runs `inside` among the core. It takes its first hop and returns the hop after its last. Each
/// rank that is left out lends its elements to the next rank before, and gets the result from it
/// after.
pub(super) fn in_core(builder: &mut Builder, length: usize, inside: impl FnOnce(&mut Builder, &Core, usize) -> usize) {
    let size = 1 << builder.world.ilog2();
    let core = Core { size, left_out: builder.world - size };
    for pair in 0..core.left_out {
        builder.transfer(0, 2 * pair, 2 * pair + 1, &(0..length), Arrival::Reduce);
    }
    let after = inside(builder, &core, 1);
    for pair in 0..core.left_out {
        builder.transfer(after, 2 * pair + 1, 2 * pair, &(0..length), Arrival::Copy);
    }
}
