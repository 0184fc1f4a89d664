//! What a layer's operations work on: the memory that was planned for one node of the graph.

use std::ops::Range;

use crate::{
    device::{Region, Tensor},
    dtype::DType,
    op::{FoldedNorm, Sum},
};

/// Which pass is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Training,
    Evaluation,
}

/// Memory that a layer keeps from forward to backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) dtype: DType,
    /// For each sample of a micro-batch; a group of samples has at least one.
    pub(crate) elements_a_sample: usize,
}

/// A batch norm behind a convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Folded {
    pub(crate) norm: FoldedNorm,
    pub(crate) output: Tensor,
    pub(crate) relu: bool,
}

/// Memory of one node.
#[derive(Debug, Clone)]
pub(crate) struct Operands {
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) output: Tensor,
    /// By their names in the layer.
    pub(crate) parameters: Vec<(&'static str, Region)>,
    pub(crate) kept: Vec<Region>,
    /// True if `max(0, ·)` is applied to the output.
    pub(crate) relu: bool,
    /// For a block of samples side by side, which pools its output, room for what each maximum came
    /// from.
    pub(crate) switches: Option<Region>,
    /// In evaluation, the batch norm that a convolution computes with its own operation.
    pub(crate) folded: Option<Folded>,
    /// The node's number, for dice.
    pub(crate) number: u32,
    /// The end of each group of samples of the micro-batch.
    pub(crate) group_ends: Region,
    /// Two words for each sample.
    pub(crate) sample_keys: Region,
}

impl Operands {
    pub(crate) fn x(&self) -> Tensor {
        self.inputs[0]
    }

    /// A parameter that the layer has in any case.
    pub(crate) fn parameter(&self, name: &str) -> Region {
        self.optional(name).unwrap_or_else(|| panic!("the layer has no {name}"))
    }

    pub(crate) fn optional(&self, name: &str) -> Option<Region> {
        self.parameters.iter().find(|(other, _)| *other == name).map(|(_, region)| *region)
    }
}

/// Gradients of one node.
pub(crate) struct Gradients<'a> {
    /// Of the output; backward may overwrite it.
    pub(crate) dy: Tensor,
    /// Of an input; none where nothing needs it. To be asked for once for each operation that
    /// writes it, in their order.
    pub(crate) dx: &'a mut dyn FnMut(usize) -> Option<Sum<Tensor>>,
    /// Of a parameter.
    pub(crate) parameter: &'a dyn Fn(&str) -> Sum<Region>,
    /// Rows of the weight whose gradients are wanted one after another.
    pub(crate) row_parts: Vec<Range<usize>>,
}

impl Gradients<'_> {
    pub(crate) fn dx(&mut self, input: usize) -> Option<Sum<Tensor>> {
        (self.dx)(input)
    }

    pub(crate) fn parameter(&self, name: &str) -> Sum<Region> {
        (self.parameter)(name)
    }
}
