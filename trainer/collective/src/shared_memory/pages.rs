//! In-place reduction of the whole pages in arenas. The edges, which share a page with other bytes,
//! go through staging.

use std::cell::Cell;
use std::ops::{DerefMut, Range};

use super::staging::{Areas, Staged, bytes_of};
use crate::reducer::MutualReducer;

/// Bytes that a rank reduces at once. With more than two ranks they stay in the first-level cache
/// until all arenas have them.
const BLOCK: usize = 8 << 10;

/// The whole pages of an operation in the arenas of all ranks, or a model of them.
pub(super) trait Pages {
    /// Returns their bytes in each arena.
    fn bytes(&self) -> usize;

    /// Returns bytes of the pages in the arena of `rank` for writing.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes while the slice lives.
    unsafe fn of(&self, rank: usize, range: Range<usize>) -> impl DerefMut<Target = [u8]>;
}

/// A reduction in arenas, on one of at least two ranks.
pub(super) struct InPlace<'a, P> {
    pub(super) pages: P,
    pub(super) reduce_both: MutualReducer,
    /// The rest of the data, on no whole page.
    pub(super) edges: Staged<'a>,
}

impl<P: Pages> InPlace<'_, P> {
    /// Reduces the data over all ranks. Returns the number of chunks that have gone through the
    /// staging areas. `barrier` returns once all ranks have called it as often, and each sees the
    /// others' earlier writes. `check` is called between blocks.
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
                    // SAFETY: all ranks have arrived. No other rank touches this part of any arena
                    // until the next barrier.
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

/// Cuts `range` into blocks.
fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(BLOCK).map(move |start| start..end.min(start + BLOCK))
}
