//! Two-dimensional convolutions of images that lie channels last: `[image][row][column][channel]`.
//! Images are of f32, or of bf16 where the core multiplies pairs of these; sums are of f32.
//!
//! `y[n][i][j][o] = Σ x[n][s·i + d·k − p][s·j + d·l − p][c] · w[o][c][k][l]` over kernel rows `k`,
//! columns `l` and the input channels `c` of the group of `o`. Weights lie as in the formula,
//! `[outputs][inputs / groups][rows][columns]`. Forward and the input's gradient read packed copies
//! ([`Convolution::pack_forward`], [`Convolution::pack_backward`]), which stay good until the
//! weights change.
//!
//! Every function runs on one core, allocates nothing and takes its scratch memory from the caller.
//! The bits of a result depend on the geometry and the instructions only; those of outputs and the
//! input's gradient not on the batch. A batch can thus be split among cores by images, each with a
//! geometry of its part; gradients of weights are then summed.
//!
//! - `axis`, `correlation`: which positions meet, and the blocks that work is cut into
//! - `correlate`: forward and the input's gradient
//! - `gradient`: the gradients of weights and bias
//! - `depthwise`: all three where every channel is its own group
//! - `tile`, `lanes`, `dispatch`: register tiles of vectors of channels, for each instruction set
//! - `input`, `pairs`: operands in bf16
//! - `pack`, `copy`, `ahead`, `finish`: the order of weights, and how memory is read and written

#![allow(clippy::needless_range_loop, reason = "indices of constant range name registers")]

mod ahead;
mod axis;
mod copy;
mod correlate;
mod correlation;
mod depthwise;
mod dispatch;
mod finish;
mod gradient;
mod input;
mod pack;
mod pairs;
#[cfg(test)]
mod tests;
mod tile;

use crate::device::Accumulation;
use crate::kernels::Instructions;

use axis::Axis;
use correlation::Correlation;
pub use finish::Finish;
pub use input::{Input, Output};
use pack::Order;

/// The sizes of a convolution; pairs are rows, then columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Images.
    pub batch: usize,
    /// Height and width of the input.
    pub size: [usize; 2],
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance of neighbouring outputs in the input.
    pub stride: [usize; 2],
    /// Rows and columns of zeros on each side.
    pub padding: [usize; 2],
    /// Distance of neighbouring taps in the input.
    pub dilation: [usize; 2],
    /// Groups of channels that do not mix.
    pub groups: usize,
}

/// Why a [`Geometry`] is no convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGeometry {
    /// A size is 0.
    #[error("a size of {0:?} is zero")]
    Zero(Geometry),
    /// Channels do not divide into the groups.
    #[error("{inputs} inputs and {outputs} outputs do not divide into {groups} groups")]
    Groups {
        /// Input channels.
        inputs: usize,
        /// Output channels.
        outputs: usize,
        /// Groups.
        groups: usize,
    },
    /// The kernel is larger than the padded input.
    #[error(
        "a kernel of {kernel} taps, {dilation} apart, exceeds an input of {size} with {padding} zeros on each side"
    )]
    Kernel {
        /// Taps along the axis.
        kernel: usize,
        /// Their distance.
        dilation: usize,
        /// The input's size along the axis.
        size: usize,
        /// Zeros on each side.
        padding: usize,
    },
}

/// A checked [`Geometry`], with what follows from it for the kernels.
#[derive(Debug, Clone)]
pub struct Convolution {
    geometry: Geometry,
    output_size: [usize; 2],
    depthwise: bool,
    forward: Correlation,
    /// One for each phase of the stride.
    backward: Vec<Correlation>,
    /// The same over pairs of channels, if these are even.
    forward_pairs: Option<Correlation>,
    backward_pairs: Option<Vec<Correlation>>,
}

/// Operands of `y = finish(w ∗ x)`.
#[derive(Debug)]
pub struct Forward<'a> {
    /// `x`.
    pub input: Input<'a>,
    /// From [`Convolution::pack_forward`], or from [`Convolution::pack_forward_pairs`] for bf16.
    pub weights: &'a [f32],
    /// Applied to every sum: bias, scale and shift, ReLU.
    pub finish: Finish<'a>,
    /// With [`Accumulation::Add`], what was in the output is added before the ReLU.
    pub accumulation: Accumulation,
    /// `y`, of the input's type.
    pub output: Output<'a>,
    /// [`Convolution::forward_workspace_elements`] of scratch.
    pub workspace: &'a mut [f32],
}

