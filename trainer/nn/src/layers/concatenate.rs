//! The channels of several values one after another; each input's gradient is its part of the
//! output's.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule};
use crate::{
    op::{self, Op, Sum},
    shape::Shape,
};

/// The channels of several values one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concatenate;

impl Rule for Concatenate {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let Some(first) = inputs.first() else { return Err(Misfit::new("at least one value", 0)) };
        let other = inputs.iter().find(|shape| (shape.height, shape.width) != (first.height, first.width));
        if let Some(other) = other {
            let expected = format!("values of one height and width, the first being {first}");
            return Err(Misfit::new(expected, other));
        }
        let channels = inputs.iter().map(|shape| shape.channels).sum();
        Ok(Shape { channels, ..*first })
    }

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        let mut first_into = 0;
        for from in &at.inputs {
            let (into, count) = (Sum::only(at.output), from.shape.channels);
            ops.push(Op::Channels(op::Channels { from: *from, first_from: 0, into, first_into, count }));
            first_into += count;
        }
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        let mut first_from = 0;
        for (input, tensor) in at.inputs.iter().enumerate() {
            let (from, count) = (gradients.dy, tensor.shape.channels);
            if let Some(into) = gradients.dx(input) {
                ops.push(Op::Channels(op::Channels { from, first_from, into, first_into: 0, count }));
            }
            first_from += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, outputs};
    use super::*;

    #[test]
    fn its_gradients_are_those_of_finite_differences() {
        check(&[Shape::image(3, 2, 4), Shape::image(1, 2, 4), Shape::image(5, 2, 4)], |graph, x| {
            graph.join(Concatenate, x)
        });
        check(&[Shape::features(4)], |graph, x| graph.join(Concatenate, &[x[0], x[0]]));
    }

    #[test]
    fn channels_are_in_the_order_of_the_inputs() {
        let (one, other) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0]);
        let shapes = [Shape::image(2, 1, 2), Shape::image(1, 1, 2)];
        let found = outputs(&shapes, &[&one, &other], |graph, x| graph.join(Concatenate, x));
        assert_eq!(found, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}
