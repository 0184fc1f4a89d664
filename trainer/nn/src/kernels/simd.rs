//! Vectors of f32: the least that the kernels need, for each instruction set.

#![allow(unsafe_code, reason = "vector intrinsics on pointers")]

use super::narrow::bf16;

/// A vector of `LANES` adjacent values.
///
/// # Safety
/// Every method needs a core with the implementation's instructions. `load` and `store` need
/// `LANES` elements at the pointer, of any alignment.
pub(crate) trait Simd: Copy {
    const LANES: usize;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn splat(value: f32) -> Self;
    /// `self · factor + addend`, rounded once if the instruction set can.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// One step of a long sum of products: `self · factor + addend`. A vector whose lanes are pairs
    /// of bf16 adds both products of a pair.
    #[inline(always)]
    unsafe fn dot(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { self.mul_add(factor, addend) }
    }
    /// Loads `LANES` values of bf16.
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        let mut wide = [0.0; 16];
        // SAFETY: the trait's contract; no vector has more lanes.
        unsafe {
            (0..Self::LANES).for_each(|lane| wide[lane] = f32::from_bits(u32::from(*from.add(lane)) << 16));
            Self::load(wide.as_ptr())
        }
    }
    /// Rounds to bf16 and stores `LANES` values.
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        let mut wide = [0.0; 16];
        // SAFETY: the trait's contract; no vector has more lanes.
        unsafe {
            self.store(wide.as_mut_ptr());
            (0..Self::LANES).for_each(|lane| *to.add(lane) = bf16(wide[lane]));
        }
    }
    /// `yes` where `self > other`, else `no`.
    unsafe fn if_greater(self, other: Self, yes: Self, no: Self) -> Self;
    /// `max(0, x)`, where a value that is not a number stays one.
    unsafe fn relu(self) -> Self;
    /// `self` where `code` is `wanted`, else 0.
    unsafe fn where_equal(self, code: Self, wanted: Self) -> Self;
    /// The sum of the lanes, in an order of the implementation's.
    unsafe fn sum(self) -> f32;
    /// Fetches the line of an address into the caches, to read it soon.
    unsafe fn prefetch(address: *const f32);
    /// The same, to write it soon.
    unsafe fn prefetch_to_write(address: *const f32);
}

/// Eight lanes in plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; 8]);

impl Plain {
    #[inline(always)]
    fn from_lanes(lane: impl Fn(usize) -> f32) -> Plain {
        Plain(std::array::from_fn(lane))
    }
}

impl Simd for Plain {
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
        // Two roundings: without fused instructions a fused product is a slow library call.
        Plain::from_lanes(|lane| self.0[lane] * factor.0[lane] + addend.0[lane])
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Plain::from_lanes(|lane| self.0[lane] + other.0[lane])
    }

    #[inline(always)]
    unsafe fn if_greater(self, other: Self, yes: Self, no: Self) -> Self {
        Plain::from_lanes(|lane| if self.0[lane] > other.0[lane] { yes.0[lane] } else { no.0[lane] })
    }

    #[inline(always)]
    unsafe fn relu(self) -> Self {
        Plain::from_lanes(|lane| if self.0[lane] <= 0.0 { 0.0 } else { self.0[lane] })
    }

    #[inline(always)]
    unsafe fn where_equal(self, code: Self, wanted: Self) -> Self {
        Plain::from_lanes(|lane| if code.0[lane] == wanted.0[lane] { self.0[lane] } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0.iter().sum()
    }

    #[inline(always)]
    unsafe fn prefetch(_address: *const f32) {}

    #[inline(always)]
    unsafe fn prefetch_to_write(_address: *const f32) {}
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, Avx512Bf16};

#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block here is one intrinsic under the trait's contract")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    /// Eight lanes of AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256);

    impl Simd for Avx2 {
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
        unsafe fn if_greater(self, other: Self, yes: Self, no: Self) -> Self {
            Avx2(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0)) })
        }

        #[inline(always)]
        unsafe fn relu(self) -> Self {
            // The instruction gives its second operand where one is not a number.
            Avx2(unsafe { _mm256_max_ps(_mm256_setzero_ps(), self.0) })
        }

        #[inline(always)]
        unsafe fn where_equal(self, code: Self, wanted: Self) -> Self {
            Avx2(unsafe { _mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_EQ_OQ>(code.0, wanted.0)) })
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
            }
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
    pub(crate) struct Avx512(__m512);

    impl Simd for Avx512 {
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
        unsafe fn if_greater(self, other: Self, yes: Self, no: Self) -> Self {
            Avx512(unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0), no.0, yes.0) })
        }

        #[inline(always)]
        unsafe fn relu(self) -> Self {
            Avx512(unsafe { _mm512_max_ps(_mm512_setzero_ps(), self.0) })
        }

        #[inline(always)]
        unsafe fn where_equal(self, code: Self, wanted: Self) -> Self {
            Avx512(unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(code.0, wanted.0), self.0) })
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            unsafe { _mm512_reduce_add_ps(self.0) }
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

    /// Sixteen lanes of AVX-512F. In [`Simd::dot`] each lane of the factors is a pair of bf16.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512Bf16(Avx512);

    impl Simd for Avx512Bf16 {
        const LANES: usize = Avx512::LANES;

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Avx512Bf16(unsafe { Avx512::load(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { self.0.store(to) }
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Avx512Bf16(unsafe { Avx512::splat(value) })
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
            Avx512Bf16(unsafe { self.0.mul_add(factor.0, addend.0) })
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Avx512Bf16(unsafe { self.0.add(other.0) })
        }

        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            unsafe {
                let wide = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())));
                Avx512Bf16(Avx512(_mm512_castsi512_ps(wide)))
            }
        }

        /// In the steps of [`bf16`](super::bf16).
        #[inline(always)]
        unsafe fn store_bf16(self, to: *mut u16) {
            unsafe {
                let values = self.0.0;
                let bits = _mm512_castps_si512(values);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
                let is_none = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
                let rounded = _mm512_mask_mov_epi32(rounded, is_none, quiet);
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded)));
            }
        }

        #[inline(always)]
        unsafe fn dot(self, factor: Self, addend: Self) -> Self {
            let pairs = |values: Avx512| unsafe { std::mem::transmute::<__m512, __m512bh>(values.0) };
            Avx512Bf16(Avx512(unsafe { _mm512_dpbf16_ps(addend.0.0, pairs(self.0), pairs(factor.0)) }))
        }

        #[inline(always)]
        unsafe fn if_greater(self, other: Self, yes: Self, no: Self) -> Self {
            Avx512Bf16(unsafe { self.0.if_greater(other.0, yes.0, no.0) })
        }

        #[inline(always)]
        unsafe fn relu(self) -> Self {
            Avx512Bf16(unsafe { self.0.relu() })
        }

        #[inline(always)]
        unsafe fn where_equal(self, code: Self, wanted: Self) -> Self {
            Avx512Bf16(unsafe { self.0.where_equal(code.0, wanted.0) })
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            unsafe { self.0.sum() }
        }

        #[inline(always)]
        unsafe fn prefetch(address: *const f32) {
            unsafe { Avx512::prefetch(address) }
        }

        #[inline(always)]
        unsafe fn prefetch_to_write(address: *const f32) {
            unsafe { Avx512::prefetch_to_write(address) }
        }
    }
}
