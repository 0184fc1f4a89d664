//! Images become features, channel by channel, row by row, as `torch.flatten` has them.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    op::{self, Op},
    shape::Shape,
};

/// Images become features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flatten;

impl Rule for Flatten {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        single(inputs).map(|input| Shape::features(input.elements()))
    }

    fn is_view(&self, inputs: &[Shape]) -> bool {
        inputs[0].channels == 1 || inputs[0].is_flat()
    }

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        ops.push(Op::Flatten(op::Flatten { from: at.x(), into: op::Sum::only(at.output) }));
    }

    fn backward(&self, _at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        if let Some(into) = gradients.dx(0) {
            ops.push(Op::Unflatten(op::Flatten { from: gradients.dy, into }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, outputs};
    use super::*;

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        check(&[Shape::image(3, 2, 4)], |graph, x| graph.then(Flatten, x[0]));
        check(&[Shape::image(1, 3, 4)], |graph, x| graph.then(Flatten, x[0]));
    }

    #[test]
    fn elements_are_in_the_order_channel_row_column() {
        let image: Vec<f32> = (0..2 * 12).map(|value| value as f32).collect();
        assert_eq!(outputs(&[Shape::image(2, 2, 3)], &[&image], |graph, x| graph.then(Flatten, x[0])), image);
    }
}
