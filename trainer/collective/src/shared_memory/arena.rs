//! Arenas that all ranks map: what lies in them is reduced where it is.

use std::ops::Range;
use std::sync::Arc;

use rustix::param::page_size;

use super::segment::Segment;

/// The arenas of all ranks, one behind the other.
#[derive(Debug)]
pub(crate) struct Arenas {
    segment: Segment,
    /// From one arena to the next, in bytes: each begins on a page.
    stride: usize,
    /// Of one arena.
    bytes: usize,
}

/// This rank's memory that the other ranks of its host map too: of slices of it, at the same place on all ranks, whole pages are summed
/// without a copy. Its pages are there, and zero.
///
/// The other ranks write to it only while an operation on it is under way, and only to whole pages of what that operation is on. Where one
/// fails, others may be at it still: before it returns, those pages become this rank's own, and zero. Sums in it are of no use any more,
/// but it is memory as any other, also when the group is gone.
#[derive(Debug)]
pub struct SharedArena {
    arenas: Arc<Arenas>,
    rank: usize,
    elements: usize,
}

/// Bytes of the segment with an arena of so many bytes for each of `world` ranks; `None` for more than there are addresses.
pub(crate) fn size(world: usize, bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(page_size())?.checked_mul(world).filter(|bytes| *bytes < isize::MAX as usize / 2)
}

impl Arenas {
    /// On a segment of [`size`] bytes.
    pub(crate) fn on(segment: Segment, bytes: usize) -> Self {
        Self { segment, stride: bytes.next_multiple_of(page_size()), bytes }
    }

    /// Where a slice lies in the arena of `rank`, in bytes.
    pub(super) fn offset(&self, rank: usize, slice: &[u8]) -> Option<usize> {
        let start = self.segment.at(&self.place(rank, 0..self.bytes)).addr().get();
        let offset = slice.as_ptr().addr().checked_sub(start)?;
        (offset + slice.len() <= self.bytes).then_some(offset)
    }

    /// Bytes of a rank's arena, to be changed.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is shared; the caller sees to it that this slice is alone")]
    pub(super) unsafe fn write(&self, rank: usize, range: Range<usize>) -> &mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { self.segment.write(self.place(rank, range)) }
    }

    fn place(&self, rank: usize, range: Range<usize>) -> Range<usize> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} lies in an arena of {}", self.bytes);
        rank * self.stride + range.start..rank * self.stride + range.end
    }
}

impl SharedArena {
    pub(crate) fn of(arenas: Arc<Arenas>, rank: usize, elements: usize) -> Self {
        Self { arenas, rank, elements }
    }
}

impl AsMut<[f32]> for SharedArena {
    fn as_mut(&mut self) -> &mut [f32] {
        let bytes = self.elements * size_of::<f32>();
        // SAFETY: this is the only handle of this rank's arena, and the others touch only what is borrowed from it by an operation, until
        // that ends: where it fails, its pages are taken out of what others map.
        let bytes = unsafe { self.arenas.write(self.rank, 0..bytes) };
        bytemuck::cast_slice_mut(bytes)
    }
}
