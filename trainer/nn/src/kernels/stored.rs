//! Floats as memory holds them, and as kernels compute with them: in f32.

#![allow(unsafe_code, reason = "vector loads and stores through pointers")]

use super::{narrow::bf16, simd::Simd};
use crate::dtype::{DType, Element};

/// A type of stored values.
pub(crate) trait Stored: Element + Copy {
    /// Returns the value in f32.
    fn get(self) -> f32;
    /// Rounds a value.
    fn of(value: f32) -> Self;
    /// Loads a vector.
    ///
    /// # Safety
    /// As for [`Simd::load`].
    unsafe fn load<S: Simd>(from: *const Self) -> S;
    /// Stores a vector.
    ///
    /// # Safety
    /// As for [`Simd::store`].
    unsafe fn store<S: Simd>(values: S, to: *mut Self);
}

impl Stored for f32 {
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }

    #[inline(always)]
    fn of(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f32) -> S {
        // SAFETY: the caller's promise.
        unsafe { S::load(from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(values: S, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { values.store(to) }
    }
}

/// The upper half of an f32.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct Bf16(pub(crate) u16);

impl Element for Bf16 {
    fn shows(dtype: DType) -> bool {
        dtype == DType::Bf16
    }
}

impl Stored for Bf16 {
    #[inline(always)]
    fn get(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn of(value: f32) -> Bf16 {
        Bf16(bf16(value))
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Bf16) -> S {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(values: S, to: *mut Bf16) {
        // SAFETY: the caller's promise.
        unsafe { values.store_bf16(to.cast()) }
    }
}
