//! Slots of the ranks, and staging areas for data outside arenas.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::arrival::ArrivalCount;
use super::segment::Segment;
use crate::algorithm::part;
use crate::reducer::Reducer;

/// Bytes of a staging area. A rank's two areas stay in the second-level cache.
pub(super) const CHUNK: usize = 128 << 10;
/// Staging areas of a rank.
pub(super) const AREAS: usize = 2;
/// The most bytes of which each rank reduces the whole. A second barrier takes longer, and much
/// longer if ranks outnumber cores. At 4 KiB, two ranks with a core each were twice as slow this
/// way.
const WHOLE: usize = 1 << 10;

/// The state of one rank, on cache lines of its own.
#[repr(C, align(128))]
pub(super) struct RankSlot {
    pub(super) arrivals: ArrivalCount<AtomicU32>,
    /// The operation's step, bucket, kind, length and place. The two alternate, as the staging
    /// areas do.
    pub(super) descriptors: [[AtomicU64; 5]; 2],
}

/// The slots and staging areas of all ranks.
#[derive(Debug)]
pub(super) struct Staging {
    segment: Segment,
    world: usize,
}

/// Returns the bytes of the segment that `world` ranks need.
pub(crate) fn size(world: usize) -> usize {
    world * (size_of::<RankSlot>() + AREAS * CHUNK)
}

impl Staging {
    /// Returns the staging areas on a segment of [`size`] bytes.
    pub(super) fn on(segment: Segment, world: usize) -> Self {
        Self { segment, world }
    }

    pub(super) fn slot(&self, rank: usize) -> &RankSlot {
        assert!(rank < self.world, "rank {rank} has no slot");
        let at = rank * size_of::<RankSlot>();
        // SAFETY: the slot lies within the payload, which is aligned to pages. It holds only
        // atomics, for which any bytes are valid.
        unsafe { self.segment.at(&(at..at + size_of::<RankSlot>())).cast::<RankSlot>().as_ref() }
    }

    /// Returns the range of bytes of a staging area.
    fn place(&self, rank: usize, area: usize, range: Range<usize>) -> Range<usize> {
        assert!(rank < self.world && area < AREAS, "rank {rank} has no area {area}");
        assert!(range.start <= range.end && range.end <= CHUNK, "{range:?} lies outside an area of {CHUNK}");
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

/// The areas of all ranks, or a model of them.
pub(super) trait Areas {
    /// Bytes of one area.
    const CHUNK: usize;
    /// The most bytes of which each rank reduces the whole.
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

/// A reduction through staging areas, on one rank.
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
    /// Reduces the data over all ranks. Returns the number of chunks that have gone through the
    /// areas. `barrier` returns once all ranks have called it as often, and each sees the others'
    /// earlier writes.
    pub(super) fn through<A: Areas, E>(
        self,
        areas: &A,
        mut barrier: impl FnMut() -> Result<(), E>,
    ) -> Result<usize, E> {
        let Self { rank: own, world, data, element_bytes, reduce, mut chunks } = self;
        for piece in data.chunks_mut(A::CHUNK) {
            let area = chunks % AREAS;
            chunks += 1;
            // SAFETY: until this rank arrives, no other rank reads its area of this parity. All
            // have arrived with the chunk after the one that was last there, and so are done with
            // it.
            unsafe { areas.write(own, area, 0..piece.len(), |staged| staged.copy_from_slice(piece)) };
            barrier()?;
            let length = piece.len();
            let part_of = |rank| bytes_of(rank, world, length, element_bytes);
            let is_whole = length <= A::WHOLE;
            let reduced = if is_whole { 0..length } else { part_of(own) };
            for rank in 0..world {
                let sum = &mut piece[reduced.clone()];
                let take_in = |theirs: &[u8]| if rank == 0 { sum.copy_from_slice(theirs) } else { reduce(sum, theirs) };
                // SAFETY: all have arrived, so all areas are written. Until the next barrier each
                // rank writes only its own part of its area, which is not this part. It writes
                // nothing if each rank reduces the whole.
                unsafe { areas.read(rank, area, reduced.clone(), take_in) };
            }
            if is_whole {
                continue;
            }
            // SAFETY: until this rank arrives, the others read only their own parts of this area.
            unsafe { areas.write(own, area, part_of(own), |reduced| reduced.copy_from_slice(&piece[part_of(own)])) };
            barrier()?;
            for rank in (0..world).filter(|rank| *rank != own) {
                // SAFETY: all have arrived a second time. Nobody writes to this area before this
                // rank arrives with the next chunk.
                unsafe { areas.read(rank, area, part_of(rank), |theirs| piece[part_of(rank)].copy_from_slice(theirs)) };
            }
        }
        Ok(chunks)
    }
}

/// Returns the number of barriers of a reduction of `bytes`.
pub(super) fn barriers(bytes: usize) -> usize {
    2 * bytes.div_ceil(CHUNK) - usize::from((1..=WHOLE).contains(&(bytes % CHUNK)))
}

/// Returns the bytes that a rank reduces, out of `bytes`.
pub(super) fn bytes_of(rank: usize, world: usize, bytes: usize, element_bytes: usize) -> Range<usize> {
    let elements = part(&(0..bytes / element_bytes), world, rank);
    elements.start * element_bytes..elements.end * element_bytes
}