/// Operands of the gradient of the input.
#[derive(Debug)]
pub struct BackwardInput<'a> {
    /// `dy`.
    pub output_gradient: Input<'a>,
    /// From [`Convolution::pack_backward`], or from [`Convolution::pack_backward_pairs`] for bf16.
    pub weights: &'a [f32],
    /// True if `dx` is replaced or added to.
    pub accumulation: Accumulation,
    /// `dx`, of the same type.
    pub input_gradient: Output<'a>,
    /// [`Convolution::backward_input_workspace_elements`] of scratch.
    pub workspace: &'a mut [f32],
}

/// Operands of the gradients of weights and bias.
#[derive(Debug)]
pub struct BackwardWeights<'a> {
    /// `x`.
    pub input: Input<'a>,
    /// `dy`, of the same type.
    pub output_gradient: Input<'a>,
    /// True if the gradients are replaced or added to.
    pub accumulation: Accumulation,
    /// `dw`, in the order of the weights.
    pub weight_gradient: &'a mut [f32],
    /// `db`, one for each output channel.
    pub bias_gradient: Option<&'a mut [f32]>,
    /// [`Convolution::backward_weights_workspace_elements`] of scratch.
    pub workspace: &'a mut [f32],
}

impl Geometry {
    /// A square kernel on square images, without padding, in one group.
    pub fn square(batch: usize, size: usize, inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Geometry {
        let (kernel, stride) = ([kernel; 2], [stride; 2]);
        Geometry {
            batch,
            size: [size; 2],
            inputs,
            outputs,
            kernel,
            stride,
            padding: [0; 2],
            dilation: [1; 2],
            groups: 1,
        }
    }
}

impl Convolution {
    /// Checks a geometry.
    ///
    /// # Errors
    /// If a size is 0, channels do not divide into groups, or the kernel exceeds the padded input.
    pub fn new(geometry: Geometry) -> Result<Convolution, InvalidGeometry> {
        let Geometry { batch, size, inputs, outputs, kernel, stride, padding, dilation, groups } = geometry;
        let sizes = [size, kernel, stride, dilation].into_iter().flatten().chain([batch, inputs, outputs, groups]);
        if sizes.min() == Some(0) {
            return Err(InvalidGeometry::Zero(geometry));
        }
        if !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            return Err(InvalidGeometry::Groups { inputs, outputs, groups });
        }
        let axis = |i: usize| {
            Axis::forward(size[i], kernel[i], stride[i], padding[i], dilation[i]).ok_or(InvalidGeometry::Kernel {
                kernel: kernel[i],
                dilation: dilation[i],
                size: size[i],
                padding: padding[i],
            })
        };
        let (y, x) = (axis(0)?, axis(1)?);
        let output_size = [y.targets, x.targets];
        let depthwise = groups > 1 && inputs == groups && outputs == groups;
        // The depthwise kernel takes all channels as one group.
        let (groups, inputs, outputs) =
            if depthwise { (1, inputs, outputs) } else { (groups, inputs / groups, outputs / groups) };
        let forward = Correlation { batch, groups, depth: inputs, targets: outputs, y, x, target_size: output_size };
        let phase = |y, x| Correlation { batch, groups, depth: outputs, targets: inputs, y, x, target_size: size };
        let rows = Axis::backward(y);
        let columns = Axis::backward(x);
        let phases = rows.into_iter().flat_map(|y| columns.iter().map(move |x| (y, *x)));
        let backward: Vec<_> = phases.map(|(y, x)| phase(y, x).merged()).collect();
        let forward = forward.merged();
        let pairs = |correlation: &Correlation| correlation.over_pairs().filter(|_| !depthwise);
        let forward_pairs = pairs(&forward);
        let backward_pairs = backward.iter().map(pairs).collect();
        Ok(Convolution { geometry, output_size, depthwise, forward, backward, forward_pairs, backward_pairs })
    }

    /// The geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Height and width of the output.
    pub fn output_size(&self) -> [usize; 2] {
        self.output_size
    }

    /// Elements of `x`.
    pub fn input_elements(&self) -> usize {
        let Geometry { batch, size: [height, width], inputs, .. } = self.geometry;
        batch * height * width * inputs
    }

    /// Elements of `y`.
    pub fn output_elements(&self) -> usize {
        let [height, width] = self.output_size;
        self.geometry.batch * height * width * self.geometry.outputs
    }

