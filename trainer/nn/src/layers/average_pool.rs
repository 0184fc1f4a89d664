//! The average of each window, as `torch.nn.AvgPool2d`: zeros beyond the image count, so every
//! window divides by its size. A global average is that of one window as large as the image.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    op::{self, Op, Window},
    shape::Shape,
};

/// The average of each window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AveragePool {
    /// The window.
    pub window: Window,
}

impl AveragePool {
    /// Square windows side by side.
    #[must_use]
    pub const fn new(kernel: usize) -> AveragePool {
        let window = Window { kernel: [kernel; 2], stride: [kernel; 2], padding: [0; 2], dilation: [1; 2] };
        AveragePool { window }
    }

    /// With another stride.
    #[must_use]
    pub const fn stride(mut self, stride: usize) -> AveragePool {
        self.window.stride = [stride; 2];
        self
    }

    /// With zeros around the image.
    #[must_use]
    pub const fn padding(mut self, padding: usize) -> AveragePool {
        self.window.padding = [padding; 2];
        self
    }
}

/// The average of each channel over the image: features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalAveragePool;

impl Rule for AveragePool {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = single(inputs)?;
        self.window.over(input.channels, input)
    }

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        forward(self.window, at, ops);
    }

    fn backward(&self, _at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        backward(self.window, gradients, ops);
    }
}

impl Rule for GlobalAveragePool {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        single(inputs).map(|input| Shape::features(input.channels))
    }

    fn is_view(&self, inputs: &[Shape]) -> bool {
        inputs[0].is_flat()
    }

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        forward(whole(at.x().shape), at, ops);
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        backward(whole(at.x().shape), gradients, ops);
    }
}

const fn whole(shape: Shape) -> Window {
    Window { kernel: [shape.height, shape.width], stride: [1; 2], padding: [0; 2], dilation: [1; 2] }
}

fn forward(window: Window, at: &Operands, ops: &mut Vec<Op>) {
    ops.push(Op::AveragePool(op::AveragePool { x: at.x(), y: at.output, window }));
}

fn backward(window: Window, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
    if let Some(dx) = gradients.dx(0) {
        ops.push(Op::AveragePoolBackward(op::AveragePoolBackward { dy: gradients.dy, window, dx }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;
    use super::*;

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        for layer in [AveragePool::new(2), AveragePool::new(3).stride(2).padding(1)] {
            check(&[Shape::image(3, 5, 7)], |graph, x| graph.then(layer, x[0]));
        }
        check(&[Shape::image(3, 5, 7)], |graph, x| graph.then(GlobalAveragePool, x[0]));
    }
}
