//! Memory without a name that the ranks of a host map.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;

/// The words by which other ranks find a segment of rank 0: process, file descriptor, and the
/// secret at its beginning.
pub(crate) type Offer = [i64; 4];

/// Returns the bytes before the payload: a page, so that the payload is aligned to pages.
fn head() -> usize {
    page_size()
}

/// Memory that rank 0 made and others mapped. It is sealed against truncation.
#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<u8>,
    /// Bytes of the payload.
    bytes: usize,
}

// SAFETY: memory is bound to no thread. Reads and writes are unsafe, and their callers must not
// conflict.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a segment of `bytes` zeros, of which each rank then [provides](Self::provide) a part.
    /// The file must stay open until the others have mapped it.
    pub(crate) fn make(bytes: usize) -> Result<(Self, OwnedFd, Offer), Errno> {
        let file = rustix::fs::memfd_create("lockstep", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, (head() + bytes) as u64)?;
        allocate(&file, 0..head())?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let segment = Self::map(&file, bytes)?;
        let mut secret = [0_u8; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let secret: [i64; 2] = bytemuck::cast(secret);
        for (word, value) in segment.secret().iter().zip(secret) {
            word.store(value.cast_unsigned(), Ordering::SeqCst);
        }
        let offer = [i64::from(std::process::id()), i64::from(file.as_raw_fd()), secret[0], secret[1]];
        Ok((segment, file, offer))
    }

    /// Maps the segment that rank 0 offers, if this process may and the segment is the right one.
    pub(crate) fn open(offer: Offer, bytes: usize) -> Option<(Self, OwnedFd)> {
        let [process, descriptor, secret @ ..] = offer;
        let path = format!("/proc/{process}/fd/{descriptor}");
        let whole = (head() + bytes) as u64;
        // In another namespace of processes the path may be anything, so only a file of the right
        // length is opened.
        if !std::fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() == whole) {
            return None;
        }
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits().cast_signed())
            .open(&path)
            .ok()?;
        let metadata = file.metadata().ok()?;
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !metadata.is_file() || metadata.len() != whole || !sealed {
            return None;
        }
        let segment = Self::map(&file, bytes).ok()?;
        let found = segment.secret().each_ref().map(|word| word.load(Ordering::SeqCst).cast_signed());
        (found == secret).then(|| (segment, file.into()))
    }

    /// Returns the whole range of the payload.
    pub(crate) fn payload(&self) -> Range<usize> {
        0..self.bytes
    }

    /// Returns the whole pages of the payload that this rank [provides](Self::provide).
    pub(crate) fn part_of(&self, rank: usize, world: usize) -> Range<usize> {
        let pages = self.bytes.div_ceil(page_size());
        let [start, end] = [rank, rank + 1].map(|rank| (pages * rank / world * page_size()).min(self.bytes));
        start..end
    }

    /// Lets the system reserve the memory of a piece. It takes time in proportion to the size, so
    /// the ranks do it side by side.
    pub(crate) fn provide(&self, file: impl AsFd, piece: Range<usize>) -> Result<(), Errno> {
        allocate(file, head() + piece.start..head() + piece.end)?;
        // A system without such advice clears pages as they are touched.
        let _ = self.advise(piece, Advice::LinuxPopulateWrite);
        Ok(())
    }

    /// Maps the pages of a piece now, once all ranks have provided theirs, so that no later access
    /// waits.
    pub(crate) fn populate(&self, piece: Range<usize>) {
        // As above.
        let _ = self.advise(piece, Advice::LinuxPopulateRead);
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the bytes belong to this mapping, and populating it changes none of them.
        unsafe { rustix::mm::madvise(self.at(&range).as_ptr().cast(), range.len(), advice) }
    }

    fn map(file: impl AsFd, bytes: usize) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the system's choice, aliases nothing of this
        // process.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), head() + bytes, protection, flags, file, 0) }?;
        NonNull::new(start.cast()).map(|start| Self { start, bytes }).ok_or(Errno::NOMEM)
    }

    fn secret(&self) -> &[AtomicU64; 2] {
        // SAFETY: the mapping begins with a page that holds only the secret, and is aligned to
        // pages.
        unsafe { self.start.cast().as_ref() }
    }

    /// Returns the address of a range of the payload, in bytes.
    pub(super) fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} lies in a segment of {}", self.bytes);
        // SAFETY: the mapping has that many bytes.
        unsafe { self.start.add(head() + range.start) }
    }

    /// Returns a range of the payload, in bytes.
    ///
    /// # Safety
    /// Nobody may write to these bytes while the slice lives.
    pub(super) unsafe fn read(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the range is within the mapping, and the caller lets nobody write.
        unsafe { std::slice::from_raw_parts(self.at(&range).as_ptr(), range.len()) }
    }

    /// Returns a range of the payload, in bytes, for writing.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is shared; the caller sees to it that this slice is alone")]
    pub(super) unsafe fn write(&self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: the range is within the mapping, and the caller lets nobody else touch it.
        unsafe { std::slice::from_raw_parts_mut(self.at(&range).as_ptr(), range.len()) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), head() + self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapped segment can be unmapped");
    }
}

/// Bytes that the system is asked for at once. They take it some milliseconds, so an abort is
/// noticed that soon.
const PIECE: usize = 8 << 20;

/// Cuts a range that begins with a page into pieces that do.
pub(crate) fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(PIECE).map(move |start| start..range.end.min(start + PIECE))
}

/// Reserves memory now. A page that is refused later would end the process.
fn allocate(file: impl AsFd, range: Range<usize>) -> Result<(), Errno> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), range.start as u64, range.len() as u64)
}

/// Takes pages out of a mapping. From now on they are this process's own, and zero. Other processes
/// keep the old contents.
///
/// # Safety
/// The bytes must be whole pages of a segment.
pub(super) unsafe fn make_private(pages: &mut [u8]) {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: only these pages are replaced. They are borrowed here alone, and the new ones hold
    // bytes too.
    let made = unsafe { rustix::mm::mmap_anonymous(pages.as_mut_ptr().cast(), pages.len(), protection, flags) };
    if made.is_err() {
        // Other processes could write to memory that this process takes for its own.
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_one_another_and_are_short() {
        for bytes in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
            let found: Vec<_> = pieces(4096..4096 + bytes).collect();
            assert_eq!(found.iter().map(Range::len).sum::<usize>(), bytes);
            assert!(found.iter().all(|piece| (1..=PIECE).contains(&piece.len())), "{found:?}");
            assert!(found.first().is_none_or(|piece| piece.start == 4096), "{found:?}");
            assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start), "{found:?}");
        }
    }
}