    /// Elements of `w`.
    pub fn weight_elements(&self) -> usize {
        let Geometry { inputs, outputs, kernel: [rows, columns], groups, .. } = self.geometry;
        outputs * (inputs / groups) * rows * columns
    }

    /// Multiply-adds of forward, as many as of each gradient; those with padding are counted.
    pub fn multiply_adds(&self) -> usize {
        let Geometry { inputs, kernel: [rows, columns], groups, .. } = self.geometry;
        self.output_elements() * (inputs / groups) * rows * columns
    }

    /// Elements of the weights packed for [`forward`].
    pub fn packed_forward_elements(&self) -> usize {
        self.packed_elements(&self.forward)
    }

    /// Elements of the weights packed for [`backward_input`].
    pub fn packed_backward_elements(&self) -> usize {
        self.backward.iter().map(|phase| self.packed_elements(phase)).sum()
    }

    /// Elements of scratch for [`forward`].
    pub fn forward_workspace_elements(&self) -> usize {
        let of_pairs = self.forward_pairs.as_ref().map_or(0, Correlation::workspace_elements);
        self.correlation_workspace_elements(&self.forward).max(of_pairs)
    }

    /// Elements of scratch for [`backward_input`].
    pub fn backward_input_workspace_elements(&self) -> usize {
        let of_pairs = self.backward_pairs.iter().flatten().map(Correlation::workspace_elements);
        let of_phases = self.backward.iter().map(|phase| self.correlation_workspace_elements(phase));
        of_phases.chain(of_pairs).max().unwrap_or(0)
    }

    /// Elements of scratch for [`backward_weights`].
    pub fn backward_weights_workspace_elements(&self) -> usize {
        if self.depthwise {
            depthwise::gradient_workspace_elements(&self.forward)
        } else {
            gradient::workspace_elements(&self.forward)
        }
    }

    /// Packs weights for [`forward`].
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn pack_forward(&self, weights: &[f32], packed: &mut [f32]) {
        self.pack(&self.forward, self.forward_order(), weights, packed);
    }

    /// Packs weights for [`backward_input`].
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn pack_backward(&self, weights: &[f32], mut packed: &mut [f32]) {
        let Order { group, target, source, row } = self.forward_order();
        let order = Order { group, target: source, source: target, row };
        for phase in &self.backward {
            let (part, rest) = packed.split_at_mut(self.packed_elements(phase));
            if !part.is_empty() {
                self.pack(phase, order, weights, part);
            }
            packed = rest;
        }
    }

    /// True if these instructions compute [`forward`] and both gradients of images of bf16.
    pub fn reads_pairs(&self, instructions: Instructions) -> [bool; 3] {
        let can = dispatch::multiplies_pairs(instructions);
        [can && self.forward_pairs.is_some(), can && self.backward_pairs.is_some(), can && !self.depthwise]
    }

    /// Packs weights that are rounded to bf16 for [`forward`] of images of bf16, into as much room
    /// as [`Convolution::pack_forward`] takes.
    ///
    /// # Panics
    /// If a slice is too short, or the input channels are odd.
    pub fn pack_forward_pairs(&self, weights: &[f32], packed: &mut [f32]) {
        let correlation = self.forward_pairs.as_ref().unwrap_or_else(|| panic!("no pairs: {:?}", self.geometry));
        pairs::pack_weights(correlation, self.forward_order(), weights, packed);
    }

    /// The same for [`backward_input`].
    ///
    /// # Panics
    /// If a slice is too short, or the output channels are odd.
    pub fn pack_backward_pairs(&self, weights: &[f32], mut packed: &mut [f32]) {
        let phases = self.backward_pairs.as_ref().unwrap_or_else(|| panic!("no pairs: {:?}", self.geometry));
        let Order { group, target, source, row } = self.forward_order();
        let order = Order { group, target: source, source: target, row };
        for phase in phases {
            let (part, rest) = packed.split_at_mut(2 * phase.packed_elements());
            if !part.is_empty() {
                pairs::pack_weights(phase, order, weights, part);
            }
            packed = rest;
        }
    }

    fn pack(&self, correlation: &Correlation, order: Order, weights: &[f32], packed: &mut [f32]) {
        if self.depthwise {
            depthwise::pack(correlation, order, weights, packed);
        } else {
            pack::pack(correlation, order, weights, packed);
        }
    }

    fn forward_order(&self) -> Order {
        let Geometry { inputs, outputs, kernel: [rows, columns], groups, .. } = self.geometry;
        let (taps, depth) = (rows * columns, inputs / groups);
        Order { group: outputs / groups * depth * taps, target: depth * taps, source: taps, row: columns }
    }

