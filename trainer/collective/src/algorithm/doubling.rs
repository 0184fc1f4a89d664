//! Recursive doubling: in hop h, ranks that differ in bit h exchange all they have.

use super::{Arrival, Builder};

pub(super) fn all_reduce(builder: &mut Builder, length: usize) {
    let core = Core::of(builder.world);
    let hop = core.fold(builder, length);
    let hops = core.size.trailing_zeros() as usize;
    for bit in 0..hops {
        for member in 0..core.size {
            let (from, to) = (core.rank(member), core.rank(member ^ (1 << bit)));
            builder.transfer(hop + bit, from, to, &(0..length), Arrival::Reduce);
        }
    }
    core.unfold(builder, length, hop + hops);
}

/// The greatest power of two of ranks. Each rank beyond it lends its elements to a neighbour in the core before, and gets the
/// result from it after.
pub(super) struct Core {
    pub(super) size: usize,
    lenders: usize,
}

impl Core {
    pub(super) fn of(world: usize) -> Self {
        let size = 1 << world.ilog2();
        Self { size, lenders: world - size }
    }

    /// Of the first ranks the even ones lend, the odd ones are in the core.
    pub(super) fn rank(&self, member: usize) -> usize {
        if member < self.lenders { 2 * member + 1 } else { member + self.lenders }
    }

    /// Returns the next hop.
    pub(super) fn fold(&self, builder: &mut Builder, length: usize) -> usize {
        for lender in 0..self.lenders {
            builder.transfer(0, 2 * lender, 2 * lender + 1, &(0..length), Arrival::Reduce);
        }
        1
    }

    pub(super) fn unfold(&self, builder: &mut Builder, length: usize, hop: usize) {
        for lender in 0..self.lenders {
            builder.transfer(hop, 2 * lender + 1, 2 * lender, &(0..length), Arrival::Copy);
        }
    }
}
