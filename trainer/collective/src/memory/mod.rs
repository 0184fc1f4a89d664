//! All-reduce among ranks of one host through memory that all of them map.
//!
//! Each rank copies a chunk into its staging area and arrives; once all have, it reduces its part of all staging areas in rank order
//! into its own, and arrives again; once all have, it copies the others' parts out. Two staging areas a rank alternate, so that nobody
//! overwrites what another has yet to read: whoever has arrived with chunk k + 1 is done with chunk k.
//!
//! The memory has no name, is sealed against truncation and belongs to one generation: a stopped process that wakes up in a later one
//! writes where nobody reads.

#![allow(unsafe_code, reason = "memory that other processes map")]

mod mapping;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::algorithm::part;
use crate::call::Call;
use crate::element::Reducer;
use crate::forming::Waiting;
use crate::mesh::Mesh;
use crate::{Abort, CollectiveError, Tag};
use mapping::{AREAS, CHUNK, Mapping, size};

/// The system counts whom to wake in 31 bits.
const EVERYBODY: u32 = i32::MAX.cast_unsigned();
/// How often a rank that waits looks for an abort and for peers that have gone.
const TICK: Duration = Duration::from_millis(2);

/// What rank 0 tells the others to find the memory by: process, file descriptor and a secret that the memory begins with.
pub(crate) type Offer = [i64; 4];

/// The memory of one generation.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    mapping: Mapping,
    rank: usize,
    world: usize,
    /// How often this rank has arrived: twice with each chunk.
    arrivals: u32,
    /// Why an operation failed: its memory is in no defined state after that.
    broken: Option<CollectiveError>,
}

/// What an all-reduce waits by.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    pub(crate) mesh: &'a Mesh,
    pub(crate) abort: &'a Abort,
    pub(crate) waiting: Waiting,
}

/// What is reduced.
pub(crate) struct Work<'a> {
    pub(crate) tag: Tag,
    /// As [`Call::kind`] numbers it.
    pub(crate) kind: u64,
    pub(crate) data: &'a mut [u8],
    pub(crate) element_bytes: usize,
    pub(crate) reduce: Reducer,
}

