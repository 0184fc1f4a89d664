//! Layer norm (Ba et al., arXiv 1607.06450) as `torch.nn.LayerNorm` over the channels:
//! `y = γ·(x − μ)/√(σ² + ε) + β` with μ and σ² over the channels of one pixel (of features: over
//! all of them). Gradients as in group norm.

use super::{
    Gradients, Kept, Misfit, Mode, Operands, Reads, Rule,
    group_norm::{backward, operation, scale_and_shift},
    single,
};
use crate::{dtype::DType, op::Op, parameters::ParamSpec, shape::Shape};

/// Normalises the channels of each pixel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNorm {
    /// The term that is added to the variance.
    pub epsilon: f32,
}

impl LayerNorm {
    /// With PyTorch's default `ε`.
    #[must_use]
    pub const fn new() -> LayerNorm {
        LayerNorm { epsilon: 1e-5 }
    }
}

impl Default for LayerNorm {
    fn default() -> Self {
        LayerNorm::new()
    }
}

impl Rule for LayerNorm {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        single(inputs)
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<ParamSpec> {
        scale_and_shift(inputs[0].channels)
    }

    fn kept(&self, inputs: &[Shape], _output: Shape) -> Vec<Kept> {
        vec![Kept { dtype: DType::F32, elements_a_sample: 2 * inputs[0].pixels() }]
    }

    fn reads(&self) -> Reads {
        Reads::INPUTS
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        ops.push(Op::SampleNorm(operation(at, 1, 1, self.epsilon)));
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        backward(operation(at, 1, 1, self.epsilon), gradients, ops);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;
    use super::*;

    #[test]
    fn its_gradients_are_those_of_finite_differences() {
        check(&[Shape::features(11)], |graph, x| graph.add("ln", LayerNorm::new(), x));
        check(&[Shape::image(6, 2, 3)], |graph, x| graph.add("ln", LayerNorm::new(), x));
    }
}
