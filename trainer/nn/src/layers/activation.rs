//! Functions of one number, applied to every element: `y = f(x)`, so `dx = f′(x)·dy`.
//!
//! ReLU `max(0, x)`; GELU `x·Φ(x)` with the normal distribution's `Φ` (arXiv 1606.08415), not its
//! approximation by a hyperbolic tangent; SiLU `x·σ(x)`; the hyperbolic tangent; the sigmoid
//! `σ(x) = 1/(1 + e⁻ˣ)`.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    op::{self, Function, Op},
    shape::Shape,
};

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activation {
    /// Which.
    pub function: Function,
}

impl Activation {
    /// `max(0, x)`.
    #[must_use]
    pub const fn relu() -> Activation {
        Activation { function: Function::Relu }
    }

    /// Any.
    #[must_use]
    pub const fn of(function: Function) -> Activation {
        Activation { function }
    }
}

impl Rule for Activation {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        single(inputs)
    }

    fn reads(&self) -> Reads {
        match self.function {
            Function::Relu | Function::Tanh | Function::Sigmoid => Reads { inputs: false, output: true },
            Function::Gelu | Function::Silu => Reads::INPUTS,
        }
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        ops.push(Op::Activate(op::Activate { function: self.function, x: at.x(), y: at.output }));
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        if let Some(dx) = gradients.dx(0) {
            let (function, x, y, dy) = (self.function, at.x(), at.output, gradients.dy);
            ops.push(Op::ActivateBackward(op::ActivateBackward { function, x, y, dy, dx }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;
    use super::*;

    #[test]
    fn their_gradients_are_those_of_finite_differences() {
        for function in [Function::Relu, Function::Gelu, Function::Silu, Function::Tanh, Function::Sigmoid] {
            check(&[Shape::image(3, 4, 5)], |graph, x| graph.then(Activation::of(function), x[0]));
        }
    }
}
