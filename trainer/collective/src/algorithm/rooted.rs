//! Operations with a root. Ranks are counted from it: rank (root + i) mod n is i.

use std::ops::Range;

use super::{Arrival, Builder, part};

/// Broadcasts along a binomial tree: in hop h, the ranks below 2ʰ send to those 2ʰ further. Frame
/// follows frame, so that no rank waits for all of another's elements.
pub(super) fn broadcast(builder: &mut Builder, root: usize, length: usize) {
    binomial(builder, root, |builder, hop, near, far, _| {
        for (frame, elements) in frames(0..length, builder.frame) {
            builder.transfer(frame + hop, near, far, &elements, Arrival::Copy);
        }
    });
}

/// Reduces along the same tree backwards.
pub(super) fn reduce(builder: &mut Builder, root: usize, length: usize) {
    binomial(builder, root, |builder, hop, near, far, hops| {
        for (frame, elements) in frames(0..length, builder.frame) {
            builder.transfer(frame + hops - 1 - hop, far, near, &elements, Arrival::Reduce);
        }
    });
}

pub(super) fn gather(builder: &mut Builder, root: usize, length: usize) {
    assert_is_rank(builder, root);
    for from in 0..builder.world {
        for (frame, elements) in frames(part(&(0..length), builder.world, from), builder.frame) {
            builder.transfer(frame, from, root, &elements, Arrival::Copy);
        }
    }
}

pub(super) fn scatter(builder: &mut Builder, root: usize, length: usize) {
    assert_is_rank(builder, root);
    for to in 0..builder.world {
        for (frame, elements) in frames(part(&(0..length), builder.world, to), builder.frame) {
            builder.transfer(frame, root, to, &elements, Arrival::Copy);
        }
    }
}

fn binomial(builder: &mut Builder, root: usize, mut edge: impl FnMut(&mut Builder, usize, usize, usize, usize)) {
    assert_is_rank(builder, root);
    let world = builder.world;
    let hops = world.next_power_of_two().trailing_zeros() as usize;
    for hop in 0..hops {
        for near in 0..(1 << hop).min(world.saturating_sub(1 << hop)) {
            edge(builder, hop, (root + near) % world, (root + near + (1 << hop)) % world, hops);
        }
    }
}

fn assert_is_rank(builder: &Builder, root: usize) {
    assert!(root < builder.world, "root {root} is not in a group of {}", builder.world);
}

/// Cuts a range into numbered frames of up to `longest` elements.
fn frames(range: Range<usize>, longest: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = range.end;
    range.step_by(longest).map(move |start| start..end.min(start + longest)).enumerate()
}
