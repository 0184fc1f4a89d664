//! What losses work on.

use super::Sum;
use crate::memory::{Region, Tally, Tensor};

/// See [`super::Op::SoftmaxCrossEntropy`].
#[derive(Debug, Clone, Copy)]
pub struct SoftmaxCrossEntropy {
    /// The logits, one channel a class.
    pub z: Tensor,
    /// Where their gradient goes; none when only evaluating.
    pub dz: Option<Sum<Tensor>>,
    /// A label for each pixel of each sample.
    pub labels: Region,
    /// Where the totals are kept.
    pub tally: Tally,
    /// `ε`: the share of the target that is spread over all classes.
    pub smoothing: f32,
    /// A weight for each class.
    pub class_weights: Option<Region>,
    /// The label of pixels that do not count.
    pub ignored: Option<u32>,
    /// What this loss counts beside others.
    pub weight: f32,
}

/// See [`super::Op::MeanSquaredError`].
#[derive(Debug, Clone, Copy)]
pub struct MeanSquaredError {
    /// The predictions.
    pub y: Tensor,
    /// Where their gradient goes; none when only evaluating.
    pub dy: Option<Sum<Tensor>>,
    /// The targets.
    pub targets: Tensor,
    /// Where the totals are kept.
    pub tally: Tally,
    /// What this loss counts beside others.
    pub weight: f32,
}

/// See [`super::Op::Hinge`].
#[derive(Debug, Clone, Copy)]
pub struct Hinge {
    /// The scores, one channel a class.
    pub z: Tensor,
    /// Where their gradient goes; none when only evaluating.
    pub dz: Option<Sum<Tensor>>,
    /// A label for each sample.
    pub labels: Region,
    /// Where the totals are kept.
    pub tally: Tally,
    /// The margin.
    pub margin: f32,
    /// What this loss counts beside others.
    pub weight: f32,
}
