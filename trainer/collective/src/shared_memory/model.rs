//! A model of two ranks that share memory.
//!
//! The ranks meet at barriers and reduce through staging areas and in their arenas. Loom tries
//! every order that the memory model allows with few interruptions. It fails if two ranks touch a
//! byte at the same time, or if all sleep. No tick wakes a sleeper here.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::Ordering;

use loom::cell::{MutPtr, UnsafeCell};
use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::arrival::{ArrivalCount, Word};
use super::pages::{InPlace, Pages};
use super::staging::{AREAS, Areas, Staged};

/// The interruptions of a thread that need not wait. Most faults take one or two.
const INTERRUPTIONS: usize = 2;
/// Bytes of an area, each an element.
const CHUNK: usize = 2;
/// The most bytes of which each rank reduces the whole.
const WHOLE: usize = 1;
/// Bytes of an operation in an arena.
const PAGES: usize = 2;

/// A number, and the system's queue of its sleepers.
struct Futex {
    number: AtomicU32,
    /// The number of wake-ups.
    woken: Mutex<u32>,
    wakes: Condvar,
}

impl Default for Futex {
    fn default() -> Self {
        Self { number: AtomicU32::new(0), woken: Mutex::new(0), wakes: Condvar::new() }
    }
}

impl Word for Futex {
    fn load(&self, order: Ordering) -> u32 {
        self.number.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.number.store(value, order);
    }

    fn add(&self, value: u32) {
        self.number.fetch_add(value, Ordering::Relaxed);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }

    fn sleep(&self, seen: u32) {
        // The system compares the number with its queue locked.
        let mut woken = self.woken.lock().unwrap();
        let before = *woken;
        if self.number.load(Ordering::Relaxed) == seen {
            while *woken == before {
                woken = self.wakes.wait(woken).unwrap();
            }
        }
    }

    fn wake(&self) {
        *self.woken.lock().unwrap() += 1;
        self.wakes.notify_all();
    }
}

/// The memory of a group of two.
#[derive(Default)]
struct Memory {
    barriers: [ArrivalCount<Futex>; 2],
    areas: [[[UnsafeCell<u8>; CHUNK]; AREAS]; 2],
    arenas: [[UnsafeCell<u8>; PAGES]; 2],
}

// SAFETY: loom checks which rank touches which byte when.
unsafe impl Sync for Memory {}

impl Memory {
    /// Waits for the other rank, without a look for aborts and for peers that have gone.
    fn barrier(&self, rank: usize, count: &mut u32) {
        *count += 1;
        self.barriers[rank].arrive(*count);
        while let Some(seen) = self.barriers[1 - rank].lacks(*count) {
            self.barriers[1 - rank].sleep(seen);
        }
    }
}

impl Areas for Memory {
    const CHUNK: usize = CHUNK;
    const WHOLE: usize = WHOLE;

    unsafe fn read(&self, rank: usize, area: usize, range: Range<usize>, take: impl FnOnce(&[u8])) {
        // SAFETY: loom checks that nobody writes to it.
        let bytes: Vec<u8> =
            self.areas[rank][area][range].iter().map(|byte| byte.with(|byte| unsafe { *byte })).collect();
        take(&bytes);
    }

    unsafe fn write(&self, rank: usize, area: usize, range: Range<usize>, fill: impl FnOnce(&mut [u8])) {
        let cells = &self.areas[rank][area][range];
        let mut bytes = vec![0; cells.len()];
        fill(&mut bytes);
        for (cell, value) in cells.iter().zip(bytes) {
            // SAFETY: loom checks that nobody else touches it.
            cell.with_mut(|byte| unsafe { *byte = value });
        }
    }
}

/// Runs the same on two ranks in every order.
fn both(act: impl Fn(&Memory, usize) + Send + Sync + Copy + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(INTERRUPTIONS);
    builder.check(move || {
        let memory = Arc::new(Memory::default());
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || act(&other, 1));
        act(&memory, 0);
        thread.join().unwrap();
    });
}

