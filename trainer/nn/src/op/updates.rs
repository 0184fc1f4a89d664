//! The operands of updates and norms.

use std::ops::Range;
use std::sync::Arc;

use crate::{
    memory::{Memory, Region},
    optimizers::Optimizer,
    parameters::Role,
};

/// One update of all parameters that are not frozen; see [`crate::optimizers`].
#[derive(Debug, Clone)]
pub struct Update {
    /// The rule.
    pub optimizer: Optimizer,
    /// `w`.
    pub weights: Memory,
    /// `g`.
    pub gradients: Memory,
    /// The rule's slots, in its order.
    pub slots: Arc<[Memory]>,
    /// The ranges of all these memories that the update touches, one a parameter.
    pub ranges: Arc<[UpdateRange]>,
    /// The longest norm that the gradients of all ranges may have together: longer ones are scaled
    /// down to it.
    pub clip_norm: Option<f32>,
    /// The gradients are those of a loss that counts so many times.
    pub loss_scale: f32,
    /// The learning rate.
    pub rate: f32,
    /// The number of the step, from 1.
    pub step: u64,
}

/// See [`super::Op::Cast`].
#[derive(Debug, Clone)]
pub struct Cast {
    /// The masters, in f32.
    pub from: Memory,
    /// The copy, in another type, with each element at the same place.
    pub into: Memory,
    /// The elements.
    pub ranges: Arc<[Range<usize>]>,
}

/// One parameter's range.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateRange {
    /// Elements of each arena.
    pub range: Range<usize>,
    /// The role of the parameter.
    pub role: Role,
}

/// See [`super::Op::Norms`].
#[derive(Debug, Clone)]
pub struct Norms {
    /// The memory that the ranges are in.
    pub of: Memory,
    /// The ranges.
    pub ranges: Arc<[Range<usize>]>,
    /// Where the norms go, one element per range.
    pub into: Region,
}
