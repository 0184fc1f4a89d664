//! A convolution as `torch.nn.Conv2d`:
//! `y[o,r,s] = b[o] + Σ_{c,i,j} w[o,c,i,j] · x[c, t·r + d·i − p, t·s + d·j − p]` with stride `t`,
//! dilation `d`, padding `p`; with groups, an output sees only the input channels of its own group.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    op::{self, Op, Window},
    parameters::{Initial, ParamSpec, Role},
    shape::Shape,
};

/// How many groups of channels do not see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelGroups {
    /// So many.
    Count(usize),
    /// One for each input channel: a depthwise convolution.
    Each,
}

/// A convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv2d {
    /// Output channels; of a depthwise convolution those of each input channel.
    pub outputs: usize,
    /// The kernel's window.
    pub window: Window,
    /// Groups of channels.
    pub groups: ChannelGroups,
    /// True if a bias is added.
    pub bias: bool,
    /// How the weights begin; PyTorch's default where nothing is said.
    pub initial: Option<Initial>,
}

impl Conv2d {
    /// A square kernel, stride 1, without padding, with a bias.
    #[must_use]
    pub const fn new(outputs: usize, kernel: usize) -> Conv2d {
        let window = Window { kernel: [kernel; 2], stride: [1; 2], padding: [0; 2], dilation: [1; 2] };
        Conv2d { outputs, window, groups: ChannelGroups::Count(1), bias: true, initial: None }
    }

    /// So many windows for each channel, which is its own group.
    #[must_use]
    pub const fn depthwise(windows: usize, kernel: usize) -> Conv2d {
        Conv2d { groups: ChannelGroups::Each, ..Conv2d::new(windows, kernel) }
    }

    /// With another stride.
    #[must_use]
    pub const fn stride(mut self, stride: usize) -> Conv2d {
        self.window.stride = [stride; 2];
        self
    }

    /// With zeros around the image.
    #[must_use]
    pub const fn padding(mut self, padding: usize) -> Conv2d {
        self.window.padding = [padding; 2];
        self
    }

    /// With pixels between the taps.
    #[must_use]
    pub const fn dilation(mut self, dilation: usize) -> Conv2d {
        self.window.dilation = [dilation; 2];
        self
    }

    /// With groups of channels.
    #[must_use]
    pub const fn groups(mut self, groups: usize) -> Conv2d {
        self.groups = ChannelGroups::Count(groups);
        self
    }

    /// Without a bias.
    #[must_use]
    pub const fn without_bias(mut self) -> Conv2d {
        self.bias = false;
        self
    }

    /// With other initial weights.
    #[must_use]
    pub const fn initial(mut self, initial: Initial) -> Conv2d {
        self.initial = Some(initial);
        self
    }

    const fn groups_of(&self, channels: usize) -> usize {
        match self.groups {
            ChannelGroups::Count(groups) => groups,
            ChannelGroups::Each => channels,
        }
    }

    const fn outputs_of(&self, channels: usize) -> usize {
        match self.groups {
            ChannelGroups::Count(_) => self.outputs,
            ChannelGroups::Each => self.outputs * channels,
        }
    }

    /// True if it can be computed with its pooling as one operation on samples side by side, and
    /// gains by it: few channels would leave vectors of channels empty.
    pub(crate) fn suits_a_block(&self, input: Shape) -> bool {
        let Window { kernel, stride, padding, dilation } = self.window;
        let is_plain = kernel[0] == kernel[1] && padding[0] == padding[1] && stride == [1; 2] && dilation == [1; 2];
        let is_small = input.channels < 16 && self.outputs <= 16;
        is_plain && is_small && self.groups == ChannelGroups::Count(1) && self.bias
    }

    /// The operation on samples side by side, if that is planned.
    fn block(&self, at: &Operands) -> Option<op::Block> {
        let (weight, kernel) = (at.parameter("weight"), self.window.kernel[0]);
        let block = |switches| op::Block {
            x: at.x(),
            y: at.output,
            weight,
            bias: at.parameter("bias"),
            kernel,
            relu: at.relu,
            switches,
        };
        at.switches.map(block)
    }

    /// Inputs that feed one output.
    fn fan_in(&self, input: Shape) -> usize {
        input.channels / self.groups_of(input.channels) * self.window.kernel[0] * self.window.kernel[1]
    }
}

