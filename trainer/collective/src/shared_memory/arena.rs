//! Arenas that all ranks map. Data in them is reduced in place.

use std::ops::Range;
use std::sync::Arc;

use rustix::param::page_size;

use super::segment::Segment;

/// The arenas of all ranks, one behind the other.
#[derive(Debug)]
pub(crate) struct Arenas {
    segment: Segment,
    /// The distance between two arenas, in bytes. Each begins on a page.
    stride: usize,
    /// Bytes of one arena.
    bytes: usize,
}

/// This rank's arena, which the other ranks of its host map too. A sum over a slice at the same
/// place on all ranks copies no whole page. The pages are present and zero from the beginning.
///
/// The other ranks write only to whole pages of an operation's data, and only while the operation
/// is under way. If an operation fails, others may still be writing. So before it returns, those
/// pages become this rank's own, and zero. Sums in them are lost, but the arena remains ordinary
/// memory, even after the group is gone.
#[derive(Debug)]
pub struct SharedArena {
    arenas: Arc<Arenas>,
    rank: usize,
    elements: usize,
}

/// Returns the bytes of a segment with an arena of `bytes` for each of `world` ranks, or `None` if
/// that exceeds the address space.
pub(crate) fn size(world: usize, bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(page_size())?.checked_mul(world).filter(|bytes| *bytes < isize::MAX as usize / 2)
}

impl Arenas {
    /// Returns the arenas on a segment of [`size`] bytes.
    pub(crate) fn on(segment: Segment, bytes: usize) -> Self {
        Self { segment, stride: bytes.next_multiple_of(page_size()), bytes }
    }

    /// Returns the offset of a slice in the arena of `rank`, in bytes.
    pub(super) fn offset(&self, rank: usize, slice: &[u8]) -> Option<usize> {
        let start = self.segment.at(&self.place(rank, 0..self.bytes)).addr().get();
        let offset = slice.as_ptr().addr().checked_sub(start)?;
        (offset + slice.len() <= self.bytes).then_some(offset)
    }

    /// Returns bytes of a rank's arena for writing.
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
        // SAFETY: this is the only handle of this rank's arena. Other ranks touch only bytes that
        // an operation has borrowed from it, until that operation ends. If it fails, its pages
        // leave the shared mapping.
        let bytes = unsafe { self.arenas.write(self.rank, 0..bytes) };
        bytemuck::cast_slice_mut(bytes)
    }
}
