//! Convolution, ReLU and pooling of few channels, whose vectors run over samples.
//!
//! Images lie as `[group of 16 samples][channel][row][column][16]`. Sixteen samples of one pixel
//! are adjacent, so every load is whole and every lane does useful work, whatever the width of
//! image or kernel; nothing is gathered into a matrix first. Forward and the input's gradient keep
//! 6 channels × 16 samples in registers and broadcast weights; the weights' gradient keeps 2
//! outputs × 5 taps and broadcasts nothing.

#![allow(clippy::needless_range_loop, reason = "indices of constant range name registers")]
#![allow(unsafe_code, reason = "vector loads through pointers, and functions compiled for detected instructions")]

mod backward;
mod forward;

use super::Cpu;
use crate::device::{Form, LANES as SAMPLE_LANES, Tensor};
use crate::kernels::Instructions;
use crate::kernels::simd::Plain;
#[cfg(target_arch = "x86_64")]
use crate::kernels::simd::{Avx2, Avx512};
use crate::op::{Accumulation, Block, BlockBackward, MicroBatch};
use crate::shape::Shape;

/// Side of the pooling windows.
const WINDOW: usize = 2;

/// Images of samples side by side.
#[derive(Debug, Clone, Copy)]
struct Images {
    channels: usize,
    height: usize,
    width: usize,
    halo: usize,
}

impl Images {
    fn of(tensor: Tensor) -> Images {
        let Form::Lanes { halo } = tensor.form else { panic!("a block on samples one after another: {tensor:?}") };
        let Shape { channels, height, width } = tensor.shape;
        Images { channels, height, width, halo }
    }

    fn stored_height(&self) -> usize {
        self.height + 2 * self.halo
    }

    fn stored_width(&self) -> usize {
        self.width + 2 * self.halo
    }

    /// Elements between two groups of samples.
    fn block_stride(&self) -> usize {
        self.channels * self.stored_height() * self.stored_width() * SAMPLE_LANES
    }
}

/// Shapes of a block.
#[derive(Debug, Clone, Copy)]
struct Convolution {
    input: Images,
    output: Images,
    output_gradient: Images,
    input_gradient: Option<Images>,
    kernel: usize,
    relu: bool,
    window: usize,
}

impl Convolution {
    fn of(operation: &Block) -> Convolution {
        let Block { x, y, kernel, relu, .. } = operation;
        let (input, output) = (Images::of(*x), Images::of(*y));
        let output_gradient = Images { halo: 0, ..output };
        Convolution {
            input,
            output,
            output_gradient,
            input_gradient: None,
            kernel: *kernel,
            relu: *relu,
            window: WINDOW,
        }
    }

    /// Rows and columns of the product, before pooling.
    fn product_size(&self) -> (usize, usize) {
        (self.input.stored_height() + 1 - self.kernel, self.input.stored_width() + 1 - self.kernel)
    }

    fn packed_elements(&self) -> usize {
        let Convolution { input, output, kernel, .. } = self;
        (input.channels * output.channels * kernel * kernel).next_multiple_of(SAMPLE_LANES)
    }

    /// Weights in the kernels' order, and the gradient of the product for one group of samples.
    fn scratch_elements(&self) -> usize {
        let (height, width) = self.product_size();
        self.packed_elements() + self.output.channels * height * width * SAMPLE_LANES
    }
}

pub(super) fn scratch_elements(operation: &Block) -> usize {
    Convolution::of(operation).scratch_elements()
}

pub(super) fn run_forward(cpu: &Cpu, operation: &Block, batch: &MicroBatch) {
    let shapes = Convolution::of(operation);
    let Block { x, y, weight, bias, switches, .. } = operation;
    let (input, weights, bias) = (cpu.read(*x, batch.samples), cpu.reading(*weight), cpu.view::<f32>(*bias));
    let (mut output, mut switches) = (cpu.write(*y, batch.samples), cpu.lease::<f32>(*switches));
    let mut packed = cpu.scratch(shapes.packed_elements());
    pack_by_outputs(&shapes, &weights, &mut packed);
    forward(
        cpu.instructions,
        Forward {
            operation: &shapes,
            blocks: batch.samples.div_ceil(SAMPLE_LANES),
            input: &input,
            weights: &packed,
            bias: &bias,
            output: &mut output,
            switches: &mut switches,
        },
    );
}

