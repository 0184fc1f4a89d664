//! What ranks map: a head, a desk for each rank, and the ranks' staging areas.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

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
    /// What it reduces: step, bucket, kind and length.
    pub(super) agenda: [AtomicU64; 4],
}

/// Found at the memory's beginning.
#[repr(C, align(128))]
pub(super) struct Head {
    pub(super) secret: [AtomicU64; 2],
}

/// A file's bytes in this process's memory.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    world: usize,
}

/// Bytes that `world` ranks need.
pub(super) fn size(world: usize) -> usize {
    size_of::<Head>() + world * (size_of::<Desk>() + AREAS * CHUNK)
}

// SAFETY: it is memory, not bound to a thread; who may touch which of it when is the protocol of `SharedMemory`.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a file of [`size`] bytes for `world` ranks.
    pub(super) fn new(file: impl AsFd, world: usize) -> Result<Self, Errno> {
        let bytes = size(world);
        // SAFETY: a new mapping, at an address of the system's choice, aliases nothing of this process.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        NonNull::new(start.cast()).map(|start| Self { start, world }).ok_or(Errno::NOMEM)
    }

    pub(super) fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a head, is aligned to pages, never zero bytes long, and holds atomics only there.
        unsafe { self.start.cast::<Head>().as_ref() }
    }

    pub(super) fn desk(&self, rank: usize) -> &Desk {
        assert!(rank < self.world, "rank {rank} has a desk");
        let at = size_of::<Head>() + rank * size_of::<Desk>();
        // SAFETY: it lies within the mapping, is aligned as Head and Desk are, and holds atomics only, for which any bytes are valid.
        unsafe { self.start.add(at).cast::<Desk>().as_ref() }
    }

    /// Bytes of a rank's staging area.
    ///
    /// # Safety
    /// Nobody may write to these bytes while the slice lives.
    pub(super) unsafe fn read(&self, rank: usize, area: usize, range: Range<usize>) -> &[u8] {
        let place = self.place(rank, area, &range);
        // SAFETY: within the mapping; the caller sees to it that nobody writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(place), range.len()) }
    }

    /// Bytes of a rank's staging area, to be changed.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is shared; the caller sees to it that this slice is alone")]
    pub(super) unsafe fn write(&self, rank: usize, area: usize, range: Range<usize>) -> &mut [u8] {
        let place = self.place(rank, area, &range);
        // SAFETY: within the mapping; the caller sees to it that nobody else touches it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(place), range.len()) }
    }

    /// Where bytes of a staging area lie.
    fn place(&self, rank: usize, area: usize, range: &Range<usize>) -> usize {
        assert!(rank < self.world && area < AREAS, "rank {rank} has area {area}");
        assert!(range.start <= range.end && range.end <= CHUNK, "{range:?} lies within an area");
        size_of::<Head>() + self.world * size_of::<Desk>() + (rank * AREAS + area) * CHUNK + range.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), size(self.world)) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}
