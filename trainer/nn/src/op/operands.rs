//! What each operation works on: its [`super::Op`] says what it computes.

use super::{Sum, Window};
use crate::memory::{Region, Tensor};

/// See [`super::Op::Linear`].
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// `W`, `[outputs][inputs]`.
    pub weight: Region,
    /// `b`, `[outputs]`.
    pub bias: Option<Region>,
    /// True if `max(0, ·)` follows.
    pub relu: bool,
}

/// See [`super::Op::LinearWeight`].
#[derive(Debug, Clone, Copy)]
pub struct LinearWeight {
    /// `x`.
    pub x: Tensor,
    /// `dy`.
    pub dy: Tensor,
    /// The first row of `dW` that is computed.
    pub first_row: usize,
    /// `dW`, the rows that are computed only.
    pub weight: Sum<Region>,
}

/// See [`super::Op::LinearInput`].
#[derive(Debug, Clone, Copy)]
pub struct LinearInput {
    /// `dy`.
    pub dy: Tensor,
    /// `W`.
    pub weight: Region,
    /// `dx`.
    pub dx: Sum<Tensor>,
}

/// See [`super::Op::Convolution`].
#[derive(Debug, Clone, Copy)]
pub struct Convolution {
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Sum<Tensor>,
    /// `w`, `[outputs][inputs / groups][row][column]`.
    pub weight: Region,
    /// `b`, `[outputs]`.
    pub bias: Option<Region>,
    /// The kernel's window.
    pub window: Window,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// A batch norm by its running statistics, which comes before `max(0, ·)`.
    pub norm: Option<FoldedNorm>,
    /// True if `max(0, ·)` follows.
    pub relu: bool,
}

/// A batch norm that multiplies each channel and adds to it: `γ/√(σ² + ε)` and `β − μ·γ/√(σ² + ε)`.
#[derive(Debug, Clone, Copy)]
pub struct FoldedNorm {
    /// `γ`.
    pub weight: Region,
    /// `β`.
    pub bias: Region,
    /// The running mean.
    pub mean: Region,
    /// The running variance.
    pub variance: Region,
    /// `ε`.
    pub epsilon: f32,
}

/// See [`super::Op::ConvolutionWeight`].
#[derive(Debug, Clone, Copy)]
pub struct ConvolutionWeight {
    /// `x`.
    pub x: Tensor,
    /// `dy`.
    pub dy: Tensor,
    /// The kernel's window.
    pub window: Window,
    /// Groups of channels.
    pub groups: usize,
    /// `dw`.
    pub weight: Sum<Region>,
    /// `db`, added when `dw` is.
    pub bias: Option<Region>,
}

/// See [`super::Op::ConvolutionInput`].
#[derive(Debug, Clone, Copy)]
pub struct ConvolutionInput {
    /// `dy`.
    pub dy: Tensor,
    /// `w`.
    pub weight: Region,
    /// The kernel's window.
    pub window: Window,
    /// Groups of channels.
    pub groups: usize,
    /// `dx`.
    pub dx: Sum<Tensor>,
}

/// See [`super::Op::Block`]: a square kernel with stride 1, then the maximum of 2×2 pixels.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// `x`, whose halo is the padding.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// `w`, `[outputs][inputs][row][column]`.
    pub weight: Region,
    /// `b`, `[outputs]`.
    pub bias: Region,
    /// Rows and columns of the kernel.
    pub kernel: usize,
    /// True if `max(0, ·)` comes before the pooling.
    pub relu: bool,
    /// Which element of its window each output is, as many as `y` has elements without halo.
    pub switches: Region,
}

/// See [`super::Op::BlockBackward`].
#[derive(Debug, Clone, Copy)]
pub struct BlockBackward {
    /// The block.
    pub block: Block,
    /// `dy`.
    pub dy: Tensor,
    /// `dx`, which nothing else contributes to.
    pub dx: Option<Tensor>,
    /// `dw`.
    pub weight_gradient: Sum<Region>,
    /// `db`.
    pub bias_gradient: Sum<Region>,
}

