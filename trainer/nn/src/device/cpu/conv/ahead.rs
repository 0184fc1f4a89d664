//! Fetching what is read next while the present is computed: a copy or a tile then finds it in the
//! caches.

#![allow(unsafe_code, reason = "prefetch instructions on pointers")]

use crate::kernels::simd::Simd;

/// Memory that is fetched into the caches in equal parts while something else is computed.
pub(super) struct Ahead {
    next: *const f32,
    lines: usize,
    lines_at_once: usize,
}

/// Elements of a cache line.
const LINE: usize = 16;

impl Ahead {
    /// All of `values`, in `parts` parts.
    pub(super) fn new<T>(values: &[T], parts: usize) -> Ahead {
        let lines = size_of_val(values).div_ceil(LINE * size_of::<f32>());
        Ahead { next: values.as_ptr().cast(), lines, lines_at_once: lines.div_ceil(parts.max(1)) }
    }

    /// Fetches the next part.
    ///
    /// # Safety
    /// The core has the instructions of `S`.
    #[inline(always)]
    pub(super) unsafe fn fetch<S: Simd>(&mut self) {
        let lines = self.lines_at_once.min(self.lines);
        for _ in 0..lines {
            // SAFETY: the caller's promise; a prefetch reads nothing.
            unsafe { S::prefetch(self.next) };
            self.next = self.next.wrapping_add(LINE);
        }
        self.lines -= lines;
    }
}
