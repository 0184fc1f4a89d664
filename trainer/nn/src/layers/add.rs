//! The sum of two values, as at the end of a residual block: `y = x₁ + x₂`, so `dx₁ = dx₂ = dy`.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule};
use crate::{
    op::{self, Op},
    shape::Shape,
};

/// The sum of two values of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Add;

impl Rule for Add {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        match inputs {
            [one, other] if one == other => Ok(*one),
            [one, other] => Err(Misfit::new(format!("two values of one shape, the first being {one}"), other)),
            _ => Err(Misfit::new("two values", inputs.len())),
        }
    }

    fn takes_relu(&self) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        let inputs = [at.inputs[0], at.inputs[1]];
        ops.push(Op::Add(op::Add { inputs, y: at.output, relu: at.relu }));
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        if at.relu {
            ops.push(Op::CutOff(op::CutOff { y: at.output, dy: gradients.dy }));
        }
        for input in 0..2 {
            if let Some(into) = gradients.dx(input) {
                ops.push(Op::Accumulate(op::Accumulate { from: gradients.dy, into }));
            }
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
        let shape = Shape::image(3, 2, 5);
        check(&[shape, shape], |graph, x| graph.join(Add, x));
        check_fusion(&[shape, shape], |graph, x| {
            let y = graph.join(Add, x)?;
            graph.then(Activation::relu(), y)
        });
    }

    #[test]
    fn a_value_may_be_added_to_itself_and_read_again() {
        check(&[Shape::image(3, 2, 5)], |graph, x| {
            let twice = graph.join(Add, &[x[0], x[0]])?;
            graph.join(Add, &[twice, x[0]])
        });
    }
}