/// See [`super::Op::AddBias`].
#[derive(Debug, Clone, Copy)]
pub struct AddBias {
    /// `y`.
    pub y: Tensor,
    /// `b`, one a channel.
    pub bias: Option<Region>,
    /// True if `max(0, ·)` follows.
    pub relu: bool,
}

/// See [`super::Op::BiasGradient`].
#[derive(Debug, Clone, Copy)]
pub struct BiasGradient {
    /// `dy`.
    pub dy: Tensor,
    /// `db`.
    pub bias: Sum<Region>,
}

/// See [`super::Op::CutOff`].
#[derive(Debug, Clone, Copy)]
pub struct CutOff {
    /// `y`.
    pub y: Tensor,
    /// `dy`.
    pub dy: Tensor,
}

/// See [`super::Op::BatchNorm`].
#[derive(Debug, Clone, Copy)]
pub struct BatchNorm {
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// `γ`.
    pub weight: Region,
    /// `β`.
    pub bias: Region,
    /// Mean and variance of each group: `[group][2][channel]`.
    pub kept: Region,
    /// The end of each group of samples.
    pub ends: Region,
    /// `ε`.
    pub epsilon: f32,
    /// True if `max(0, ·)` follows.
    pub relu: bool,
}

/// See [`super::Op::BatchNormFixed`].
#[derive(Debug, Clone, Copy)]
pub struct BatchNormFixed {
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// `γ`.
    pub weight: Region,
    /// `β`.
    pub bias: Region,
    /// The running mean.
    pub mean: Region,
    /// The running variance.
    pub variance: Region,
    /// `ε`.
    pub epsilon: f32,
    /// True if `max(0, ·)` follows.
    pub relu: bool,
}

/// See [`super::Op::BatchNormBackward`].
#[derive(Debug, Clone, Copy)]
pub struct BatchNormBackward {
    /// `x`.
    pub x: Tensor,
    /// `dy`, before `max(0, ·)` is undone.
    pub dy: Tensor,
    /// `γ`.
    pub weight: Region,
    /// `β`.
    pub bias: Region,
    /// What [`BatchNorm`] kept.
    pub kept: Region,
    /// The end of each group of samples.
    pub ends: Region,
    /// `ε`.
    pub epsilon: f32,
    /// True if `max(0, ·)` follows.
    pub relu: bool,
    /// `dx`.
    pub dx: Option<Sum<Tensor>>,
    /// `dγ`.
    pub weight_gradient: Sum<Region>,
    /// `dβ`.
    pub bias_gradient: Sum<Region>,
    /// The mean over the global batch's samples of their groups' means.
    pub mean: Sum<Region>,
    /// The same of their groups' unbiased variances.
    pub variance: Sum<Region>,
}

/// See [`super::Op::SampleNorm`].
#[derive(Debug, Clone, Copy)]
pub struct SampleNorm {
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// `γ`, one a channel.
    pub weight: Region,
    /// `β`, one a channel.
    pub bias: Region,
    /// Pixels whose values are normalised together: 1, or all of a sample.
    pub pixels: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Mean and one over the deviation of each set of values that is normalised.
    pub kept: Region,
    /// `ε`.
    pub epsilon: f32,
}

/// See [`super::Op::SampleNormBackward`].
#[derive(Debug, Clone, Copy)]
pub struct SampleNormBackward {
    /// The norm.
    pub norm: SampleNorm,
    /// `dy`.
    pub dy: Tensor,
    /// `dx`.
    pub dx: Option<Sum<Tensor>>,
    /// `dγ`.
    pub weight_gradient: Sum<Region>,
    /// `dβ`.
    pub bias_gradient: Sum<Region>,
}

/// See [`super::Op::MaxPool`].
#[derive(Debug, Clone, Copy)]
pub struct MaxPool {
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// The window.
    pub window: Window,
    /// For each output which pixel of the input it came from.
    pub switches: Region,
}

