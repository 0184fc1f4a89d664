//! Kernels: free functions over slices, each compiled for several instruction sets and chosen at run time.

#![allow(clippy::needless_range_loop, reason = "indices of constant range name registers")]

pub(crate) mod convolution;
pub(crate) mod product;
mod simd;
pub(crate) mod update;

/// An instruction set that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    /// What every core of the target has; the reference that the others are tested against.
    Baseline,
    /// AVX2 and FMA: vectors of 8.
    Avx2,
    /// AVX-512F: vectors of 16.
    Avx512,
}

impl Instructions {
    /// The widest set that this core has.
    pub fn detect() -> Instructions {
        let widest_first = [Instructions::Avx512, Instructions::Avx2];
        widest_first.into_iter().find(|instructions| instructions.available()).unwrap_or(Instructions::Baseline)
    }

    /// Whether this core has the set.
    pub fn available(self) -> bool {
        match self {
            Instructions::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => Instructions::Avx2.available() && is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Instructions::Avx2 | Instructions::Avx512 => false,
        }
    }
}
