//! Batch norm (Ioffe and Szegedy, arXiv 1502.03167) as `torch.nn.BatchNorm2d`: for each channel
//! `y = γ·(x − μ)/√(σ² + ε) + β`. In training μ and σ² are those of a group of samples over all
//! their pixels, in evaluation the running ones. With `x̂ = (x − μ)/√(σ² + ε)` and means over the
//! group: `dγ = Σ dy·x̂`, `dβ = Σ dy`, `dx = γ/√(σ² + ε) · (dy − mean(dy) − x̂·mean(dy·x̂))`.
//!
//! A group is one virtual shard of the global batch. The number of shards does not change with the
//! number of workers, so neither do the results. A step's own statistics are the averages over its
//! groups, each counted by its samples (the variance without bias): they are summed over workers as
//! gradients are, and `running ← running + momentum·(own − running)`.

use super::{Gradients, Kept, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    dtype::DType,
    op::{self, Op},
    parameters::{Initial, ParamSpec, Role},
    shape::Shape,
};

/// Normalises each channel over a group of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    /// The term that is added to the variance.
    pub epsilon: f32,
    /// How much the newest batch counts in the running statistics.
    pub momentum: f32,
    /// What the scales `γ` begin with: 0 in the last norm of a residual block makes it the identity
    /// (arXiv 1706.02677).
    pub scale: f32,
}

impl BatchNorm {
    /// With PyTorch's defaults.
    #[must_use]
    pub const fn new() -> BatchNorm {
        BatchNorm { epsilon: 1e-5, momentum: 0.1, scale: 1.0 }
    }

    /// With scales that begin with this.
    #[must_use]
    pub const fn scale(self, scale: f32) -> BatchNorm {
        BatchNorm { scale, ..self }
    }
}

impl Default for BatchNorm {
    fn default() -> Self {
        BatchNorm::new()
    }
}

impl Rule for BatchNorm {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        single(inputs)
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<ParamSpec> {
        let momentum = self.momentum;
        let of = |name, role, value| {
            let initial = Initial::Constant(value);
            ParamSpec { name, shape: vec![inputs[0].channels], role, initial }
        };
        vec![
            of("weight", Role::Norm, self.scale),
            of("bias", Role::Norm, 0.0),
            of("running_mean", Role::Statistic { momentum }, 0.0),
            of("running_var", Role::Statistic { momentum }, 1.0),
        ]
    }

    fn kept(&self, inputs: &[Shape], _output: Shape) -> Vec<Kept> {
        vec![Kept { dtype: DType::F32, elements_a_sample: 2 * inputs[0].channels }]
    }

    fn takes_relu(&self) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::INPUTS
    }

    fn forward(&self, at: &Operands, mode: Mode, ops: &mut Vec<Op>) {
        let (x, y, weight, bias) = (at.x(), at.output, at.parameter("weight"), at.parameter("bias"));
        let (epsilon, relu) = (self.epsilon, at.relu);
        ops.push(match mode {
            Mode::Training => {
                let (kept, ends) = (at.kept[0], at.group_ends);
                Op::BatchNorm(op::BatchNorm { x, y, weight, bias, kept, ends, epsilon, relu })
            }
            Mode::Evaluation => {
                let (mean, variance) = (at.parameter("running_mean"), at.parameter("running_var"));
                Op::BatchNormFixed(op::BatchNormFixed { x, y, weight, bias, mean, variance, epsilon, relu })
            }
        });
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        ops.push(Op::BatchNormBackward(op::BatchNormBackward {
            x: at.x(),
            dy: gradients.dy,
            weight: at.parameter("weight"),
            bias: at.parameter("bias"),
            kept: at.kept[0],
            ends: at.group_ends,
            epsilon: self.epsilon,
            relu: at.relu,
            weight_gradient: gradients.parameter("weight"),
            bias_gradient: gradients.parameter("bias"),
            mean: gradients.parameter("running_mean"),
            variance: gradients.parameter("running_var"),
            dx: gradients.dx(0),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Activation, Conv2d,
        testing::{check, check_evaluation, check_fusion},
    };
    use super::*;

    #[test]
    fn its_gradients_are_those_of_finite_differences() {
        check(&[Shape::image(3, 3, 4)], |graph, x| graph.add("bn", BatchNorm::new(), x));
        check(&[Shape::features(20)], |graph, x| graph.add("bn", BatchNorm::new(), x));
    }

    #[test]
    fn a_fused_relu_changes_no_gradient() {
        check_fusion(&[Shape::image(3, 3, 4)], |graph, x| {
            let y = graph.add("bn", BatchNorm::new(), x)?;
            graph.then(Activation::relu(), y)
        });
    }

    #[test]
    fn evaluation_folds_it_into_the_convolution_before_it() {
        for layer in [Conv2d::new(6, 3), Conv2d::new(4, 3).without_bias(), Conv2d::depthwise(1, 3)] {
            check_evaluation(Shape::image(3, 4, 5), |graph, x| {
                let y = graph.add("conv", layer.clone(), x)?;
                let y = graph.add("bn", BatchNorm::new(), &[y])?;
                graph.then(Activation::relu(), y)
            });
        }
    }
}