/// See [`super::Op::MaxPoolBackward`].
#[derive(Debug, Clone, Copy)]
pub struct MaxPoolBackward {
    /// `dy`.
    pub dy: Tensor,
    /// What [`MaxPool`] kept.
    pub switches: Region,
    /// `dx`.
    pub dx: Sum<Tensor>,
}

/// See [`super::Op::AveragePool`].
#[derive(Debug, Clone, Copy)]
pub struct AveragePool {
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// The window.
    pub window: Window,
}

/// See [`super::Op::AveragePoolBackward`].
#[derive(Debug, Clone, Copy)]
pub struct AveragePoolBackward {
    /// `dy`.
    pub dy: Tensor,
    /// The window.
    pub window: Window,
    /// `dx`.
    pub dx: Sum<Tensor>,
}

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// `max(0, x)`.
    Relu,
    /// `x·Φ(x)` with the normal distribution's `Φ`.
    Gelu,
    /// `x·σ(x)`.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// `σ(x) = 1 / (1 + e⁻ˣ)`.
    Sigmoid,
}

/// See [`super::Op::Activate`].
#[derive(Debug, Clone, Copy)]
pub struct Activate {
    /// `f`.
    pub function: Function,
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
}

/// See [`super::Op::ActivateBackward`].
#[derive(Debug, Clone, Copy)]
pub struct ActivateBackward {
    /// `f`.
    pub function: Function,
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// `dy`.
    pub dy: Tensor,
    /// `dx`.
    pub dx: Sum<Tensor>,
}

/// See [`super::Op::Add`].
#[derive(Debug, Clone, Copy)]
pub struct Add {
    /// `x₁` and `x₂`.
    pub inputs: [Tensor; 2],
    /// `y`.
    pub y: Tensor,
    /// True if `max(0, ·)` follows.
    pub relu: bool,
}

/// See [`super::Op::Accumulate`].
#[derive(Debug, Clone, Copy)]
pub struct Accumulate {
    /// `x`.
    pub from: Tensor,
    /// `y`, of as many elements.
    pub into: Sum<Tensor>,
}

/// See [`super::Op::Channels`].
#[derive(Debug, Clone, Copy)]
pub struct Channels {
    /// The value that is read.
    pub from: Tensor,
    /// Its first channel.
    pub first_from: usize,
    /// The value that is written; its other channels stay.
    pub into: Sum<Tensor>,
    /// Its first channel.
    pub first_into: usize,
    /// Number of channels.
    pub count: usize,
}

/// See [`super::Op::Subsample`].
#[derive(Debug, Clone, Copy)]
pub struct Subsample {
    /// `x`.
    pub x: Tensor,
    /// `y`.
    pub y: Tensor,
    /// Pixels from one that is kept to the next, on both axes.
    pub stride: usize,
    /// The channel of `y` that the first of `x` goes to.
    pub first: usize,
}

/// See [`super::Op::SubsampleBackward`].
#[derive(Debug, Clone, Copy)]
pub struct SubsampleBackward {
    /// `dy`.
    pub dy: Tensor,
    /// `dx`.
    pub dx: Sum<Tensor>,
    /// As in [`Subsample`].
    pub stride: usize,
    /// As in [`Subsample`].
    pub first: usize,
}

/// See [`super::Op::Dropout`]; the gradient is the same operation on gradients.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// The memory that is read.
    pub from: Tensor,
    /// The memory that is written.
    pub into: Sum<Tensor>,
    /// The share of elements that become zero.
    pub probability: f32,
    /// Tells the dice of one layer from those of another.
    pub layer: u32,
    /// Two words for each sample.
    pub keys: Region,
}

/// See [`super::Op::Flatten`].
#[derive(Debug, Clone, Copy)]
pub struct Flatten {
    /// The memory that is read.
    pub from: Tensor,
    /// The memory that is written.
    pub into: Sum<Tensor>,
}