impl Rule for Conv2d {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        let input = single(inputs)?;
        if self.outputs == 0 {
            return Err(Misfit::new("at least one output", 0));
        }
        let (groups, outputs) = (self.groups_of(input.channels), self.outputs_of(input.channels));
        if groups == 0 || !input.channels.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let expected = format!("groups that divide {} inputs and {outputs} outputs", input.channels);
            return Err(Misfit::new(expected, groups));
        }
        self.window.over(outputs, input)
    }

    fn parameters(&self, inputs: &[Shape]) -> Vec<ParamSpec> {
        let [rows, columns] = self.window.kernel;
        let (channels, outputs) = (inputs[0].channels, self.outputs_of(inputs[0].channels));
        let shape = vec![outputs, channels / self.groups_of(channels), rows, columns];
        let default = Initial::of_fan_in(self.fan_in(inputs[0]));
        let initial = self.initial.unwrap_or(default);
        let weight = ParamSpec { name: "weight", shape, role: Role::Weight, initial };
        let bias = ParamSpec { name: "bias", shape: vec![outputs], role: Role::Bias, initial: default };
        std::iter::once(weight).chain(self.bias.then_some(bias)).collect()
    }

    fn macs(&self, inputs: &[Shape], output: Shape) -> usize {
        self.fan_in(inputs[0]) * output.elements()
    }

    fn takes_relu(&self) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::INPUTS
    }

    fn forward(&self, at: &Operands, mode: Mode, ops: &mut Vec<Op>) {
        if let Some(block) = self.block(at) {
            return ops.push(Op::Block(block));
        }
        let (y, norm, relu) = match at.folded.filter(|_| mode == Mode::Evaluation) {
            Some(folded) => (folded.output, Some(folded.norm), folded.relu),
            None => (at.output, None, at.relu),
        };
        ops.push(Op::Convolution(op::Convolution {
            x: at.x(),
            y: op::Sum::only(y),
            weight: at.parameter("weight"),
            bias: at.optional("bias"),
            window: self.window,
            groups: self.groups_of(at.x().shape.channels),
            norm,
            relu,
        }));
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        let (dy, window, groups) = (gradients.dy, self.window, self.groups_of(at.x().shape.channels));
        if let Some(block) = self.block(at) {
            return ops.push(Op::BlockBackward(op::BlockBackward {
                block,
                dy,
                weight_gradient: gradients.parameter("weight"),
                bias_gradient: gradients.parameter("bias"),
                dx: gradients.dx(0).map(|dx| dx.into),
            }));
        }
        if at.relu {
            ops.push(Op::CutOff(op::CutOff { y: at.output, dy }));
        }
        let weight = gradients.parameter("weight");
        let bias = self.bias.then(|| gradients.parameter("bias").into);
        ops.push(Op::ConvolutionWeight(op::ConvolutionWeight { x: at.x(), dy, window, groups, weight, bias }));
        if let Some(dx) = gradients.dx(0) {
            let weight = at.parameter("weight");
            ops.push(Op::ConvolutionInput(op::ConvolutionInput { dy, weight, window, groups, dx }));
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

    fn check_one(channels: usize, layer: Conv2d) {
        check(&[Shape::image(channels, 6, 7)], |graph, x| graph.add("conv", layer.clone(), x));
    }

    #[test]
    fn its_gradients_are_those_of_finite_differences() {
        check_one(3, Conv2d::new(4, 3));
        check_one(2, Conv2d::new(3, 1).without_bias());
    }

    #[test]
    fn stride_padding_and_dilation_have_the_gradients_of_finite_differences() {
        check_one(3, Conv2d::new(2, 3).padding(1).stride(2));
        check_one(2, Conv2d::new(3, 3).padding(2).dilation(2));
        check_one(2, Conv2d::new(2, 2).stride(3));
    }

    #[test]
    fn groups_and_depthwise_windows_have_the_gradients_of_finite_differences() {
        check_one(4, Conv2d::new(6, 3).padding(1).groups(2));
        check_one(3, Conv2d::depthwise(1, 3).padding(1));
        check_one(2, Conv2d::depthwise(2, 3).stride(2));
    }

    #[test]
    fn a_fused_relu_changes_no_gradient() {
        check_fusion(&[Shape::image(2, 5, 5)], |graph, x| {
            let y = graph.add("conv", Conv2d::new(4, 3), x)?;
            graph.then(Activation::relu(), y)
        });
    }
}
