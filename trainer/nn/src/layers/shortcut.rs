//! The shortcut without parameters where a residual block halves an image and has more channels (He
//! et al., arXiv 1512.03385, option A): every `stride`-th pixel, and zeros for the further
//! channels, half of them before the others.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    op::{self, Op},
    shape::Shape,
};

/// Every `stride`-th pixel, with zeros for further channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortcut {
    /// Channels of the output.
    pub outputs: usize,
    /// Pixels from one that is kept to the next.
    pub stride: usize,
}

impl Shortcut {
    const fn first(&self, inputs: usize) -> usize {
        (self.outputs - inputs) / 2
    }
}

impl Rule for Shortcut {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = single(inputs)?;
        if self.outputs < input.channels || self.stride == 0 {
            return Err(Misfit::new(format!("at most {} channels and a stride of at least 1", self.outputs), input));
        }
        let side = |side: usize| side.div_ceil(self.stride);
        Ok(Shape::image(self.outputs, side(input.height), side(input.width)))
    }

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        let first = self.first(at.x().shape.channels);
        ops.push(Op::Subsample(op::Subsample { x: at.x(), y: at.output, stride: self.stride, first }));
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        if let Some(dx) = gradients.dx(0) {
            let first = self.first(at.x().shape.channels);
            ops.push(Op::SubsampleBackward(op::SubsampleBackward { dy: gradients.dy, dx, stride: self.stride, first }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, outputs};
    use super::*;

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        check(&[Shape::image(2, 5, 4)], |graph, x| graph.then(Shortcut { outputs: 6, stride: 2 }, x[0]));
    }

    #[test]
    fn further_channels_are_zeros_on_both_sides() {
        let found = outputs(&[Shape::image(1, 1, 3)], &[&[1.0, 2.0, 3.0]], |graph, x| {
            graph.then(Shortcut { outputs: 3, stride: 2 }, x[0])
        });
        assert_eq!(found, [0.0, 0.0, 1.0, 3.0, 0.0, 0.0]);
    }
}
