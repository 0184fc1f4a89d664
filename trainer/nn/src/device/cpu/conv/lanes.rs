//! Vectors of channels: the least that the convolution kernels need, for each instruction set.

#![allow(unsafe_code, reason = "vector intrinsics on pointers")]

/// A vector of `LANES` adjacent channels.
///
/// # Safety
/// Every method needs a core with the implementation's instructions. `load` and `store` need
/// `LANES` elements at the pointer, of any alignment.
pub(super) trait Lanes: Copy {
    const LANES: usize;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn splat(value: f32) -> Self;
    /// `self · factor + addend`, rounded once if the instruction set can.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// `max(0, x)`; a value that is not a number stays one.
    unsafe fn relu(self) -> Self;
    /// Fetches the line of an address into the caches, to read it soon.
    unsafe fn prefetch(address: *const f32);
    /// The same, to write it soon.
    unsafe fn prefetch_to_write(address: *const f32);
}

/// Eight lanes in plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 8]);

impl Lanes for Plain {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the trait's contract.
        Plain(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Plain([value; 8])
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // Two roundings: without the instruction, a fused product is a slow library call.
        Plain(std::array::from_fn(|lane| self.0[lane] * factor.0[lane] + addend.0[lane]))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Plain(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        Plain(self.0.map(|value| if value <= 0.0 { 0.0 } else { value }))
    }

    #[inline(always)]
    unsafe fn prefetch(_address: *const f32) {}

    #[inline(always)]
    unsafe fn prefetch_to_write(_address: *const f32) {}
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block here is one intrinsic under the trait's contract")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    /// Eight lanes of AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(__m256);

    impl Lanes for Avx2 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Avx2(unsafe { _mm256_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Avx2(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
            Avx2(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Avx2(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn relu(self) -> Self {
            // The instruction returns its second operand if one is not a number.
            Avx2(unsafe { _mm256_max_ps(_mm256_setzero_ps(), self.0) })
        }

        #[inline(always)]
        unsafe fn prefetch(address: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        }

        #[inline(always)]
        unsafe fn prefetch_to_write(address: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) }
        }
    }

    /// Sixteen lanes of AVX-512F.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512);

    impl Lanes for Avx512 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Avx512(unsafe { _mm512_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Avx512(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
            Avx512(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Avx512(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn relu(self) -> Self {
            Avx512(unsafe { _mm512_max_ps(_mm512_setzero_ps(), self.0) })
        }

        #[inline(always)]
        unsafe fn prefetch(address: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        }

        #[inline(always)]
        unsafe fn prefetch_to_write(address: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) }
        }
    }
}
