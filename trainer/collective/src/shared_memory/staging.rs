//! What ranks meet by: a slot for each, and staging areas for what lies in no arena.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::arrival::ArrivalCount;
use super::segment::Segment;
use crate::algorithm::part;
use crate::reducer::Reducer;

/// Bytes of a staging area: a rank's two stay in the second-level cache.
pub(super) const CHUNK: usize = 128 << 10;
/// Staging areas of a rank.
pub(super) const AREAS: usize = 2;
/// Bytes up to which each rank reduces the whole: a second meeting takes longer, by far where ranks outnumber cores. Of 4 KiB, two ranks
/// with a core each were twice as slow so.
const WHOLE: usize = 1 << 10;

/// How a rank stands, on cache lines of its own.
#[repr(C, align(128))]
pub(super) struct RankSlot {
    pub(super) arrivals: ArrivalCount<AtomicU32>,
    /// What it reduces: step, bucket, kind, length and place. Two that alternate, as the staging areas do.
    pub(super) descriptors: [[AtomicU64; 5]; 2],
}

/// The desks and staging areas of all ranks.
#[derive(Debug)]
pub(super) struct Staging {
    segment: Segment,
    world: usize,
}

/// Bytes of the segment that `world` ranks need.
pub(crate) fn size(world: usize) -> usize {
    world * (size_of::<RankSlot>() + AREAS * CHUNK)
}

impl Staging {
    /// On a segment of [`size`] bytes.
    pub(super) fn on(segment: Segment, world: usize) -> Self {
        Self { segment, world }
    }

    pub(super) fn slot(&self, rank: usize) -> &RankSlot {
        assert!(rank < self.world, "rank {rank} has a slot");
        let at = rank * size_of::<RankSlot>();
        // SAFETY: it lies within the payload, which is aligned to pages, and holds atomics only, for which any bytes are valid.
        unsafe { self.segment.at(&(at..at + size_of::<RankSlot>())).cast::<RankSlot>().as_ref() }
    }

    /// Where bytes of a staging area lie.
    fn place(&self, rank: usize, area: usize, range: Range<usize>) -> Range<usize> {
        assert!(rank < self.world && area < AREAS, "rank {rank} has area {area}");
        assert!(range.start <= range.end && range.end <= CHUNK, "{range:?} lies within an area");
        let start = self.world * size_of::<RankSlot>() + (rank * AREAS + area) * CHUNK;
        start + range.start..start + range.end
    }
}

impl Areas for Staging {
    const CHUNK: usize = CHUNK;
    const WHOLE: usize = WHOLE;

    unsafe fn read(&self, rank: usize, area: usize, range: Range<usize>, take: impl FnOnce(&[u8])) {
        // SAFETY: the caller's promise.
        take(unsafe { self.segment.read(self.place(rank, area, range)) });
    }

    unsafe fn write(&self, rank: usize, area: usize, range: Range<usize>, fill: impl FnOnce(&mut [u8])) {
        // SAFETY: the caller's promise.
        fill(unsafe { self.segment.write(self.place(rank, area, range)) });
    }
}

/// The areas of all ranks, in memory or in a model of it.
pub(super) trait Areas {
    /// Bytes of one.
    const CHUNK: usize;
    /// Bytes up to which each rank reduces the whole.
    const WHOLE: usize;

    /// Takes bytes of an area of `rank`.
    ///
    /// # Safety
    /// Nobody may write to these bytes meanwhile.
    unsafe fn read(&self, rank: usize, area: usize, range: Range<usize>, take: impl FnOnce(&[u8]));

    /// Fills bytes of an area of `rank`.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes meanwhile.
    unsafe fn write(&self, rank: usize, area: usize, range: Range<usize>, fill: impl FnOnce(&mut [u8]));
}

/// What is reduced through staging areas, on one rank.
pub(super) struct Staged<'a> {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) data: &'a mut [u8],
    pub(super) element_bytes: usize,
    pub(super) reduce: Reducer,
    /// Chunks that went through the areas before.
    pub(super) chunks: usize,
}

impl Staged<'_> {
    /// Reduces the data over all ranks; the chunks that have gone through the areas then. `meet` returns once all ranks have called it as
    /// often, and each sees what the others did before.
    pub(super) fn through<A: Areas, E>(
        self,
        areas: &A,
        mut barrier: impl FnMut() -> Result<(), E>,
    ) -> Result<usize, E> {
        let Self { rank: own, world, data, element_bytes, reduce, mut chunks } = self;
        for piece in data.chunks_mut(A::CHUNK) {
            let area = chunks % AREAS;
            chunks += 1;
            // SAFETY: until this rank meets the others, nobody reads its area of this parity: all have met with the chunk after the one
            // that was last there, hence are done with it.
            unsafe { areas.write(own, area, 0..piece.len(), |staged| staged.copy_from_slice(piece)) };
            barrier()?;
            let length = piece.len();
            let part_of = |rank| bytes_of(rank, world, length, element_bytes);
            let is_whole = length <= A::WHOLE;
            let reduced = if is_whole { 0..length } else { part_of(own) };
            for rank in 0..world {
                let sum = &mut piece[reduced.clone()];
                let take_in = |theirs: &[u8]| if rank == 0 { sum.copy_from_slice(theirs) } else { reduce(sum, theirs) };
                // SAFETY: all have met, so all areas are written, and before it meets the others again only its own rank writes to an
                // area: its own part, which is not this one, and nothing where each reduces the whole.
                unsafe { areas.read(rank, area, reduced.clone(), take_in) };
            }
            if is_whole {
                continue;
            }
            // SAFETY: the others read of this area only their own parts until they meet this rank.
            unsafe { areas.write(own, area, part_of(own), |reduced| reduced.copy_from_slice(&piece[part_of(own)])) };
            barrier()?;
            for rank in (0..world).filter(|rank| *rank != own) {
                // SAFETY: all have met a second time: nobody writes to this area before this rank has met them with the next chunk.
                unsafe { areas.read(rank, area, part_of(rank), |theirs| piece[part_of(rank)].copy_from_slice(theirs)) };
            }
        }
        Ok(chunks)
    }
}

/// How often ranks meet that reduce so many bytes.
pub(super) fn barriers(bytes: usize) -> usize {
    2 * bytes.div_ceil(CHUNK) - usize::from((1..=WHOLE).contains(&(bytes % CHUNK)))
}

/// The bytes that a rank reduces, of so many.
pub(super) fn bytes_of(rank: usize, world: usize, bytes: usize, element_bytes: usize) -> Range<usize> {
    let elements = part(&(0..bytes / element_bytes), world, rank);
    elements.start * element_bytes..elements.end * element_bytes
}
