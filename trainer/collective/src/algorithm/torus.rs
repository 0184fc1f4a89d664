//! Rings along the rows, along the columns, and along the rows again: 2(X−1) + 2(Y−1) hops instead
//! of 2(XY−1). Only one column's share of the elements crosses between rows.

use super::{AllReduce, Builder, Terms, part, ring::Ring};
use crate::Hosts;

pub(super) struct Scheme {
    pub(super) columns: usize,
}

impl AllReduce for Scheme {
    fn code(&self) -> u8 {
        5
    }

    fn name(&self) -> &'static str {
        "torus"
    }

    fn describe(&self, builder: &mut Builder, _: &Hosts, length: usize) {
        let (world, columns, frame) = (builder.world, self.columns, builder.frame);
        let row = |first: usize| Ring::new((first..first + columns).collect(), 0..length, frame);
        let in_rows: Vec<Ring> = (0..world).step_by(columns).map(row).collect();
        let column = |first: usize| {
            Ring::new((first..world).step_by(columns).collect(), part(&(0..length), columns, first), frame)
        };
        let in_columns: Vec<Ring> = (0..columns).map(column).collect();
        let mut hop = 0;
        hop = in_step(&in_rows, |ring| ring.reduce_scatter(builder, hop));
        hop = in_step(&in_columns, |ring| {
            let middle = ring.reduce_scatter(builder, hop);
            ring.all_gather(builder, middle)
        });
        in_step(&in_rows, |ring| ring.all_gather(builder, hop));
    }

    fn seconds(&self, terms: &Terms<'_>) -> f64 {
        let (across, down) = (self.columns as f64, terms.ranks() / self.columns as f64);
        terms.in_parts(2.0 * (across + down - 2.0))
    }

    fn fits(&self, world: usize) -> bool {
        self.columns > 0 && world.is_multiple_of(self.columns)
    }

    fn is_worth_trying(&self, _: &Hosts) -> bool {
        // With one column it is a ring.
        self.columns > 1
    }
}

/// Describes every ring in the same hops. Returns the hop after the last.
fn in_step(rings: &[Ring], mut walk: impl FnMut(&Ring) -> usize) -> usize {
    rings.iter().map(|ring| walk(ring) + ring.drain()).max().unwrap_or_default()
}
