//! Recursive halving, then doubling: partners split what both have, each reduces one half of it, and halves come back the same way.

use std::ops::Range;

use super::{Arrival, Builder, doubling::in_core, part};

pub(super) fn all_reduce(builder: &mut Builder, length: usize) {
    in_core(builder, length, |builder, core, first_hop| {
        let end = first_hop + 2 * core.bits();
        for level in 0..core.bits() {
            for member in 0..core.size {
                let partner = partner(core.size, member, level);
                let (from, to) = (core.rank(member), core.rank(partner));
                let theirs = held(core.size, partner, level + 1, length);
                builder.transfer(first_hop + level, from, to, &theirs, Arrival::Reduce);
                let mine = held(core.size, member, level + 1, length);
                builder.transfer(end - 1 - level, from, to, &mine, Arrival::Copy);
            }
        }
        end
    });
}

/// The farthest first: members differ in the highest bit at level 0.
fn partner(size: usize, member: usize, level: usize) -> usize {
    member ^ (size >> (level + 1))
}

/// What a member reduces after so many levels.
fn held(size: usize, member: usize, levels: usize, length: usize) -> Range<usize> {
    (0..levels).fold(0..length, |range, level| part(&range, 2, usize::from(member & (size >> (level + 1)) != 0)))
}