pub(super) fn run_backward(cpu: &Cpu, operation: &BlockBackward, batch: &MicroBatch) {
    let BlockBackward { block, dy, dx, weight_gradient, bias_gradient } = operation;
    let shapes =
        Convolution { output_gradient: Images::of(*dy), input_gradient: dx.map(Images::of), ..Convolution::of(block) };
    let (input, switches) = (cpu.read(block.x, batch.samples), cpu.view::<f32>(block.switches));
    let output_gradient = cpu.read(*dy, batch.samples);
    let [mut dw, mut db] = [weight_gradient, bias_gradient].map(|sum| {
        let mut place = cpu.lease::<f32>(sum.into);
        if sum.now(batch) == Accumulation::Replace {
            place.fill(0.0);
        }
        place
    });
    let mut scratch = cpu.scratch(shapes.scratch_elements());
    let (packed, product_gradient) = scratch.split_at_mut(shapes.packed_elements());
    let mut input_gradient = dx.map(|dx| {
        pack_by_inputs(&shapes, &cpu.reading(block.weight), packed);
        cpu.write(dx, batch.samples)
    });
    backward(
        cpu.instructions,
        Backward {
            operation: &shapes,
            blocks: batch.samples.div_ceil(SAMPLE_LANES),
            input: &input,
            weights: packed,
            switches: &switches,
            output_gradient: &output_gradient,
            product_gradient,
            weight_gradient: &mut dw,
            bias_gradient: &mut db,
            input_gradient: input_gradient.as_deref_mut(),
        },
    );
}

/// Channels whose sums stay in registers together.
const CHANNEL_TILE: usize = 6;

/// Operands of `y = pool(relu(w ∗ x + b))`.
struct Forward<'a> {
    operation: &'a Convolution,
    /// Groups of 16 samples.
    blocks: usize,
    input: &'a [f32],
    /// From [`pack_by_outputs`].
    weights: &'a [f32],
    bias: &'a [f32],
    output: &'a mut [f32],
    /// Position of the maximum in its window, or −1 where relu cut it off:
    /// `[block][channel][row][column][16]`.
    switches: &'a mut [f32],
}

/// Operands of the gradients of [`Forward`]. Those of weights and bias are added to what is there.
struct Backward<'a> {
    operation: &'a Convolution,
    /// Groups of 16 samples.
    blocks: usize,
    input: &'a [f32],
    /// From [`pack_by_inputs`]; not read when there is no input gradient.
    weights: &'a [f32],
    switches: &'a [f32],
    output_gradient: &'a [f32],
    /// Scratch for one block's gradient of the product: `[output][row][column][16]`.
    product_gradient: &'a mut [f32],
    weight_gradient: &'a mut [f32],
    bias_gradient: &'a mut [f32],
    input_gradient: Option<&'a mut [f32]>,
}

