//! A matrix product with a bias: `y = x·Wᵀ + b`, so `dW = dyᵀ·x`, `db = Σ dy`, `dx = dy·W`.
//!
//! `x` is `[samples][inputs]`, `W` is `[outputs][inputs]`, as `torch.nn.Linear` has them.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    op::{self, Op},
    parameters::{Initial, ParamSpec, Role},
    shape::Shape,
};

/// A linear layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// Output features.
    pub outputs: usize,
    /// True if a bias is added.
    pub bias: bool,
    /// How the weights begin; PyTorch's default where nothing is said.
    pub initial: Option<Initial>,
}

impl Linear {
    /// With a bias.
    #[must_use]
    pub const fn new(outputs: usize) -> Linear {
        Linear { outputs, bias: true, initial: None }
    }

    /// Without a bias.
    #[must_use]
    pub const fn without_bias(self) -> Linear {
        Linear { bias: false, ..self }
    }

    /// With other initial weights.
    #[must_use]
    pub const fn initial(self, initial: Initial) -> Linear {
        Linear { initial: Some(initial), ..self }
    }
}

impl Rule for Linear {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = single(inputs)?;
        if !input.is_flat() {
            return Err(Misfit::new("features: put flatten between images and a linear layer", input));
        }
        if self.outputs == 0 {
            return Err(Misfit::new("at least one output", 0));
        }
        Ok(Shape::features(self.outputs))
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<ParamSpec> {
        let inputs = inputs[0].elements();
        let default = Initial::of_fan_in(inputs);
        let initial = self.initial.unwrap_or(default);
        let weight = ParamSpec { name: "weight", shape: vec![self.outputs, inputs], role: Role::Weight, initial };
        let bias = ParamSpec { name: "bias", shape: vec![self.outputs], role: Role::Bias, initial: default };
        std::iter::once(weight).chain(self.bias.then_some(bias)).collect()
    }

    fn macs(&self, inputs: &[Shape], _output: Shape) -> usize {
        inputs[0].elements() * self.outputs
    }

    fn takes_relu(&self) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::INPUTS
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        let (weight, bias) = (at.parameter("weight"), at.optional("bias"));
        ops.push(Op::Linear(op::Linear { x: at.x(), y: at.output, weight, bias, relu: at.relu }));
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        let dy = gradients.dy;
        if at.relu {
            ops.push(Op::CutOff(op::CutOff { y: at.output, dy }));
        }
        if self.bias {
            ops.push(Op::BiasGradient(op::BiasGradient { dy, bias: gradients.parameter("bias") }));
        }
        let inputs = at.x().shape.elements();
        let whole = gradients.parameter("weight");
        for rows in gradients.row_parts.clone() {
            let part = whole.into.part(rows.start * inputs..rows.end * inputs);
            let weight = op::Sum { into: part, adding: whole.adding };
            ops.push(Op::LinearWeight(op::LinearWeight { x: at.x(), dy, first_row: rows.start, weight }));
        }
        // Last: communication of the weight's gradient gains that time.
        if let Some(dx) = gradients.dx(0) {
            ops.push(Op::LinearInput(op::LinearInput { dy, weight: at.parameter("weight"), dx }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Activation,
        testing::{check, check_fusion},
    };
    use super::*;

    #[test]
    fn its_gradients_are_those_of_finite_differences() {
        check(&[Shape::features(7)], |graph, x| graph.add("fc", Linear::new(5), x));
        check(&[Shape::features(7)], |graph, x| graph.add("fc", Linear::new(3).without_bias(), x));
    }

    #[test]
    fn a_fused_relu_changes_no_gradient() {
        check_fusion(&[Shape::features(9)], |graph, x| {
            let y = graph.add("fc", Linear::new(12), x)?;
            graph.then(Activation::relu(), y)
        });
    }
}
