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

/// What rank 0 tells the others to find a segment by: process, file descriptor and a secret that it begins with.
pub(crate) type Offer = [i64; 4];

/// Bytes before the payload: a page, so that the payload is aligned to one.
fn head() -> usize {
    page_size()
}

/// Memory that rank 0 made and others mapped, sealed against truncation.
#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<u8>,
    /// Of the payload.
    bytes: usize,
}

// SAFETY: it is memory, not bound to a thread; what is read and written in it is the affair of those who map it, and unsafe.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a segment of so many zero bytes, of which the ranks then [provide](Self::provide) a part each. The file must stay open until
    /// the others have mapped it.
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

    /// Maps what rank 0 offers, if this process may and it is what it should be.
    pub(crate) fn open(offer: Offer, bytes: usize) -> Option<(Self, OwnedFd)> {
        let [process, descriptor, secret @ ..] = offer;
        let path = format!("/proc/{process}/fd/{descriptor}");
        let whole = (head() + bytes) as u64;
        // In another namespace of processes it may be anything: nothing but a file of this length is even opened.
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

    /// All bytes of the payload.
    pub(crate) fn payload(&self) -> Range<usize> {
        0..self.bytes
    }

    /// The whole pages of the payload that this rank [provides](Self::provide).
    pub(crate) fn part_of(&self, rank: usize, world: usize) -> Range<usize> {
        let pages = self.bytes.div_ceil(page_size());
        let [start, end] = [rank, rank + 1].map(|rank| (pages * rank / world * page_size()).min(self.bytes));
        start..end
    }

    /// Has the system set aside the memory of a piece, which takes the longer the larger it is: the ranks do so side by side.
    pub(crate) fn provide(&self, file: impl AsFd, piece: Range<usize>) -> Result<(), Errno> {
        allocate(file, head() + piece.start..head() + piece.end)?;
        // Where the system knows no such advice, pages are cleared as they are touched.
        let _ = self.advise(piece, Advice::LinuxPopulateWrite);
        Ok(())
    }

    /// Maps the pages of a piece now, once all ranks have provided theirs: none is to be waited for later.
    pub(crate) fn populate(&self, piece: Range<usize>) {
        // As above.
        let _ = self.advise(piece, Advice::LinuxPopulateRead);
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        // SAFETY: these are bytes of this mapping; to populate it changes none of them.
        unsafe { rustix::mm::madvise(self.at(&range).as_ptr().cast(), range.len(), advice) }
    }

    fn map(file: impl AsFd, bytes: usize) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the system's choice, aliases nothing of this process.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), head() + bytes, protection, flags, file, 0) }?;
        NonNull::new(start.cast()).map(|start| Self { start, bytes }).ok_or(Errno::NOMEM)
    }

    fn secret(&self) -> &[AtomicU64; 2] {
        // SAFETY: the mapping begins with a page that holds nothing but these, and is aligned to pages.
        unsafe { self.start.cast().as_ref() }
    }

    /// The address of a range of the payload, in bytes.
    pub(super) fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} lies in a segment of {}", self.bytes);
        // SAFETY: the mapping has so many bytes.
        unsafe { self.start.add(head() + range.start) }
    }

    /// A range of the payload, in bytes.
    ///
    /// # Safety
    /// Nobody may write to these bytes while the slice lives.
    pub(super) unsafe fn read(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: within the mapping; the caller sees to it that nobody writes.
        unsafe { std::slice::from_raw_parts(self.at(&range).as_ptr(), range.len()) }
    }

    /// A range of the payload, in bytes, to be changed.
    ///
    /// # Safety
    /// Nobody else may read or write these bytes while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is shared; the caller sees to it that this slice is alone")]
    pub(super) unsafe fn write(&self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: within the mapping; the caller sees to it that nobody else touches it.
        unsafe { std::slice::from_raw_parts_mut(self.at(&range).as_ptr(), range.len()) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), head() + self.bytes) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}

/// What the system is asked for at a time, which takes it some milliseconds: so soon is an abort heeded.
const PIECE: usize = 8 << 20;

/// A range that begins with a page, in pieces that do.
pub(crate) fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(PIECE).map(move |start| start..range.end.min(start + PIECE))
}

/// Sets memory aside now: a page that is refused later would end the process.
fn allocate(file: impl AsFd, range: Range<usize>) -> Result<(), Errno> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), range.start as u64, range.len() as u64)
}

/// Takes pages out of a mapping: from here on they are this process's own, and zero. Whoever else maps the memory keeps what was there.
///
/// # Safety
/// These are whole pages of a segment.
pub(super) unsafe fn make_private(pages: &mut [u8]) {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: nothing but these pages is replaced, which are borrowed here alone, by others that hold bytes as well.
    let made = unsafe { rustix::mm::mmap_anonymous(pages.as_mut_ptr().cast(), pages.len(), protection, flags) };
    if made.is_err() {
        // Others could write to what this process may take for its own.
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
