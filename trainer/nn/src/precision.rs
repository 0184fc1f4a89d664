//! Training in 16 bits with master weights in f32 (Micikevicius et al., arXiv 1710.03740).
//!
//! The arenas of weights, gradients and the optimiser stay in f32, and so does a checkpoint. In
//! bf16 and f16, a plan stores the values between layers and their gradients in 16 bits, and a copy
//! of all weights that multiply inputs. [`crate::op::Op::Cast`] rounds that copy from the masters
//! after each update. Products and sums are computed in f32: a result is rounded once, when it is
//! stored. Norms, softmax and losses compute in f32 as well.

use crate::dtype::DType;

/// The number format of values between layers, their gradients, and the weights of products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with the range of f32 and 8 bits of precision.
    Bf16,
    /// 16 bits with 11 bits of precision, up to 65,504. Small gradients need a scaled loss.
    F16,
}

impl Precision {
    /// The type of the elements.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
            Precision::F16 => DType::F16,
        }
    }

    /// Returns the bytes of values that take so many in f32.
    #[must_use]
    pub const fn bytes_of(self, in_f32: usize) -> usize {
        in_f32 / DType::F32.bytes() * self.dtype().bytes()
    }

    /// Returns the bytes of the copy of weights that take so many in f32; 0 without a copy.
    #[must_use]
    pub const fn copy_bytes(self, in_f32: usize) -> usize {
        match self {
            Precision::F32 => 0,
            Precision::Bf16 | Precision::F16 => self.bytes_of(in_f32),
        }
    }
}
