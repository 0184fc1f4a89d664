//! A flat, contiguous buffer of which disjoint ranges can be held by different threads at once.
//!
//! `RefCell` for a buffer: [`Arena::lease`] checks at run time that no overlapping lease is out. A communication thread
//! can thus own a bucket (a slice of the gradient arena, not a copy) while backward writes other ranges.

#![allow(
    unsafe_code,
    reason = "disjoint mutable slices of one buffer, in several threads, proven disjoint at run time"
)]

use std::alloc::{self, Layout};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, madvise};

/// Elements in one cache line: every arena starts on one, and parameters are aligned to it.
pub const LINE_ELEMENTS: usize = 16;

const LINE_BYTES: usize = LINE_ELEMENTS * size_of::<f32>();

/// Elements in one page of the smallest size.
pub(crate) const PAGE_ELEMENTS: usize = 1024;

/// Bytes of a huge page: what is as long is asked for in such pages, so that a copy of many of them rarely has to look an address up.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Leases that can be out at once without the list growing; more are possible, at the price of one allocation.
const LEASES_EXPECTED: usize = 256;

/// A contiguous buffer of `f32`, 64-byte aligned, its pages touched when made. Clones share the buffer.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<Shared>,
}

impl Arena {
    /// An arena of `elements` zeros. Every page is written once, so that no step ever meets a page fault.
    pub fn zeroed(elements: usize) -> Arena {
        Arena::over(Pages::zeroed(elements))
    }

    /// An arena in memory that another has made, with the values that it holds.
    ///
    /// # Panics
    /// If it does not begin on a cache line.
    pub fn over<M: AsMut<[f32]> + Send + 'static>(memory: M) -> Arena {
        let memory: &'static mut M = Box::leak(Box::new(memory));
        let memory = NonNull::from(memory);
        // SAFETY: nobody else knows it; its slice is touched through leases only from here on, and itself when it is dropped.
        let slice = unsafe { &mut *memory.as_ptr() }.as_mut();
        assert!(slice.as_ptr().addr().is_multiple_of(LINE_BYTES), "an arena begins on a cache line");
        let (start, elements) = (NonNull::from(&mut *slice).cast(), slice.len());
        let leases = Mutex::new(Vec::with_capacity(LEASES_EXPECTED));
        Arena { shared: Arc::new(Shared { memory, start, elements, leases }) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shared.elements
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shared.elements == 0
    }

    /// Exclusive use of `range` until the lease is dropped.
    ///
    /// # Panics
    /// If the range lies outside the arena, or overlaps a lease that is out: the message has both ranges.
    pub fn lease(&self, range: Range<usize>) -> Lease {
        let elements = self.shared.elements;
        assert!(
            range.start <= range.end && range.end <= elements,
            "a lease of {range:?} lies outside the arena of {elements} elements"
        );
        let mut leases = self.shared.leases();
        if let Some(held) = leases.iter().find(|held| overlap(held, &range)).cloned() {
            drop(leases);
            panic!("a lease of {range:?} overlaps the lease of {held:?} that is still out");
        }
        leases.push(range.clone());
        drop(leases);
        Lease { shared: Arc::clone(&self.shared), range }
    }

    /// The number of leases that are out.
    pub fn leased(&self) -> usize {
        self.shared.leases().len()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("elements", &self.shared.elements)
            .field("leases", &*self.shared.leases())
            .finish()
    }
}

/// Exclusive use of one range of an [`Arena`]; dropping it gives the range back.
pub struct Lease {
    shared: Arc<Shared>,
    range: Range<usize>,
}