impl SharedMemory {
    /// Makes the memory of `world` ranks, for rank 0. The file must stay open until the others have mapped it.
    pub(crate) fn make(world: usize) -> Result<(Self, OwnedFd, Offer), Errno> {
        let bytes = size(world);
        let file = rustix::fs::memfd_create("lockstep", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // Allocated now: a page that is refused later would end the process.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(&file, world)?;
        let mut secret = [0_u8; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let secret: [i64; 2] = bytemuck::cast(secret);
        for (word, value) in mapping.head().secret.iter().zip(secret) {
            word.store(value.cast_unsigned(), Ordering::SeqCst);
        }
        let offer = [i64::from(std::process::id()), i64::from(file.as_raw_fd()), secret[0], secret[1]];
        Ok((Self { mapping, rank: 0, world, arrivals: 0, broken: None }, file, offer))
    }

    /// Maps what rank 0 offers, if this process may and it is what it should be.
    pub(crate) fn open(offer: Offer, rank: usize, world: usize) -> Option<Self> {
        let [process, descriptor, secret @ ..] = offer;
        let path = format!("/proc/{process}/fd/{descriptor}");
        let bytes = size(world);
        // In another namespace of processes it may be anything: nothing but a file of this length is even opened.
        if !std::fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() == bytes as u64) {
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
        if !metadata.is_file() || metadata.len() != bytes as u64 || !sealed {
            return None;
        }
        let mapping = Mapping::new(&file, world).ok()?;
        let found = mapping.head().secret.each_ref().map(|word| word.load(Ordering::SeqCst).cast_signed());
        (found == secret).then_some(Self { mapping, rank, world, arrivals: 0, broken: None })
    }

    /// Reduces the data over all ranks in place, with the same bits on each. After a failure nothing more is.
    pub(crate) fn all_reduce(&mut self, work: Work<'_>, patience: Patience<'_>) -> Result<(), CollectiveError> {
        match &self.broken {
            Some(cause) => Err(cause.clone()),
            None => self.reduce_all(work, patience).inspect_err(|error| self.broken = Some(error.clone())),
        }
    }

    fn reduce_all(&mut self, work: Work<'_>, patience: Patience<'_>) -> Result<(), CollectiveError> {
        let Work { tag, kind, data, element_bytes, reduce } = work;
        let agenda = [tag.step, u64::from(tag.bucket), kind, data.len() as u64];
        let own_desk = self.mapping.desk(self.rank);
        for (word, value) in own_desk.agenda.iter().zip(agenda) {
            word.store(value, Ordering::Relaxed);
        }
        for (index, piece) in data.chunks_mut(CHUNK).enumerate() {
            patience.abort.check()?;
            let area = self.arrivals as usize / 2 % AREAS;
            // SAFETY: until this rank arrives, nobody reads its area of this parity: all have arrived with the chunk after the one
            // that was last there, hence are done with it.
            unsafe { self.mapping.write(self.rank, area, 0..piece.len()) }.copy_from_slice(piece);
            self.arrive();
            self.await_all(patience)?;
            if index == 0 {
                self.require(agenda)?;
            }
            let (elements, world) = (piece.len() / element_bytes, self.world);
            let part_of = |rank: usize| {
                let elements = part(&(0..elements), world, rank);
                elements.start * element_bytes..elements.end * element_bytes
            };
            let own = part_of(self.rank);
            for rank in 0..world {
                // SAFETY: all have arrived, so all areas are written, and of another's area only its own rank writes, and only its
                // own part, which is not this one.
                let theirs = unsafe { self.mapping.read(rank, area, own.clone()) };
                if rank == 0 {
                    piece[own.clone()].copy_from_slice(theirs)
                } else {
                    reduce(&mut piece[own.clone()], theirs)
                }
            }
            // SAFETY: the others read of this area only their own parts until this rank arrives.
            unsafe { self.mapping.write(self.rank, area, own.clone()) }.copy_from_slice(&piece[own]);
            self.arrive();
            self.await_all(patience)?;
            for rank in (0..world).filter(|rank| *rank != self.rank) {
                let range = part_of(rank);
                // SAFETY: all have arrived a second time: nobody writes to this area before this rank has arrived with the next chunk.
                piece[range.clone()].copy_from_slice(unsafe { self.mapping.read(rank, area, range.clone()) });
            }
        }
        Ok(())
    }

    fn arrive(&mut self) {
        self.arrivals = self.arrivals.wrapping_add(1);
        let desk = self.mapping.desk(self.rank);
        desk.arrivals.store(self.arrivals, Ordering::SeqCst);
        if desk.sleepers.load(Ordering::SeqCst) > 0 {
            // Should that fail, they look again after a tick.
            let _ = futex::wake(&desk.arrivals, futex::Flags::empty(), EVERYBODY);
        }
    }

    /// Returns once all ranks have arrived as often as this one.
    fn await_all(&self, patience: Patience<'_>) -> Result<(), CollectiveError> {
        (0..self.world).try_for_each(|rank| self.await_rank(rank, patience))
    }

    fn await_rank(&self, rank: usize, patience: Patience<'_>) -> Result<(), CollectiveError> {
        if self.lacks(rank).is_none() {
            return Ok(());
        }
        let desk = self.mapping.desk(rank);
        let started = Instant::now();
        let mut looked = started;
        while let Some(arrivals) = self.lacks(rank) {
            let now = Instant::now();
            if patience.waiting.looks_again(now.duration_since(started)) {
                std::hint::spin_loop();
                continue;
            }
            if now.duration_since(looked) >= TICK {
                patience.abort.check()?;
                self.look_after_the_absent(rank, now.duration_since(started), patience.mesh)?;
                looked = now;
            }
            desk.sleepers.fetch_add(1, Ordering::SeqCst);
            let tick = rustix::fs::Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
            // Whatever ends the sleep, what is waited for is looked at again.
            let _ = futex::wait(&desk.arrivals, futex::Flags::empty(), arrivals, Some(&tick));
            desk.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// How often a rank has arrived, if less often than this one. It may be ahead, by one at most.
    fn lacks(&self, rank: usize) -> Option<u32> {
        let arrivals = self.mapping.desk(rank).arrivals.load(Ordering::SeqCst);
        (arrivals.wrapping_sub(self.arrivals).cast_signed() < 0).then_some(arrivals)
    }

    /// Fails when a rank that has yet to arrive has gone, or the one that was waited for has been silent for too long.
    fn look_after_the_absent(&self, waited_for: usize, waited: Duration, mesh: &Mesh) -> Result<(), CollectiveError> {
        for rank in (0..self.world).filter(|rank| self.lacks(*rank).is_some()) {
            let found = mesh.check(rank, if rank == waited_for { waited } else { Duration::ZERO });
            // One that has arrived meanwhile may go.
            if self.lacks(rank).is_some() {
                found?;
            }
        }
        Ok(())
    }

    /// Requires that all ranks reduce the same.
    fn require(&self, agenda: [u64; 4]) -> Result<(), CollectiveError> {
        for rank in 0..self.world {
            let found = self.mapping.desk(rank).agenda.each_ref().map(|word| word.load(Ordering::Relaxed));
            let fields = ["step", "bucket", "operation", "length"];
            if let Some(at) = (0..4).find(|at| found[*at] != agenda[*at]) {
                let named = |value: u64| match fields[at] {
                    "operation" => Call::all_reduce_in_memory(value).to_string(),
                    _ => value.to_string(),
                };
                return Err(CollectiveError::WrongFrame {
                    rank,
                    field: fields[at],
                    expected: named(agenda[at]),
                    found: named(found[at]),
                });
            }
        }
        Ok(())
    }
}