    fn packed_elements(&self, correlation: &Correlation) -> usize {
        if self.depthwise { depthwise::packed_elements(correlation) } else { correlation.packed_elements() }
    }

    fn correlate(&self, instructions: Instructions, job: correlate::Job<'_, f32>) {
        if self.depthwise {
            dispatch::depthwise(instructions, job);
        } else {
            dispatch::correlate(instructions, job);
        }
    }

    fn correlation_workspace_elements(&self, correlation: &Correlation) -> usize {
        if !self.depthwise {
            correlation.workspace_elements()
        } else if !correlation.has_taps() {
            0
        } else {
            depthwise::workspace_elements(correlation)
        }
    }
}

/// `y = relu(scale · (w ∗ x) + shift (+ y))`.
///
/// # Panics
/// If an operand is too short, its type does not suit, or the core lacks the instructions.
pub fn forward(instructions: Instructions, convolution: &Convolution, operands: Forward<'_>) {
    let Forward { input, weights: packed, finish, accumulation, output, workspace } = operands;
    match (input, output) {
        (Input::F32(source), Output::F32(target)) => {
            let correlation = &convolution.forward;
            let job = correlate::Job { correlation, source, packed, finish, accumulation, target, workspace };
            convolution.correlate(instructions, job);
        }
        (Input::Bf16(_), Output::Bf16(target)) => {
            let pairs = convolution.forward_pairs.as_ref();
            let correlation = pairs.unwrap_or_else(|| panic!("no pairs: {:?}", convolution.geometry));
            let (source, target) = (input.words(), bytemuck::cast_slice_mut(target));
            let job = correlate::Job { correlation, source, packed, finish, accumulation, target, workspace };
            dispatch::correlate_pairs(instructions, job);
        }
        (input, output) => panic!("{input:?} and {output:?} are of different types"),
    }
}

/// `dx (+)= wᵀ ∗ dy`.
///
/// # Panics
/// If an operand is too short, its type does not suit, or the core lacks the instructions.
pub fn backward_input(instructions: Instructions, convolution: &Convolution, operands: BackwardInput<'_>) {
    let BackwardInput { output_gradient, weights: mut packed, accumulation, input_gradient, workspace } = operands;
    let finish = Finish::default();
    match (output_gradient, input_gradient) {
        (Input::F32(source), Output::F32(target)) => {
            for correlation in &convolution.backward {
                let (part, rest) = packed.split_at(convolution.packed_elements(correlation));
                let (packed_part, target, workspace) = (part, &mut *target, &mut *workspace);
                let job = correlate::Job {
                    correlation,
                    source,
                    packed: packed_part,
                    finish,
                    accumulation,
                    target,
                    workspace,
                };
                convolution.correlate(instructions, job);
                packed = rest;
            }
        }
        (Input::Bf16(_), Output::Bf16(target)) => {
            for correlation in convolution.backward_pairs.iter().flatten() {
                // Twice the room was for packing.
                let (part, rest) = packed.split_at(2 * correlation.packed_elements());
                let (source, target) = (output_gradient.words(), bytemuck::cast_slice_mut(&mut *target));
                let (packed_part, workspace) = (part, &mut *workspace);
                let job = correlate::Job {
                    correlation,
                    source,
                    packed: packed_part,
                    finish,
                    accumulation,
                    target,
                    workspace,
                };
                dispatch::correlate_pairs(instructions, job);
                packed = rest;
            }
        }
        (from, into) => panic!("{from:?} and {into:?} are of different types"),
    }
}

/// `dw (+)= x ∗ dy` and `db (+)= Σ dy`.
///
/// # Panics
/// If an operand is too short, or the core lacks the instructions.
pub fn backward_weights(instructions: Instructions, convolution: &Convolution, operands: BackwardWeights<'_>) {
    let BackwardWeights { input, output_gradient, accumulation, weight_gradient, bias_gradient, workspace } = operands;
    assert_eq!(weight_gradient.len(), convolution.weight_elements(), "gradient of the weights");
    let job = gradient::Job {
        correlation: &convolution.forward,
        order: convolution.forward_order(),
        input,
        output_gradient,
        accumulation,
        weight_gradient,
        bias_gradient,
        workspace,
    };
    if convolution.depthwise {
        dispatch::depthwise_gradient(instructions, job);
    } else if input.is_bf16() {
        dispatch::gradient_pairs(instructions, job);
    } else {
        dispatch::gradient(instructions, job);
    }
}
