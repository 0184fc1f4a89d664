//! Group norm (Wu and He, arXiv 1803.08494) as `torch.nn.GroupNorm`: `y = γ·(x − μ)/√(σ² + ε) + β`
//! with μ and σ² of one sample over a group of channels and all pixels, γ and β of each channel.
//! With `g = γ·dy` and means over the same values: `dx = (g − mean(g) − x̂·mean(g·x̂))/√(σ² + ε)`,
//! `dγ = Σ dy·x̂`, `dβ = Σ dy`.

use super::{Gradients, Kept, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    dtype::DType,
    op::{self, Op},
    parameters::{Initial, ParamSpec, Role},
    shape::Shape,
};

/// Normalises groups of channels in each sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNorm {
    /// Groups of channels.
    pub groups: usize,
    /// The term that is added to the variance.
    pub epsilon: f32,
}

impl GroupNorm {
    /// With PyTorch's default `ε`.
    #[must_use]
    pub const fn new(groups: usize) -> GroupNorm {
        GroupNorm { groups, epsilon: 1e-5 }
    }
}

impl Rule for GroupNorm {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = single(inputs)?;
        if self.groups == 0 || !input.channels.is_multiple_of(self.groups) {
            return Err(Misfit::new(format!("groups that divide {} channels", input.channels), self.groups));
        }
        Ok(input)
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<ParamSpec> {
        scale_and_shift(inputs[0].channels)
    }

    fn kept(&self, _inputs: &[Shape], _output: Shape) -> Vec<Kept> {
        vec![Kept { dtype: DType::F32, elements_a_sample: 2 * self.groups }]
    }

    fn reads(&self) -> Reads {
        Reads::INPUTS
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        ops.push(Op::SampleNorm(operation(at, at.x().shape.pixels(), self.groups, self.epsilon)));
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        backward(operation(at, at.x().shape.pixels(), self.groups, self.epsilon), gradients, ops);
    }
}

pub(super) fn scale_and_shift(channels: usize) -> Vec<ParamSpec> {
    let of =
        |name, value| ParamSpec { name, shape: vec![channels], role: Role::Norm, initial: Initial::Constant(value) };
    vec![of("weight", 1.0), of("bias", 0.0)]
}

pub(super) fn operation(at: &Operands, pixels: usize, groups: usize, epsilon: f32) -> op::SampleNorm {
    let (weight, bias, kept) = (at.parameter("weight"), at.parameter("bias"), at.kept[0]);
    op::SampleNorm { x: at.x(), y: at.output, weight, bias, pixels, groups, kept, epsilon }
}

pub(super) fn backward(norm: op::SampleNorm, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
    ops.push(Op::SampleNormBackward(op::SampleNormBackward {
        norm,
        dy: gradients.dy,
        weight_gradient: gradients.parameter("weight"),
        bias_gradient: gradients.parameter("bias"),
        dx: gradients.dx(0),
    }));
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;
    use super::*;

    #[test]
    fn its_gradients_are_those_of_finite_differences() {
        for groups in [1, 2, 6] {
            check(&[Shape::image(6, 3, 4)], |graph, x| graph.add("gn", GroupNorm::new(groups), x));
        }
    }
}
