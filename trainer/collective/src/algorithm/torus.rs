//! Rings along the rows, along the columns, and along the rows again: 2(X−1) + 2(Y−1) hops instead of 2(XY−1), and only one column's
//! share of the elements crosses between rows.

use super::{Builder, part, ring::Ring};

pub(super) fn all_reduce(builder: &mut Builder, columns: usize, length: usize) {
    let world = builder.world;
    assert!(columns > 0 && world.is_multiple_of(columns), "{world} ranks make no rows of {columns}");
    let in_rows: Vec<Ring> =
        (0..world).step_by(columns).map(|first| Ring::new((first..first + columns).collect(), 0..length)).collect();
    let in_columns: Vec<Ring> = (0..columns)
        .map(|column| Ring::new((column..world).step_by(columns).collect(), part(&(0..length), columns, column)))
        .collect();
    let mut hop = 0;
    hop = in_step(&in_rows, |ring| ring.reduce_scatter(builder, hop));
    hop = in_step(&in_columns, |ring| {
        let middle = ring.reduce_scatter(builder, hop);
        ring.all_gather(builder, middle)
    });
    in_step(&in_rows, |ring| ring.all_gather(builder, hop));
}

/// Does the same along every ring; the hop after the last.
fn in_step(rings: &[Ring], mut walk: impl FnMut(&Ring) -> usize) -> usize {
    rings.iter().map(|ring| walk(ring) + ring.drain()).max().unwrap_or_default()
}