impl Lease {
    /// The leased range of the arena.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Deref for Lease {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the range was checked against the storage when leased, no other lease overlaps it while this one
        // lives, and the storage lives as long as the `Arc`.
        unsafe { std::slice::from_raw_parts(self.shared.start.as_ptr().add(self.range.start), self.range.len()) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`; the lease itself is borrowed mutably, so this is its only slice.
        unsafe { std::slice::from_raw_parts_mut(self.shared.start.as_ptr().add(self.range.start), self.range.len()) }
    }
}

impl AsMut<[f32]> for Lease {
    fn as_mut(&mut self) -> &mut [f32] {
        self
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("range", &self.range).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut leases = self.shared.leases();
        if let Some(position) = leases.iter().position(|held| *held == self.range) {
            leases.swap_remove(position);
        }
    }
}

/// Memory of an arena's own.
struct Pages {
    start: NonNull<f32>,
    elements: usize,
    layout: Layout,
}

// SAFETY: nobody else knows the memory.
unsafe impl Send for Pages {}

impl Pages {
    fn zeroed(elements: usize) -> Self {
        let bytes = elements.max(1) * size_of::<f32>();
        let boundary = if bytes < HUGE_PAGE_BYTES { LINE_BYTES } else { HUGE_PAGE_BYTES };
        let layout = Layout::from_size_align(bytes, boundary).expect("an arena fits into memory");
        // SAFETY: of at least one element.
        let Some(start) = NonNull::new(unsafe { alloc::alloc(layout) }) else { alloc::handle_alloc_error(layout) };
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: advice for memory that was just allocated, from the beginning of a page. A system without huge pages refuses it,
            // and gives others.
            let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        }
        let start = start.cast::<f32>();
        for first in (0..elements).step_by(PAGE_ELEMENTS) {
            // SAFETY: inside the memory. Volatile, because the compiler may turn zeros into an allocation of untouched zero pages.
            unsafe { start.as_ptr().add(first).write_volatile(0.0) }
        }
        // SAFETY: all of the memory, in which zeros are values.
        unsafe { start.as_ptr().write_bytes(0, elements) };
        Self { start, elements, layout }
    }
}

impl AsMut<[f32]> for Pages {
    fn as_mut(&mut self) -> &mut [f32] {
        // SAFETY: so many elements were written when it was made.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.elements) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and given back once.
        unsafe { alloc::dealloc(self.start.as_ptr().cast(), self.layout) }
    }
}

struct Shared {
    memory: NonNull<dyn Send>,
    start: NonNull<f32>,
    elements: usize,
    leases: Mutex<Vec<Range<usize>>>,
}

// SAFETY: the memory itself may go to another thread, and is used only when dropped; its values are reached only through leases.
unsafe impl Send for Shared {}

// SAFETY: the values are reached only through leases, and no two leases that are out overlap; the list of leases is behind a mutex,
// which also orders the writes under one lease before the reads under the next.
unsafe impl Sync for Shared {}

impl Shared {
    fn leases(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: leaked when this was made, and given back once; no lease is left, each holds this.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// An empty range overlaps nothing.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::thread;

    #[test]
    fn disjoint_leases_are_out_at_once() {
        let arena = Arena::zeroed(100);
        let mut left = arena.lease(0..50);
        let mut right = arena.lease(50..100);
        left.fill(1.0);
        right.fill(2.0);
        assert_eq!((left[49], right[0]), (1.0, 2.0));
    }

    #[test]
    #[should_panic(expected = "a lease of 40..60 overlaps the lease of 0..50")]
    fn an_overlapping_lease_panics_with_both_ranges() {
        let arena = Arena::zeroed(100);
        let _held = arena.lease(0..50);
        arena.lease(40..60);
    }

    #[test]
    #[should_panic(expected = "outside the arena of 100 elements")]
    fn a_lease_outside_the_arena_panics() {
        Arena::zeroed(100).lease(90..101);
    }

    #[test]
    fn a_dropped_lease_can_be_taken_again_with_its_values() {
        let arena = Arena::zeroed(10);
        arena.lease(2..5).fill(3.0);
        assert_eq!(&arena.lease(0..10)[..6], [0.0, 0.0, 3.0, 3.0, 3.0, 0.0]);
        assert_eq!(arena.leased(), 0);
    }

    #[test]
    fn threads_own_their_ranges_and_the_values_come_back() {
        let arena = Arena::zeroed(64 * 16);
        for round in 0..20 {
            let threads: Vec<_> = (0..8)
                .map(|part| {
                    let mut lease = arena.lease(part * 128..(part + 1) * 128);
                    thread::spawn(move || lease.iter_mut().for_each(|x| *x += (part + round) as f32))
                })
                .collect();
            for thread in threads {
                thread.join().expect("the thread only adds");
            }
        }
        let all = arena.lease(0..1024);
        let expected = |part: usize| (0..20).map(|round| (part + round) as f32).sum::<f32>();
        assert!(all.chunks(128).enumerate().all(|(part, range)| range.iter().all(|x| *x == expected(part))));
    }

    #[test]
    fn an_overlap_is_refused_from_another_thread_too() {
        let arena = Arena::zeroed(32);
        let held = arena.lease(0..16);
        let other = arena.clone();
        assert!(thread::spawn(move || drop(other.lease(15..17))).join().is_err());
        drop(held);
        assert_eq!(arena.lease(15..17).len(), 2);
    }

    #[test]
    fn an_arena_over_other_memory_has_its_values_and_drops_it_once_the_last_lease_is_back() {
        struct Foreign {
            memory: Pages,
            _alive: Arc<()>,
        }
        impl AsMut<[f32]> for Foreign {
            fn as_mut(&mut self) -> &mut [f32] {
                self.memory.as_mut()
            }
        }
        let alive = Arc::new(());
        let mut memory = Pages::zeroed(32);
        memory.as_mut().fill(3.0);
        let arena = Arena::over(Foreign { memory, _alive: Arc::clone(&alive) });
        assert_eq!(arena.len(), 32);
        let lease = arena.lease(1..31);
        drop(arena);
        assert_eq!((lease[..].to_vec(), Arc::strong_count(&alive)), (vec![3.0; 30], 2));
        drop(lease);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    #[should_panic(expected = "an arena begins on a cache line")]
    fn an_arena_over_memory_that_begins_within_a_line_is_refused() {
        struct Crooked(Pages);
        impl AsMut<[f32]> for Crooked {
            fn as_mut(&mut self) -> &mut [f32] {
                &mut self.0.as_mut()[1..]
            }
        }
        Arena::over(Crooked(Pages::zeroed(16)));
    }

    #[test]
    fn an_arena_starts_on_a_cache_line() {
        let arena = Arena::zeroed(3);
        assert_eq!(arena.lease(0..3).as_ptr().align_offset(64), 0);
    }

    #[test]
    fn a_long_arena_is_asked_for_in_huge_pages() {
        let arena = Arena::zeroed(2 * HUGE_PAGE_BYTES);
        let lease = arena.lease(0..arena.len());
        assert!(lease.iter().all(|value| *value == 0.0));
        let place = lease.as_ptr().addr();
        assert!(place.is_multiple_of(HUGE_PAGE_BYTES), "it begins {place:x}");
        if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").is_ok_and(|is_there| is_there) {
            let skipped = b"SKIPPED: a_long_arena_is_asked_for_in_huge_pages: this kernel has none\n";
            return std::io::stderr().write_all(skipped).expect("a standard error");
        }
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("this process's memory");
        let holds = |line: &str| -> Option<bool> {
            let (first, end) = line.split_whitespace().next()?.split_once('-')?;
            let address = |text| usize::from_str_radix(text, 16).ok();
            Some((address(first)?..address(end)?).contains(&place))
        };
        let flags = maps.lines().skip_while(|line| holds(line) != Some(true)).find(|line| line.starts_with("VmFlags:"));
        assert!(flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hg")), "{flags:?}");
    }
}
