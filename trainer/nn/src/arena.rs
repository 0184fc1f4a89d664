//! A flat, contiguous buffer of which disjoint ranges can be held by different threads at once.
//!
//! `RefCell` for a buffer: [`Arena::lease`] checks at run time that no overlapping lease or view is
//! out. A communication thread can thus own a bucket (a slice of the gradient arena, not a copy)
//! while backward writes other ranges.

#![allow(
    unsafe_code,
    reason = "disjoint mutable slices of one buffer, in several threads, proven disjoint at run time"
)]

use std::alloc::{self, Layout};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, madvise};

use crate::dtype::{DType, Element};

/// Elements in one cache line: every arena starts on one, and parameters are aligned to it.
pub const LINE_ELEMENTS: usize = 16;

const LINE_BYTES: usize = 64;

/// Bytes of one page of the smallest size, and what that is in elements of f32.
const PAGE_BYTES: usize = 4096;
pub(crate) const PAGE_ELEMENTS: usize = PAGE_BYTES / size_of::<f32>();

/// Bytes of a huge page: a longer buffer is asked for in such pages, so that a copy rarely has to
/// look an address up.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Leases that can be out at once without the list growing; more are possible, at the price of one
/// allocation.
const LEASES_EXPECTED: usize = 256;

/// A contiguous buffer, 64-byte aligned, its pages touched when made. Clones share the buffer.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<Shared>,
}

impl Arena {
    /// An arena of `elements` zeros in f32. Every page is written once, so that no step ever meets
    /// a page fault.
    pub fn zeroed(elements: usize) -> Arena {
        Arena::zeroed_of(DType::F32, elements)
    }

    /// The same with elements of another type.
    pub fn zeroed_of(dtype: DType, elements: usize) -> Arena {
        let mut pages = Pages::zeroed(elements * dtype.bytes());
        let start = pages.start;
        Arena::sharing(Box::new(move || drop(std::mem::replace(&mut pages, Pages::none()))), start, dtype, elements)
    }

    /// An arena in memory that another has made, with the values that it holds.
    ///
    /// # Panics
    /// If it does not begin on a cache line.
    pub fn over<M: AsMut<[f32]> + Send + 'static>(memory: M) -> Arena {
        let memory: &'static mut M = Box::leak(Box::new(memory));
        let memory = Owner(NonNull::from(memory));
        // SAFETY: nobody else knows it; from here on its slice is touched through leases only, and
        // itself when it is dropped.
        let slice = unsafe { &mut *memory.0.as_ptr() }.as_mut();
        assert!(slice.as_ptr().addr().is_multiple_of(LINE_BYTES), "an arena begins on a cache line");
        let (start, elements) = (NonNull::from(&mut *slice).cast(), slice.len());
        Arena::sharing(Box::new(move || memory.free()), start, DType::F32, elements)
    }

    fn sharing(free: Box<dyn FnMut() + Send>, start: NonNull<u8>, dtype: DType, elements: usize) -> Arena {
        let leases = Mutex::new(Vec::with_capacity(LEASES_EXPECTED));
        Arena { shared: Arc::new(Shared { free, start, dtype, elements, leases }) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shared.elements
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shared.elements == 0
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.shared.dtype
    }

    /// Exclusive use of `range` until the lease is dropped.
    ///
    /// # Panics
    /// If the elements are of another type, or the range lies outside the arena or overlaps a lease
    /// or view that is out: the message has both ranges.
    pub fn lease<T: Element>(&self, range: Range<usize>) -> Lease<T> {
        self.hold::<T>(range.clone(), Use::Exclusive);
        Lease(Held { shared: Arc::clone(&self.shared), range, kind: Use::Exclusive, of: PhantomData })
    }

    /// Reading `range` until the view is dropped; views may overlap each other.
    ///
    /// # Panics
    /// As [`Arena::lease`], but views may overlap.
    pub fn view<T: Element>(&self, range: Range<usize>) -> View<T> {
        self.hold::<T>(range.clone(), Use::Shared);
        View(Held { shared: Arc::clone(&self.shared), range, kind: Use::Shared, of: PhantomData })
    }

    fn hold<T: Element>(&self, range: Range<usize>, kind: Use) {
        let Shared { elements, dtype, .. } = *self.shared;
        assert!(T::shows(dtype), "elements of {dtype:?} are no {}", std::any::type_name::<T>());
        assert!(
            range.start <= range.end && range.end <= elements,
            "a lease of {range:?} lies outside the arena of {elements} elements"
        );
        let mut leases = self.shared.leases();
        let conflicts = |held: &&(Range<usize>, Use)| {
            (kind == Use::Exclusive || held.1 == Use::Exclusive) && overlap(&held.0, &range)
        };
        if let Some((held, _)) = leases.iter().find(conflicts).cloned() {
            drop(leases);
            panic!("a lease of {range:?} overlaps the lease of {held:?} that is still out");
        }
        leases.push((range, kind));
    }

    /// The number of leases and views that are out.
    pub fn leased(&self) -> usize {
        self.shared.leases().len()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("dtype", &self.shared.dtype)
            .field("elements", &self.shared.elements)
            .field("leases", &*self.shared.leases())
            .finish()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Shared,
    Exclusive,
}

/// A range that is out.
struct Held<T> {
    shared: Arc<Shared>,
    range: Range<usize>,
    kind: Use,
    of: PhantomData<T>,
}

impl<T> Held<T> {
    fn start(&self) -> *mut T {
        // SAFETY: the range lies inside the memory, whose elements have the size of `T`.
        unsafe { self.shared.start.as_ptr().cast::<T>().add(self.range.start) }
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        let mut leases = self.shared.leases();
        if let Some(position) = leases.iter().position(|(held, kind)| *held == self.range && *kind == self.kind) {
            leases.swap_remove(position);
        }
    }
}

/// Reading one range of an [`Arena`]; dropping it gives the range back.
pub struct View<T = f32>(Held<T>);

impl<T: Element> Deref for View<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the range was checked against the storage and its type when held, no lease
        // overlaps it while this lives, and the storage lives as long as the `Arc`.
        unsafe { std::slice::from_raw_parts(self.0.start(), self.0.range.len()) }
    }
}

