//! What lies in arenas is reduced where it is, but for what shares a page with anything else.

use std::cell::Cell;
use std::ops::{DerefMut, Range};

use super::staging::{Areas, Staged, bytes_of};
use crate::reducer::MutualReducer;

/// Bytes that a rank reduces at once: of more than two ranks, they stay in the first-level cache until they are in all arenas.
const BLOCK: usize = 8 << 10;

/// The whole pages that an operation has in the arenas of all ranks, in memory or in a model of it.
pub(super) trait Pages {
    /// How many bytes they are, in each arena.
    fn bytes(&self) -> usize;

    /// Bytes of them in the arena of `rank`, to be changed.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes while the slice lives.
    unsafe fn of(&self, rank: usize, range: Range<usize>) -> impl DerefMut<Target = [u8]>;
}

/// What is reduced in arenas, on one rank of two or more.
pub(super) struct InPlace<'a, P> {
    pub(super) pages: P,
    pub(super) reduce_both: MutualReducer,
    /// Of the same data, what lies on no such page.
    pub(super) edges: Staged<'a>,
}

impl<P: Pages> InPlace<'_, P> {
    /// Reduces the data over all ranks; the chunks that have gone through the staging areas then. `meet` returns once all ranks have called
    /// it as often, and each sees what the others did before; `check` is called on the way.
    pub(super) fn through<A: Areas, E>(
        self,
        areas: &A,
        check: impl Fn() -> Result<(), E>,
        mut barrier: impl FnMut() -> Result<(), E>,
    ) -> Result<usize, E> {
        let Self { pages, reduce_both, edges } = self;
        let (rank, world, element_bytes, reduce) = (edges.rank, edges.world, edges.element_bytes, edges.reduce);
        let met = Cell::new(0);
        let mut barrier = || {
            if met.get() == 1 {
                for range in blocks(bytes_of(rank, world, pages.bytes(), element_bytes)) {
                    check()?;
                    // SAFETY: all have met, so that nobody but this rank touches this part of any arena until it meets them again.
                    let of = |rank| unsafe { pages.of(rank, range.clone()) };
                    let (mut first, mut last) = (of(0), of(world - 1));
                    (1..world - 1).for_each(|rank| reduce(&mut first, &of(rank)));
                    reduce_both(&mut first, &mut last);
                    (1..world - 1).for_each(|rank| of(rank).copy_from_slice(&first));
                }
            }
            barrier()?;
            met.set(met.get() + 1);
            Ok(())
        };
        let chunks = edges.through(areas, &mut barrier)?;
        while met.get() < 2 {
            barrier()?;
        }
        Ok(chunks)
    }
}

/// `range` in blocks.
fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(BLOCK).map(move |start| start..end.min(start + BLOCK))
}
