//! An up-convolution as `torch.nn.ConvTranspose2d`: it maps an image as a convolution of the same
//! window maps the gradient of its output to that of its input, so it makes images larger (Dumoulin
//! and Visin 2016,  4).
//!
//! `y[o, t·r + i − p, t·s + j − p] += w[c,o,i,j] · x[c,r,s]`, then the bias. `w` is
//! `[inputs][outputs][row][column]`.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    op::{self, Op, Window},
    parameters::{Initial, ParamSpec, Role},
    shape::Shape,
};

/// An up-convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct UpConvolution {
    /// Output channels.
    pub outputs: usize,
    /// The window of the convolution that it reverses.
    pub window: Window,
    /// True if a bias is added.
    pub bias: bool,
    /// How the weights begin; PyTorch's default where nothing is said.
    pub initial: Option<Initial>,
}

impl UpConvolution {
    /// A square kernel with this stride, with a bias.
    #[must_use]
    pub const fn new(outputs: usize, kernel: usize, stride: usize) -> UpConvolution {
        let window = Window { kernel: [kernel; 2], stride: [stride; 2], padding: [0; 2], dilation: [1; 2] };
        UpConvolution { outputs, window, bias: true, initial: None }
    }

    /// Without so many pixels at each edge.
    #[must_use]
    pub const fn padding(mut self, padding: usize) -> UpConvolution {
        self.window.padding = [padding; 2];
        self
    }

    /// Without a bias.
    #[must_use]
    pub const fn without_bias(mut self) -> UpConvolution {
        self.bias = false;
        self
    }
}

impl Rule for UpConvolution {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = single(inputs)?;
        let Window { kernel, stride, padding, dilation } = self.window;
        let side = |axis: usize, side: usize| {
            let reach = dilation[axis] * kernel[axis].checked_sub(1)? + 1;
            ((side - 1) * stride[axis].checked_sub(1).map(|less| less + 1)? + reach).checked_sub(2 * padding[axis])
        };
        match (side(0, input.height), side(1, input.width)) {
            (Some(height), Some(width)) if height > 0 && width > 0 && self.outputs > 0 => {
                Ok(Shape::image(self.outputs, height, width))
            }
            _ => Err(Misfit::new("a kernel, a stride and outputs of at least one, and less padding", input)),
        }
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<ParamSpec> {
        let [rows, columns] = self.window.kernel;
        // PyTorch takes the second dimension for the inputs.
        let default = Initial::of_fan_in(self.outputs * rows * columns);
        let shape = vec![inputs[0].channels, self.outputs, rows, columns];
        let initial = self.initial.unwrap_or(default);
        let weight = ParamSpec { name: "weight", shape, role: Role::Weight, initial };
        let bias = ParamSpec { name: "bias", shape: vec![self.outputs], role: Role::Bias, initial: default };
        std::iter::once(weight).chain(self.bias.then_some(bias)).collect()
    }

    fn macs(&self, inputs: &[Shape], _output: Shape) -> usize {
        inputs[0].elements() * self.outputs * self.window.kernel[0] * self.window.kernel[1]
    }

    fn takes_relu(&self) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::INPUTS
    }

    fn forward(&self, at: &Operands, _mode: Mode, ops: &mut Vec<Op>) {
        let (weight, window, groups) = (at.parameter("weight"), self.window, 1);
        let dx = op::Sum::only(at.output);
        ops.push(Op::ConvolutionInput(op::ConvolutionInput { dy: at.x(), weight, window, groups, dx }));
        let bias = at.optional("bias");
        if bias.is_some() || at.relu {
            ops.push(Op::AddBias(op::AddBias { y: at.output, bias, relu: at.relu }));
        }
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        let (dy, window, groups) = (gradients.dy, self.window, 1);
        if at.relu {
            ops.push(Op::CutOff(op::CutOff { y: at.output, dy }));
        }
        if self.bias {
            ops.push(Op::BiasGradient(op::BiasGradient { dy, bias: gradients.parameter("bias") }));
        }
        let weight = gradients.parameter("weight");
        let (x, dy, bias) = (dy, at.x(), None);
        ops.push(Op::ConvolutionWeight(op::ConvolutionWeight { x, dy, window, groups, weight, bias }));
        if let Some(dx) = gradients.dx(0) {
            let (weight, norm, relu) = (at.parameter("weight"), None, false);
            ops.push(Op::Convolution(op::Convolution { x, y: dx, weight, bias, window, groups, norm, relu }));
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
        check(&[Shape::image(3, 3, 4)], |graph, x| graph.add("up", UpConvolution::new(2, 2, 2), x));
        check(&[Shape::image(2, 4, 3)], |graph, x| graph.add("up", UpConvolution::new(3, 3, 2).padding(1), x));
    }

    #[test]
    fn a_fused_relu_changes_no_gradient() {
        check_fusion(&[Shape::image(2, 3, 3)], |graph, x| {
            let y = graph.add("up", UpConvolution::new(3, 2, 2), x)?;
            graph.then(Activation::relu(), y)
        });
    }

    #[test]
    fn a_window_of_two_with_stride_two_doubles_an_image() {
        let shape = UpConvolution::new(5, 2, 2).output(&[Shape::image(3, 7, 9)]);
        assert_eq!(shape, Ok(Shape::image(5, 14, 18)));
    }
}