#[test]
fn a_rank_behind_a_barrier_is_woken_and_sees_the_others_writes() {
    both(|memory, rank| {
        let mut count = 0;
        for round in 1..=2 {
            // SAFETY: a rank's own byte, between two barriers.
            unsafe { memory.write(rank, 0, 0..1, |byte| byte[0] = round) };
            memory.barrier(rank, &mut count);
            // SAFETY: the other rank writes again after the next barrier.
            unsafe { memory.read(1 - rank, 0, 0..1, |byte| assert_eq!(byte, [round])) };
            memory.barrier(rank, &mut count);
        }
    });
}

/// Bytes of an arena that one rank holds.
struct Held {
    cells: Vec<MutPtr<u8>>,
    bytes: Vec<u8>,
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (cell, value) in self.cells.iter().zip(&self.bytes) {
            cell.with(|byte| {
                // SAFETY: loom checks that nobody else touches it.
                unsafe { *byte = *value };
            });
        }
    }
}

impl Pages for &Memory {
    fn bytes(&self) -> usize {
        PAGES
    }

    unsafe fn of(&self, rank: usize, range: Range<usize>) -> impl DerefMut<Target = [u8]> {
        let cells: Vec<_> = self.arenas[rank][range].iter().map(UnsafeCell::get_mut).collect();
        // SAFETY: loom checks that nobody else touches it.
        let bytes = cells.iter().map(|cell| cell.with(|byte| unsafe { *byte })).collect();
        Held { cells, bytes }
    }
}

/// Reduces, on both ranks, pages in their arenas and `lengths` bytes beside them, one operation
/// after another.
fn reduced_in_place(lengths: &'static [u8]) {
    both(move |memory, rank| {
        let (mut count, mut chunks) = (0, 0);
        for length in lengths {
            let scale = [1, 10][rank];
            let mut beside: Vec<u8> = (1..=*length).map(|index| scale * index).collect();
            // SAFETY: a rank's own pages, between two operations.
            unsafe { memory.of(rank, 0..PAGES) }.copy_from_slice(&[scale, 2 * scale]);
            let reduce = |sum: &mut [u8], terms: &[u8]| sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
            let reduce_both = |one: &mut [u8], other: &mut [u8]| {
                one.iter_mut().zip(other).for_each(|(one, other)| (*one, *other) = (*one + *other, *one + *other));
            };
            let edges = Staged { rank, world: 2, data: &mut beside, element_bytes: 1, reduce, chunks };
            let Ok(through) = InPlace { pages: memory, reduce_both, edges }.through(
                memory,
                || Ok::<(), Infallible>(()),
                || {
                    memory.barrier(rank, &mut count);
                    Ok(())
                },
            );
            chunks = through;
            // SAFETY: as above.
            assert_eq!(*unsafe { memory.of(rank, 0..PAGES) }, [11, 22]);
            assert_eq!(beside, (1..=*length).map(|index| 11 * index).collect::<Vec<_>>());
        }
    });
}

/// Reduces data of `lengths` bytes on both ranks, one operation after another.
fn reduced(lengths: &'static [u8]) {
    both(move |memory, rank| {
        let (mut count, mut chunks) = (0, 0);
        for length in lengths {
            let scale = [1, 10][rank];
            let mut data: Vec<u8> = (1..=*length).map(|index| scale * index).collect();
            let reduce = |sum: &mut [u8], terms: &[u8]| sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
            let staged = Staged { rank, world: 2, data: &mut data, element_bytes: 1, reduce, chunks };
            let Ok(through) = staged.through(memory, || {
                memory.barrier(rank, &mut count);
                Ok::<(), Infallible>(())
            });
            chunks = through;
            assert_eq!(data, (1..=*length).map(|index| 11 * index).collect::<Vec<_>>());
        }
    });
}

#[test]
fn no_byte_of_a_staging_area_is_touched_by_two_ranks_at_once() {
    reduced(&[6]);
}

#[test]
fn no_byte_is_touched_by_two_ranks_if_each_reduces_the_whole() {
    reduced(&[1, 1, 1, 2, 1]);
}

#[test]
fn no_byte_is_touched_by_two_ranks_if_the_last_chunk_is_reduced_whole() {
    reduced(&[3, 3, 2]);
}

#[test]
fn no_byte_of_an_arena_or_its_edges_is_touched_by_two_ranks_at_once() {
    reduced_in_place(&[0, 0]);
    reduced_in_place(&[1, 2]);
    reduced_in_place(&[3]);
}
