//! Two binary trees over the same ranks, each for one half of the elements. Elements are reduced
//! upwards, then copied downwards, frame by frame.
//!
//! In the first tree the ranks stand in order, so that the even ones are leaves. The second is
//! mirrored, or shifted by one if the number of ranks is odd, so that the odd ones are leaves.
//! Hence every rank sends and receives about as much as every other.

use super::{AllReduce, Arrival, Builder, Terms, part};
use crate::Hosts;

/// The intended frames of a half. More frames hide the tree's height better, and fewer cost less.
const FRAMES: usize = 8;
/// Shorter frames cost more than they hide.
const MIN_FRAME: usize = 4 * 1024;

pub(super) struct Scheme;

impl AllReduce for Scheme {
    fn code(&self) -> u8 {
        4
    }

    fn name(&self) -> &'static str {
        "double tree"
    }

    fn describe(&self, builder: &mut Builder, _: &Hosts, length: usize) {
        let world = builder.world;
        let height = (1..=world).map(|place| Node::at(place, world).depth).max().unwrap_or_default();
        for tree in 0..2 {
            let half = part(&(0..length), 2, tree);
            let size = (half.end - half.start).div_ceil(FRAMES).clamp(MIN_FRAME.min(builder.frame), builder.frame);
            for (frame, start) in half.clone().step_by(size).enumerate() {
                let elements = start..half.end.min(start + size);
                for place in 1..=world {
                    let Node { depth, parent: Some(parent) } = Node::at(place, world) else { continue };
                    let (child, parent) = (rank_at(place, tree, world), rank_at(parent, tree, world));
                    builder.transfer(frame + height - depth, child, parent, &elements, Arrival::Reduce);
                    builder.transfer(frame + height + depth - 1, parent, child, &elements, Arrival::Copy);
                }
            }
        }
    }

    fn seconds(&self, terms: &Terms<'_>) -> f64 {
        let frames = FRAMES as f64;
        2.0 * (terms.levels() + frames) * (terms.message + terms.whole() / frames)
    }
}

/// Returns the rank at a place of a tree. Places count from 1.
fn rank_at(place: usize, tree: usize, world: usize) -> usize {
    match (tree, world.is_multiple_of(2)) {
        (0, _) => place - 1,
        (_, true) => world - place,
        (_, false) => place % world,
    }
}

/// A place of the tree that holds 1 to n in order.
struct Node {
    depth: usize,
    parent: Option<usize>,
}

impl Node {
    fn at(place: usize, world: usize) -> Self {
        let (mut first, mut end, mut depth, mut parent) = (1, world + 1, 0, None);
        loop {
            let root = roundest(first, end);
            if root == place {
                return Self { depth, parent };
            }
            (depth, parent) = (depth + 1, Some(root));
            (first, end) = if place < root { (first, root) } else { (root + 1, end) };
        }
    }
}

/// Returns the number in `first..end` that is divisible by the greatest power of two.
fn roundest(first: usize, end: usize) -> usize {
    let mut number = end - 1;
    while number & (number - 1) >= first {
        number &= number - 1;
    }
    number
}