/// Computes [`Forward`].
fn forward(instructions: Instructions, job: Forward<'_>) {
    job.check();
    match instructions {
        // SAFETY: the operands' lengths were checked; here and below, a device only carries
        // instructions that its core has.
        Instructions::Baseline => unsafe { forward::run::<Plain, 2>(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx2 => unsafe { forward_avx2(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx512 | Instructions::Avx512Bf16 => unsafe { forward_avx512(job) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        Instructions::Avx2 | Instructions::Avx512 | Instructions::Avx512Bf16 => unsafe {
            forward::run::<Plain, 2>(job)
        },
    }
}

/// Computes [`Backward`].
fn backward(instructions: Instructions, job: Backward<'_>) {
    job.check();
    match instructions {
        // SAFETY: the operands' lengths were checked; here and below, a device only carries
        // instructions that its core has.
        Instructions::Baseline => unsafe { backward::run::<Plain, 2>(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx2 => unsafe { backward_avx2(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx512 | Instructions::Avx512Bf16 => unsafe { backward_avx512(job) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        Instructions::Avx2 | Instructions::Avx512 | Instructions::Avx512Bf16 => unsafe {
            backward::run::<Plain, 2>(job)
        },
    }
}

/// `[outputs][taps]` to `[group of outputs][taps][output of the group]`, so that a kernel reads
/// weights in a line.
fn pack_by_outputs(operation: &Convolution, weights: &[f32], packed: &mut [f32]) {
    let taps = operation.input.channels * operation.kernel * operation.kernel;
    for (first, size) in channel_groups(operation.output.channels) {
        let group = &mut packed[first * taps..][..size * taps];
        for (index, packed) in group.iter_mut().enumerate() {
            *packed = weights[(first + index % size) * taps + index / size];
        }
    }
}

/// `[outputs][inputs][k·k]` to `[group of inputs][outputs][k·k][input of the group]`.
fn pack_by_inputs(operation: &Convolution, weights: &[f32], packed: &mut [f32]) {
    let (inputs, outputs) = (operation.input.channels, operation.output.channels);
    let taps = operation.kernel * operation.kernel;
    for (first, size) in channel_groups(inputs) {
        let group = &mut packed[first * outputs * taps..][..size * outputs * taps];
        for (index, packed) in group.iter_mut().enumerate() {
            let (output, tap, input) = (index / size / taps, index / size % taps, first + index % size);
            *packed = weights[(output * inputs + input) * taps + tap];
        }
    }
}

/// Channels in as few groups of at most [`CHANNEL_TILE`] as possible, of nearly equal size: first
/// channel and size.
#[inline(always)]
fn channel_groups(channels: usize) -> impl Iterator<Item = (usize, usize)> {
    let groups = channels.div_ceil(CHANNEL_TILE);
    (0..groups).map(move |group| {
        let (first, end) = (channels * group / groups, channels * (group + 1) / groups);
        (first, end - first)
    })
}

/// Index of the first lane of one pixel.
#[inline(always)]
fn pixel(tensor: &Images, block: usize, channel: usize, y: usize, x: usize) -> usize {
    let line = channel * tensor.stored_height() + y + tensor.halo;
    block * tensor.block_stride() + (line * tensor.stored_width() + x + tensor.halo) * SAMPLE_LANES
}

/// Elements of so many groups of samples.
fn extent(tensor: &Images, blocks: usize) -> usize {
    blocks * tensor.block_stride()
}

fn check_shapes(operation: &Convolution) {
    let Convolution { output, kernel, window, .. } = operation;
    let (height, width) = operation.product_size();
    assert!(*kernel > 0 && matches!(window, 1 | 2), "kernel {kernel}, window {window}");
    assert_eq!((output.height, output.width), (height / window, width / window), "output of a convolution");
}

impl Forward<'_> {
    fn check(&self) {
        let Convolution { input, output, kernel, .. } = self.operation;
        check_shapes(self.operation);
        assert!(self.input.len() >= extent(input, self.blocks), "input of {}", self.input.len());
        assert!(self.output.len() >= extent(output, self.blocks), "output of {}", self.output.len());
        assert!(self.weights.len() >= output.channels * input.channels * kernel * kernel, "packed weights");
        assert_eq!(self.bias.len(), output.channels, "bias");
        let switches = output.channels * output.height * output.width * self.blocks * SAMPLE_LANES;
        assert!(self.switches.len() >= switches, "switches");
    }
}

impl Backward<'_> {
    fn check(&self) {
        let Convolution { input, output, kernel, output_gradient: gradient, input_gradient, .. } = self.operation;
        check_shapes(self.operation);
        assert!(self.input.len() >= extent(input, self.blocks), "input of {}", self.input.len());
        assert_eq!(
            (gradient.channels, gradient.height, gradient.width),
            (output.channels, output.height, output.width),
            "gradient of the output"
        );
        assert!(self.output_gradient.len() >= extent(gradient, self.blocks), "gradient of the output");
        let switches = output.channels * output.height * output.width * self.blocks * SAMPLE_LANES;
        assert!(self.switches.len() >= switches, "switches");
        let (height, width) = self.operation.product_size();
        assert!(self.product_gradient.len() >= output.channels * height * width * SAMPLE_LANES, "scratch");
        assert_eq!(self.weight_gradient.len(), output.channels * input.channels * kernel * kernel, "weight gradient");
        assert_eq!(self.bias_gradient.len(), output.channels, "bias gradient");
        if let (Some(values), Some(gradient)) = (&self.input_gradient, input_gradient) {
            assert_eq!(
                (gradient.channels, gradient.height, gradient.width),
                (input.channels, input.height, input.width),
                "gradient of the input"
            );
            assert!(values.len() >= extent(gradient, self.blocks), "gradient of the input");
            assert!(self.weights.len() >= self.weight_gradient.len(), "packed weights");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn forward_avx2(job: Forward<'_>) {
    // SAFETY: the caller checked the operands.
    unsafe { forward::run::<Avx2, 2>(job) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn forward_avx512(job: Forward<'_>) {
    // SAFETY: the caller checked the operands.
    unsafe { forward::run::<Avx512, 1>(job) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn backward_avx2(job: Backward<'_>) {
    // SAFETY: the caller checked the operands.
    unsafe { backward::run::<Avx2, 2>(job) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn backward_avx512(job: Backward<'_>) {
    // SAFETY: the caller checked the operands.
    unsafe { backward::run::<Avx512, 1>(job) }
}
