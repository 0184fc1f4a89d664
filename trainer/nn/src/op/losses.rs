//! The operands of losses.

use super::Sum;
use crate::memory::{Region, Tally, Tensor};

/// See [`super::Op::SoftmaxCrossEntropy`].
#[derive(Debug, Clone, Copy)]
pub struct SoftmaxCrossEntropy {
    /// The logits, one channel a class.
    pub z: Tensor,
    /// The memory for their gradient; none when only evaluating.
    pub dz: Option<Sum<Tensor>>,
    /// A label for each pixel of each sample.
    pub labels: Region,
    /// The memory of the totals.
    pub tally: Tally,
    /// `ε`: the share of the target that is spread over all classes.
    pub smoothing: f32,
    /// A weight for each class.
    pub class_weights: Option<Region>,
    /// The label of pixels that do not count.
    pub ignored: Option<u32>,
    /// The weight of this loss beside others.
    pub weight: f32,
}

/// See [`super::Op::MeanSquaredError`].
#[derive(Debug, Clone, Copy)]
pub struct MeanSquaredError {
    /// The predictions.
    pub y: Tensor,
    /// The memory for their gradient; none when only evaluating.
    pub dy: Option<Sum<Tensor>>,
    /// The targets.
    pub targets: Tensor,
    /// The memory of the totals.
    pub tally: Tally,
    /// The weight of this loss beside others.
    pub weight: f32,
}

/// See [`super::Op::Hinge`].
#[derive(Debug, Clone, Copy)]
pub struct Hinge {
    /// The scores, one channel a class.
    pub z: Tensor,
    /// The memory for their gradient; none when only evaluating.
    pub dz: Option<Sum<Tensor>>,
    /// A label for each sample.
    pub labels: Region,
    /// The memory of the totals.
    pub tally: Tally,
    /// The margin.
    pub margin: f32,
    /// The weight of this loss beside others.
    pub weight: f32,
}
