//! Every rank reduces its own part of all others' elements and sends the result to each of them: two hops, whatever their number, and
//! no element is on its way more than twice.

use super::{Arrival, Builder, part};

pub(super) fn all_reduce(builder: &mut Builder, length: usize) {
    let world = builder.world;
    // In turns, so that no rank is everyone's target at once.
    for distance in 1..world {
        for from in 0..world {
            let to = (from + distance) % world;
            builder.transfer(distance - 1, from, to, &part(&(0..length), world, to), Arrival::Reduce);
            builder.transfer(world + distance - 2, from, to, &part(&(0..length), world, from), Arrival::Copy);
        }
    }
}
