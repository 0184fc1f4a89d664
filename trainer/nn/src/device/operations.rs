//! The operations: shapes and handles, nothing that a queue could not carry.

use std::ops::Range;
use std::sync::Arc;

use super::memory::{Memory, Region, Tally, Tensor};
use crate::optimizers::Optimizer;
use crate::parameters::Role;

/// Copies images (`[samples][channels][rows][columns]`) and labels to the device.
#[derive(Debug, Clone, Copy)]
pub struct Upload {
    /// Where the images go.
    pub images: Tensor,
    /// Where the labels go.
    pub labels: Region,
    /// Labels must be smaller than this.
    pub classes: usize,
}

/// Whether a gradient replaces what was there or is added to it (further micro-batches of a step).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulation {
    /// The first micro-batch of a step.
    Replace,
    /// A further one.
    Add,
}

/// One parameter's values and where its gradient goes.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// The values.
    pub values: Region,
    /// The gradient.
    pub gradient: Region,
}

/// Gradients of the activations on both sides of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Gradients {
    /// Read by backward, which may overwrite it.
    pub output: Tensor,
    /// Written by backward; none for the first layer, whose input needs no gradient.
    pub input: Option<Tensor>,
}

/// `y = pool(relu(w ∗ x + b))`: square kernel, stride 1, activation and pooling where asked for.
#[derive(Debug, Clone, Copy)]
pub struct Convolution {
    /// `x`, whose halo is the padding.
    pub input: Tensor,
    /// `y`.
    pub output: Tensor,
    /// Their gradients.
    pub gradients: Gradients,
    /// `w`, `[outputs][inputs][kernel][kernel]`.
    pub weight: Parameter,
    /// `b`, `[outputs]`.
    pub bias: Parameter,
    /// Height and width of the kernel.
    pub kernel: usize,
    /// Whether `max(0, x)` follows.
    pub relu: bool,
    /// Side of the pooling windows: 1 for none, or 2.
    pub window: usize,
    /// Which element of its window each output is, kept from forward to backward; as many elements as the output has
    /// for all samples, without halo.
    pub switches: Region,
    /// Scratch memory, used by one operation at a time.
    pub workspace: Region,
}

impl Convolution {
    /// Rows and columns of the product, before pooling.
    pub fn product_size(&self) -> (usize, usize) {
        (self.input.stored_height() + 1 - self.kernel, self.input.stored_width() + 1 - self.kernel)
    }

    pub(crate) fn forward_writes(&self) -> [Region; 3] {
        [self.output.region, self.switches, self.workspace]
    }

    pub(crate) fn backward_writes(&self) -> [Region; 5] {
        let Gradients { output, input } = self.gradients;
        let input = input.unwrap_or(output);
        [self.weight.gradient, self.bias.gradient, output.region, input.region, self.workspace]
    }
}

/// `y = relu(w · x + b)`, activation where asked for.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// `x`.
    pub input: Tensor,
    /// `y`.
    pub output: Tensor,
    /// Their gradients.
    pub gradients: Gradients,
    /// `w`, `[outputs][inputs]`.
    pub weight: Parameter,
    /// `b`, `[outputs]`.
    pub bias: Parameter,
    /// Whether `max(0, x)` follows.
    pub relu: bool,
    /// Scratch memory, used by one operation at a time.
    pub workspace: Region,
}

impl Linear {
    /// Of these rows of the weight.
    pub(crate) fn gradient_of(&self, rows: &Range<usize>) -> Region {
        let (whole, inputs) = (self.weight.gradient, self.input.sample_elements());
        Region { start: whole.start + rows.start * inputs, len: rows.len() * inputs, ..whole }
    }

    /// The first row whose gradient does not lie before this element of the gradient arena.
    pub(crate) fn rows_before(&self, element: usize) -> usize {
        let (whole, inputs) = (self.weight.gradient, self.input.sample_elements());
        element.saturating_sub(whole.start).min(whole.len) / inputs
    }
}

/// Cross-entropy of softmax against labels, summed over samples.
#[derive(Debug, Clone, Copy)]
pub struct SoftmaxCrossEntropy {
    /// One feature per class.
    pub logits: Tensor,
    /// Where the gradient goes; none when only evaluating.
    pub gradient: Option<Tensor>,
    /// The labels, as uploaded.
    pub labels: Region,
    /// Where the totals are kept.
    pub tally: Tally,
}

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
    /// The longest norm that the gradients of all ranges may have together: longer ones are scaled down to it.
    pub clip_norm: Option<f32>,
    /// The learning rate.
    pub rate: f32,
    /// The number of the step, from 1.
    pub step: u64,
}

/// One parameter's range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateRange {
    /// Elements of each arena.
    pub range: Range<usize>,
    /// What the parameter does.
    pub role: Role,
}

/// The L2 norm of each of several ranges, in order.
#[derive(Debug, Clone)]
pub struct Norms {
    /// The memory that the ranges are in.
    pub of: Memory,
    /// The ranges.
    pub ranges: Arc<[Range<usize>]>,
    /// Where the norms go, one element per range.
    pub into: Region,
}
