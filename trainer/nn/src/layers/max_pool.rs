//! The maximum of each window, as `torch.nn.MaxPool2d`; what lies beyond the image counts as −∞.
//! The gradient goes to the first of a window's greatest elements, row by row.

use super::{Gradients, Kept, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    dtype::DType,
    op::{self, Op, Window},
    shape::Shape,
};

/// The maximum of each window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxPool {
    /// The window.
    pub window: Window,
    /// True if a window may begin inside the image and end beyond it.
    pub ceil: bool,
}

impl MaxPool {
    /// Square windows side by side.
    #[must_use]
    pub const fn new(kernel: usize) -> MaxPool {
        let window = Window { kernel: [kernel; 2], stride: [kernel; 2], padding: [0; 2], dilation: [1; 2] };
        MaxPool { window, ceil: false }
    }

    /// With another stride.
    #[must_use]
    pub const fn stride(mut self, stride: usize) -> MaxPool {
        self.window.stride = [stride; 2];
        self
    }

    /// With padding around the image.
    #[must_use]
    pub const fn padding(mut self, padding: usize) -> MaxPool {
        self.window.padding = [padding; 2];
        self
    }

    /// A last window may end beyond the image.
    #[must_use]
    pub const fn ceil(mut self) -> MaxPool {
        self.ceil = true;
        self
    }
}

impl Rule for MaxPool {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = single(inputs)?;
        let Window { kernel, stride, padding, .. } = self.window;
        if kernel.contains(&0) || stride.contains(&0) {
            return Err(Misfit::new("a window and a stride of at least 1", 0));
        }
        if kernel.iter().zip(padding).any(|(kernel, padding)| padding * 2 > *kernel) {
            return Err(Misfit::new("padding of at most half the window", padding[0].max(padding[1])));
        }
        if !self.ceil {
            return self.window.over(input.channels, input);
        }
        // One more window where pixels are left over and it begins inside the image or before it.
        let side = |axis: usize, side: usize| {
            let over = (side + 2 * padding[axis]).saturating_sub(kernel[axis]);
            let places = over.div_ceil(stride[axis].max(1)) + 1;
            if (places - 1) * stride[axis] < side + padding[axis] { places } else { places - 1 }
        };
        Ok(Shape::image(input.channels, side(0, input.height), side(1, input.width)))
    }

    fn kept(&self, _inputs: &[Shape], output: Shape) -> Vec<Kept> {
        vec![Kept { dtype: DType::U32, elements_a_sample: output.elements() }]
    }

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        ops.push(Op::MaxPool(op::MaxPool { x: at.x(), y: at.output, window: self.window, switches: at.kept[0] }));
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        if let Some(dx) = gradients.dx(0) {
            ops.push(Op::MaxPoolBackward(op::MaxPoolBackward { dy: gradients.dy, switches: at.kept[0], dx }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, outputs};
    use super::*;

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        for layer in
            [MaxPool::new(2), MaxPool::new(3).stride(2).padding(1), MaxPool::new(3).stride(1), MaxPool::new(2).ceil()]
        {
            check(&[Shape::image(3, 5, 7)], |graph, x| graph.then(layer, x[0]));
        }
    }

    #[test]
    fn negative_values_win_over_the_padding() {
        let image = [-3.0, -1.0, -4.0, -2.0];
        let found =
            outputs(&[Shape::image(1, 2, 2)], &[&image], |graph, x| graph.then(MaxPool::new(2).padding(1), x[0]));
        assert_eq!(found, image);
    }

    #[test]
    fn a_last_window_may_end_beyond_the_image() {
        let shape = |layer: MaxPool, side| layer.output(&[Shape::image(1, side, side)]).map(|shape| shape.height);
        assert_eq!(shape(MaxPool::new(3).stride(2).ceil(), 2), Ok(1));
        assert_eq!(
            [shape(MaxPool::new(3).stride(2), 112), shape(MaxPool::new(3).stride(2).ceil(), 112)],
            [Ok(55), Ok(56)]
        );
    }
}
