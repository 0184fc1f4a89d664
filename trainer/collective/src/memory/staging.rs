//! What ranks meet by: a desk for each, and staging areas for what lies in no arena.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::segment::Segment;

/// Bytes of a staging area: a rank's two stay in the second-level cache.
pub(super) const CHUNK: usize = 128 << 10;
/// Staging areas of a rank.
pub(super) const AREAS: usize = 2;

/// How a rank stands, on a cache line of its own.
#[repr(C, align(128))]
pub(super) struct Desk {
    /// How often it has arrived, modulo 2³². Others sleep on it.
    pub(super) arrivals: AtomicU32,
    pub(super) sleepers: AtomicU32,
    /// What it reduces: step, bucket, kind, length and place.
    pub(super) agenda: [AtomicU64; 5],
}

/// The desks and staging areas of all ranks.
#[derive(Debug)]
pub(super) struct Staging {
    segment: Segment,
    world: usize,
}

/// Bytes of the segment that `world` ranks need.
pub(crate) fn size(world: usize) -> usize {
    world * (size_of::<Desk>() + AREAS * CHUNK)
}

impl Staging {
    /// On a segment of [`size`] bytes.
    pub(super) fn on(segment: Segment, world: usize) -> Self {
        Self { segment, world }
    }

    pub(super) fn desk(&self, rank: usize) -> &Desk {
        assert!(rank < self.world, "rank {rank} has a desk");
        let at = rank * size_of::<Desk>();
        // SAFETY: it lies within the payload, which is aligned to pages, and holds atomics only, for which any bytes are valid.
        unsafe { self.segment.at(&(at..at + size_of::<Desk>())).cast::<Desk>().as_ref() }
    }

    /// Bytes of a rank's staging area.
    ///
    /// # Safety
    /// Nobody may write to these bytes while the slice lives.
    pub(super) unsafe fn read(&self, rank: usize, area: usize, range: Range<usize>) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.segment.read(self.place(rank, area, range)) }
    }

    /// Bytes of a rank's staging area, to be changed.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is shared; the caller sees to it that this slice is alone")]
    pub(super) unsafe fn write(&self, rank: usize, area: usize, range: Range<usize>) -> &mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { self.segment.write(self.place(rank, area, range)) }
    }

    /// Where bytes of a staging area lie.
    fn place(&self, rank: usize, area: usize, range: Range<usize>) -> Range<usize> {
        assert!(rank < self.world && area < AREAS, "rank {rank} has area {area}");
        assert!(range.start <= range.end && range.end <= CHUNK, "{range:?} lies within an area");
        let start = self.world * size_of::<Desk>() + (rank * AREAS + area) * CHUNK;
        start + range.start..start + range.end
    }
}
