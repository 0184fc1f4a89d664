//! Recursive halving, then doubling: partners split what both have, each reduces one half of it, and halves come back the same way.
//!
//! Neighbours are partners first, so that the terms of each element are added as in a binary tree over the ranks, as recursive doubling
//! does it.

use std::ops::Range;

use super::{Arrival, Builder, doubling::in_core, part};

pub(super) fn all_reduce(builder: &mut Builder, length: usize) {
    in_core(builder, length, |builder, core, first_hop| {
        let end = first_hop + 2 * core.bits();
        for level in 0..core.bits() {
            for member in 0..core.size {
                let partner = member ^ (1 << level);
                let (from, to) = (core.rank(member), core.rank(partner));
                let theirs = held(partner, level + 1, length);
                builder.transfer(first_hop + level, from, to, &theirs, Arrival::Reduce);
                let mine = held(member, level + 1, length);
                builder.transfer(end - 1 - level, from, to, &mine, Arrival::Copy);
            }
        }
        end
    });
}

/// What a member reduces after so many levels.
fn held(member: usize, levels: usize, length: usize) -> Range<usize> {
    (0..levels).fold(0..length, |range, level| part(&range, 2, member >> level & 1))
}