/// Exclusive use of one range of an [`Arena`]; dropping it gives the range back.
pub struct Lease<T = f32>(Held<T>);

impl<T> Lease<T> {
    /// The leased range of the arena.
    pub fn range(&self) -> Range<usize> {
        self.0.range.clone()
    }
}

impl<T: Element> Deref for Lease<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the range was checked against the storage and its type when leased, nothing else
        // overlaps it while this lives, and the storage lives as long as the `Arc`.
        unsafe { std::slice::from_raw_parts(self.0.start(), self.0.range.len()) }
    }
}

impl<T: Element> DerefMut for Lease<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the lease itself is borrowed mutably, so this is its only slice.
        unsafe { std::slice::from_raw_parts_mut(self.0.start(), self.0.range.len()) }
    }
}

impl<T: Element> AsMut<[T]> for Lease<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T> fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("range", &self.0.range).finish()
    }
}

/// What [`Arena::over`] keeps of the memory's owner.
struct Owner<M>(NonNull<M>);

// SAFETY: it is used only to be dropped, and `M` may be dropped by another thread.
unsafe impl<M: Send> Send for Owner<M> {}

impl<M> Owner<M> {
    fn free(&self) {
        // SAFETY: leaked when the arena was made, and given back once; no lease is left, each holds
        // the arena.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Memory of an arena's own.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: nobody else knows the memory.
unsafe impl Send for Pages {}

impl Pages {
    fn none() -> Pages {
        Pages { start: NonNull::dangling(), layout: Layout::new::<()>() }
    }

    fn zeroed(bytes: usize) -> Pages {
        let bytes = bytes.max(1);
        let boundary = if bytes < HUGE_PAGE_BYTES { LINE_BYTES } else { HUGE_PAGE_BYTES };
        let layout = Layout::from_size_align(bytes, boundary).expect("an arena fits into memory");
        // SAFETY: of at least one byte.
        let Some(start) = NonNull::new(unsafe { alloc::alloc(layout) }) else { alloc::handle_alloc_error(layout) };
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: advice for memory that was just allocated, from the beginning of a page. A
            // system without huge pages refuses it, and gives others.
            let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        }
        for first in (0..bytes).step_by(PAGE_BYTES) {
            // SAFETY: inside the memory. Volatile, because the compiler may turn zeros into an
            // allocation of untouched zero pages.
            unsafe { start.as_ptr().add(first).write_volatile(0) }
        }
        // SAFETY: all of the memory, in which zeros are values.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Pages { start, layout }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated with this layout, and given back once.
            unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}

struct Shared {
    /// Gives the memory back; called once.
    free: Box<dyn FnMut() + Send>,
    start: NonNull<u8>,
    dtype: DType,
    elements: usize,
    leases: Mutex<Vec<(Range<usize>, Use)>>,
}

// SAFETY: the memory itself may go to another thread, and its values are reached only through
// leases and views.
unsafe impl Send for Shared {}

// SAFETY: the values are reached only through leases and views, and no lease that is out overlaps
// another or a view; the list of them is behind a mutex, which also orders the writes under one
// lease before the reads under the next.
unsafe impl Sync for Shared {}

impl Shared {
    fn leases(&self) -> MutexGuard<'_, Vec<(Range<usize>, Use)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        (self.free)();
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
        let mut left = arena.lease::<f32>(0..50);
        let mut right = arena.lease::<f32>(50..100);
        left.fill(1.0);
        right.fill(2.0);
        assert_eq!((left[49], right[0]), (1.0, 2.0));
    }

    #[test]
    #[should_panic(expected = "a lease of 40..60 overlaps the lease of 0..50")]
    fn an_overlapping_lease_panics_with_both_ranges() {
        let arena = Arena::zeroed(100);
        let _held = arena.lease::<f32>(0..50);
        arena.lease::<f32>(40..60);
    }

    #[test]
    #[should_panic(expected = "outside the arena of 100 elements")]
    fn a_lease_outside_the_arena_panics() {
        Arena::zeroed(100).lease::<f32>(90..101);
    }

    #[test]
    fn a_dropped_lease_can_be_taken_again_with_its_values() {
        let arena = Arena::zeroed(10);
        arena.lease::<f32>(2..5).fill(3.0);
        assert_eq!(&arena.lease::<f32>(0..10)[..6], [0.0, 0.0, 3.0, 3.0, 3.0, 0.0]);
        assert_eq!(arena.leased(), 0);
    }

    #[test]
    fn threads_own_their_ranges_and_the_values_come_back() {
        let arena = Arena::zeroed(64 * 16);
        for round in 0..20 {
            let threads: Vec<_> = (0..8)
                .map(|part| {
                    let mut lease = arena.lease::<f32>(part * 128..(part + 1) * 128);
                    thread::spawn(move || lease.iter_mut().for_each(|x| *x += (part + round) as f32))
                })
                .collect();
            for thread in threads {
                thread.join().expect("the thread only adds");
            }
        }
        let all = arena.lease::<f32>(0..1024);
        let expected = |part: usize| (0..20).map(|round| (part + round) as f32).sum::<f32>();
        assert!(all.chunks(128).enumerate().all(|(part, range)| range.iter().all(|x| *x == expected(part))));
    }

    #[test]
    fn an_overlap_is_refused_from_another_thread_too() {
        let arena = Arena::zeroed(32);
        let held = arena.lease::<f32>(0..16);
        let other = arena.clone();
        assert!(thread::spawn(move || drop(other.lease::<f32>(15..17))).join().is_err());
        drop(held);
        assert_eq!(arena.lease::<f32>(15..17).len(), 2);
    }

    #[test]
    fn an_arena_over_other_memory_has_its_values_and_drops_it_once_the_last_lease_is_back() {
        struct Foreign {
            memory: Lease,
            _alive: Arc<()>,
        }
        impl AsMut<[f32]> for Foreign {
            fn as_mut(&mut self) -> &mut [f32] {
                &mut self.memory
            }
        }
        let alive = Arc::new(());
        let mut memory = Arena::zeroed(32).lease(0..32);
        memory.fill(3.0);
        let arena = Arena::over(Foreign { memory, _alive: Arc::clone(&alive) });
        assert_eq!(arena.len(), 32);
        let lease = arena.lease::<f32>(1..31);
        drop(arena);
        assert_eq!((lease[..].to_vec(), Arc::strong_count(&alive)), (vec![3.0; 30], 2));
        drop(lease);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    #[should_panic(expected = "an arena begins on a cache line")]
    fn an_arena_over_memory_that_begins_within_a_line_is_refused() {
        struct Crooked(Lease);
        impl AsMut<[f32]> for Crooked {
            fn as_mut(&mut self) -> &mut [f32] {
                &mut self.0[1..]
            }
        }
        Arena::over(Crooked(Arena::zeroed(16).lease(0..16)));
    }

    #[test]
    fn views_may_overlap_and_a_lease_may_not_overlap_a_view() {
        let arena = Arena::zeroed(8);
        let (one, other) = (arena.view::<f32>(0..8), arena.view::<f32>(2..4));
        assert_eq!((one[3], other[1]), (0.0, 0.0));
        drop(one);
        arena.lease::<f32>(4..8).fill(1.0);
        let arena = arena.clone();
        assert!(thread::spawn(move || drop(arena.lease::<f32>(3..5))).join().is_err());
    }

    #[test]
    fn elements_are_shown_as_what_they_are_only() {
        let arena = Arena::zeroed_of(DType::U32, 4);
        arena.lease::<u32>(1..2).fill(7);
        assert_eq!(arena.view::<u32>(0..4)[..], [0, 7, 0, 0]);
        assert!(thread::spawn(move || drop(arena.lease::<f32>(0..4))).join().is_err());
        assert_eq!(Arena::zeroed_of(DType::Bf16, 3).view::<u16>(0..3).len(), 3);
    }

    #[test]
    fn an_arena_starts_on_a_cache_line() {
        let arena = Arena::zeroed(3);
        assert_eq!(arena.lease::<f32>(0..3).as_ptr().align_offset(64), 0);
    }

    #[test]
    fn a_long_arena_is_asked_for_in_huge_pages() {
        let arena = Arena::zeroed(2 * HUGE_PAGE_BYTES);
        let lease = arena.lease::<f32>(0..arena.len());
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
