//! Recursive halving, then doubling. Two partners split their common elements, and each reduces one
//! half. The halves come back the same way.
//!
//! Neighbours are partners first. So the terms of each element are added as in a binary tree over
//! the ranks, as in recursive doubling.

use std::ops::Range;

use super::{
    AllReduce, Arrival, Builder, Terms,
    doubling::{folded, in_core},
    part,
};
use crate::Hosts;

pub(super) struct Scheme;

impl AllReduce for Scheme {
    fn code(&self) -> u8 {
        3
    }

    fn name(&self) -> &'static str {
        "halving-doubling"
    }

    fn describe(&self, builder: &mut Builder, _: &Hosts, length: usize) {
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

    fn seconds(&self, terms: &Terms<'_>) -> f64 {
        let core = terms.levels().exp2();
        2.0 * terms.levels() * terms.message + (core - 1.0) / core * terms.there_and_back() + folded(terms)
    }
}

/// Returns the elements that a member reduces after `levels` levels.
fn held(member: usize, levels: usize, length: usize) -> Range<usize> {
    (0..levels).fold(0..length, |range, level| part(&range, 2, member >> level & 1))
}
