//! Each kernel, compiled for several instruction sets and chosen at run time.

#![allow(unsafe_code, reason = "functions compiled for instructions that are detected at run time")]

use super::{correlate, depthwise, gradient};
use crate::kernels::Instructions;
use crate::kernels::simd::Plain;
#[cfg(target_arch = "x86_64")]
use crate::kernels::simd::{Avx2, Avx512, Avx512Bf16};
use crate::kernels::stored::Bf16;

/// One function for each kernel. The kernel is inlined into one function for each instruction set.
macro_rules! kernels {
    ($($name:ident($job:ty): $baseline:expr, $avx2:expr, $avx512:expr;)*) => { $(
        pub(super) fn $name(instructions: Instructions, job: $job) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2(job: $job) {
                // SAFETY: the features are those of the lanes.
                unsafe { $avx2(job) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            unsafe fn avx512(job: $job) {
                // SAFETY: the features are those of the lanes.
                unsafe { $avx512(job) }
            }

            assert!(instructions.available(), "this core has no {instructions:?} instructions");
            match instructions {
                // SAFETY: every core has the baseline; here and below, the kernel checks its
                // operands.
                Instructions::Baseline => unsafe { $baseline(job) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the core has the instructions.
                Instructions::Avx2 => unsafe { avx2(job) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the core has the instructions.
                Instructions::Avx512 | Instructions::Avx512Bf16 => unsafe { avx512(job) },
                #[cfg(not(target_arch = "x86_64"))]
                Instructions::Avx2 | Instructions::Avx512 | Instructions::Avx512Bf16 => unreachable!("no core of this target has them"),
            }
        }
    )* };
}

// A tile of six pixels × two vectors fills twelve of AVX2's 16 registers, one of fourteen × two 28
// of AVX-512's 32.
kernels! {
    correlate(correlate::Job<'_, f32>):
        correlate::run::<Plain, f32, 2, 3, 2, 3>,
        correlate::run::<Avx2, f32, 2, 6, 2, 6>,
        correlate::run::<Avx512, f32, 2, 14, 1, 16>;
    gradient(gradient::Job<'_>):
        gradient::run::<Plain, 2, 3, 2, 3>,
        gradient::run::<Avx2, 2, 6, 2, 6>,
        gradient::run::<Avx512, 2, 14, 1, 16>;
    depthwise(correlate::Job<'_, f32>):
        depthwise::run::<Plain, 2>,
        depthwise::run::<Avx2, 2>,
        depthwise::run::<Avx512, 1>;
    depthwise_gradient(gradient::Job<'_>):
        depthwise::run_gradient::<Plain, 2>,
        depthwise::run_gradient::<Avx2, 2>,
        depthwise::run_gradient::<Avx512, 1>;
}

/// Kernels whose vectors hold pairs of bf16.
macro_rules! kernels_of_pairs {
    ($($name:ident($job:ty): $kernel:expr;)*) => { $(
        pub(super) fn $name(instructions: Instructions, job: $job) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512vl,avx2,fma")]
            unsafe fn paired(job: $job) {
                // SAFETY: the features are those of the lanes.
                unsafe { $kernel(job) }
            }

            assert!(multiplies_pairs(instructions), "this core has no {instructions:?} for bf16");
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the core has the instructions; the kernel checks its operands.
            unsafe {
                paired(job);
            }
            #[cfg(not(target_arch = "x86_64"))]
            drop(job);
        }
    )* };
}

/// True if kernels of pairs may run.
pub(super) fn multiplies_pairs(instructions: Instructions) -> bool {
    instructions == Instructions::Avx512Bf16 && instructions.available()
}

kernels_of_pairs! {
    correlate_pairs(correlate::Job<'_, Bf16>): correlate::run::<Avx512Bf16, Bf16, 2, 14, 1, 16>;
    gradient_pairs(gradient::Job<'_>): gradient::run::<Avx512Bf16, 2, 14, 1, 16>;
}
