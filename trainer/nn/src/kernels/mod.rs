//! Kernels: free functions over slices, each compiled for several instruction sets and chosen at
//! run time.

#![allow(clippy::needless_range_loop, reason = "indices of constant range name registers")]
#![allow(unsafe_code, reason = "functions compiled for instructions that are detected at run time")]

pub(crate) mod exponential;
pub(crate) mod narrow;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod simd;
pub(crate) mod stored;

/// An instruction set that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    /// What every core of the target has; the reference that the others are tested against.
    Baseline,
    /// AVX2 and FMA: vectors of 8.
    Avx2,
    /// AVX-512F: vectors of 16.
    Avx512,
    /// AVX-512F, and products of bf16 by pairs. Such a product and its sum are rounded otherwise
    /// than in f32, and take subnormal numbers for zero. All else has the bits of
    /// [`Instructions::Avx512`].
    Avx512Bf16,
}

impl Instructions {
    /// The widest set that this core has.
    pub fn detect() -> Instructions {
        let widest_first = [Instructions::Avx512Bf16, Instructions::Avx512, Instructions::Avx2];
        widest_first.into_iter().find(|instructions| instructions.available()).unwrap_or(Instructions::Baseline)
    }

    /// True if this core has the set.
    pub fn available(self) -> bool {
        match self {
            Instructions::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => Instructions::Avx2.available() && is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512Bf16 => {
                let further = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
                Instructions::Avx512.available() && further && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Instructions::Avx2 | Instructions::Avx512 | Instructions::Avx512Bf16 => false,
        }
    }
}

/// A loop in plain Rust that the compiler turns into vector instructions of each set. `run` must be
/// `#[inline(always)]`.
pub(crate) trait Vectorised {
    type Output;
    fn run(self) -> Self::Output;
}

impl Instructions {
    /// Runs the version of a loop that was compiled for this set.
    pub(crate) fn run<K: Vectorised>(self, kernel: K) -> K::Output {
        match self {
            Instructions::Baseline => kernel.run(),
            // SAFETY: a device only carries instructions that its core has.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 | Instructions::Avx512Bf16 => unsafe { run_avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            Instructions::Avx2 | Instructions::Avx512 | Instructions::Avx512Bf16 => kernel.run(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Vectorised>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn run_avx512<K: Vectorised>(kernel: K) -> K::Output {
    kernel.run()
}

/// Compiles a loop in plain Rust for each instruction set; the function takes the set before its
/// other arguments.
macro_rules! vectorised {
    ($(#[$meta:meta])* $visible:vis fn $name:ident $(<$generic:ident: $bound:path>)?
     ($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "operands of one loop")]
        #[allow(unsafe_code, reason = "functions compiled for instructions that are detected at run time")]
        $visible fn $name $(<$generic: $bound>)? (
            instructions: $crate::kernels::Instructions, $($argument: $type),*
        ) $(-> $result)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "operands of one loop")]
            fn plain $(<$generic: $bound>)? ($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "operands of one loop")]
            fn avx2 $(<$generic: $bound>)? ($($argument: $type),*) $(-> $result)? {
                plain($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "operands of one loop")]
            fn avx512 $(<$generic: $bound>)? ($($argument: $type),*) $(-> $result)? {
                plain($($argument),*)
            }

            match instructions {
                $crate::kernels::Instructions::Baseline => plain($($argument),*),
                // SAFETY: a device only carries instructions that its core has.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Instructions::Avx2 => unsafe { avx2($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Instructions::Avx512 | $crate::kernels::Instructions::Avx512Bf16 => unsafe {
                    avx512($($argument),*)
                },
                #[cfg(not(target_arch = "x86_64"))]
                _ => plain($($argument),*),
            }
        }
    };
}
pub(crate) use vectorised;
