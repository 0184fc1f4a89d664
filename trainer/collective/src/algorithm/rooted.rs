//! Operations with a root. Ranks are counted from it: rank (root + i) mod n is i.

use super::{Arrival, Builder, part};

/// Along a binomial tree: in hop h, the ranks below 2ʰ send to those 2ʰ further.
pub(super) fn broadcast(builder: &mut Builder, root: usize, length: usize) {
    binomial(builder, root, |builder, hop, near, far, _| {
        builder.transfer(hop, near, far, &(0..length), Arrival::Copy);
    });
}

/// The same tree backwards.
pub(super) fn reduce(builder: &mut Builder, root: usize, length: usize) {
    binomial(builder, root, |builder, hop, near, far, hops| {
        builder.transfer(hops - 1 - hop, far, near, &(0..length), Arrival::Reduce);
    });
}

pub(super) fn gather(builder: &mut Builder, root: usize, length: usize) {
    for from in 0..builder.world {
        builder.transfer(0, from, root, &part(&(0..length), builder.world, from), Arrival::Copy);
    }
}

pub(super) fn scatter(builder: &mut Builder, root: usize, length: usize) {
    for to in 0..builder.world {
        builder.transfer(0, root, to, &part(&(0..length), builder.world, to), Arrival::Copy);
    }
}

fn binomial(builder: &mut Builder, root: usize, mut edge: impl FnMut(&mut Builder, usize, usize, usize, usize)) {
    let world = builder.world;
    assert!(root < world, "root {root} is not in a group of {world}");
    let hops = world.next_power_of_two().trailing_zeros() as usize;
    for hop in 0..hops {
        for near in 0..(1 << hop).min(world.saturating_sub(1 << hop)) {
            edge(builder, hop, (root + near) % world, (root + near + (1 << hop)) % world, hops);
        }
    }
}
