//! Direct convolution whose vectors run over samples.
//!
//! Images lie as `[group of 16 samples][channel][row][column][16]`. Sixteen samples of one pixel are adjacent, so every
//! load is whole and every lane does useful work, whatever the width of image or kernel; nothing is gathered into a
//! matrix first. Forward and the input's gradient keep 6 channels × 16 samples in registers and broadcast weights;
//! the weights' gradient keeps 2 outputs × 5 taps and broadcasts nothing.

#![allow(unsafe_code, reason = "vector loads through pointers, and functions compiled for detected instructions")]

mod backward;
mod forward;

use super::Instructions;
use super::simd::Plain;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use crate::device::{Convolution, SAMPLE_LANES, Tensor};

/// Channels whose sums stay in registers together.
const CHANNEL_TILE: usize = 6;

/// Operands of `y = pool(relu(w ∗ x + b))`.
pub(crate) struct Forward<'a> {
    pub(crate) operation: &'a Convolution,
    /// Groups of 16 samples.
    pub(crate) blocks: usize,
    pub(crate) input: &'a [f32],
    /// From [`pack_by_outputs`].
    pub(crate) weights: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) output: &'a mut [f32],
    /// Position of the maximum in its window, or −1 where relu cut it off: `[block][channel][row][column][16]`.
    pub(crate) switches: &'a mut [f32],
}

/// Operands of the gradients of [`Forward`]. Those of weights and bias are added to what is there.
pub(crate) struct Backward<'a> {
    pub(crate) operation: &'a Convolution,
    /// Groups of 16 samples.
    pub(crate) blocks: usize,
    pub(crate) input: &'a [f32],
    /// From [`pack_by_inputs`]; not read when there is no input gradient.
    pub(crate) weights: &'a [f32],
    pub(crate) switches: &'a [f32],
    pub(crate) output_gradient: &'a [f32],
    /// Scratch for one block's gradient of the product: `[output][row][column][16]`.
    pub(crate) product_gradient: &'a mut [f32],
    pub(crate) weight_gradient: &'a mut [f32],
    pub(crate) bias_gradient: &'a mut [f32],
    pub(crate) input_gradient: Option<&'a mut [f32]>,
}

/// Computes [`Forward`].
pub(crate) fn forward(instructions: Instructions, job: Forward<'_>) {
    job.check();
    match instructions {
        // SAFETY: the operands' lengths were checked; here and below, a device only carries instructions that its
        // core has.
        Instructions::Baseline => unsafe { forward::run::<Plain, 2>(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx2 => unsafe { forward_avx2(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx512 => unsafe { forward_avx512(job) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        Instructions::Avx2 | Instructions::Avx512 => unsafe { forward::run::<Plain, 2>(job) },
    }
}

/// Computes [`Backward`].
pub(crate) fn backward(instructions: Instructions, job: Backward<'_>) {
    job.check();
    match instructions {
        // SAFETY: the operands' lengths were checked; here and below, a device only carries instructions that its
        // core has.
        Instructions::Baseline => unsafe { backward::run::<Plain, 2>(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx2 => unsafe { backward_avx2(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx512 => unsafe { backward_avx512(job) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        Instructions::Avx2 | Instructions::Avx512 => unsafe { backward::run::<Plain, 2>(job) },
    }
}

/// `[outputs][taps]` to `[group of outputs][taps][output of the group]`, so that a kernel reads weights in a line.
pub(crate) fn pack_by_outputs(operation: &Convolution, weights: &[f32], packed: &mut [f32]) {
    let taps = operation.input.channels * operation.kernel * operation.kernel;
    for (first, size) in channel_groups(operation.output.channels) {
        let group = &mut packed[first * taps..][..size * taps];
        for (index, packed) in group.iter_mut().enumerate() {
            *packed = weights[(first + index % size) * taps + index / size];
        }
    }
}

/// `[outputs][inputs][k·k]` to `[group of inputs][outputs][k·k][input of the group]`.
pub(crate) fn pack_by_inputs(operation: &Convolution, weights: &[f32], packed: &mut [f32]) {
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

/// Channels in as few groups of at most [`CHANNEL_TILE`] as possible, of nearly equal size: first channel and size.
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
fn pixel(tensor: &Tensor, block: usize, channel: usize, y: usize, x: usize) -> usize {
    let line = channel * tensor.stored_height() + y + tensor.halo;
    block * tensor.block_stride() + (line * tensor.stored_width() + x + tensor.halo) * tensor.row_stride()
}

/// Elements up to the end of the last lane that a kernel touches.
fn extent(tensor: &Tensor, blocks: usize) -> usize {
    let last = tensor.sample_elements() - 1;
    (blocks - 1) * tensor.block_stride() + last * tensor.row_stride() + SAMPLE_LANES
}

fn check_shapes(operation: &Convolution, blocks: usize) {
    let Convolution { input, output, kernel, window, .. } = operation;
    let (height, width) = operation.product_size();
    assert!(blocks > 0 && blocks * SAMPLE_LANES <= input.capacity.min(output.capacity), "{blocks} groups of samples");
    assert_eq!(input.row_stride(), SAMPLE_LANES, "a convolution reads images");
    assert!(*kernel > 0 && matches!(window, 1 | 2), "kernel {kernel}, window {window}");
    assert_eq!((output.height, output.width), (height / window, width / window), "output of a convolution");
}

impl Forward<'_> {
    fn check(&self) {
        let Convolution { input, output, kernel, .. } = self.operation;
        check_shapes(self.operation, self.blocks);
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
        let Convolution { input, output, kernel, gradients, .. } = self.operation;
        check_shapes(self.operation, self.blocks);
        assert!(self.input.len() >= extent(input, self.blocks), "input of {}", self.input.len());
        let gradient = &gradients.output;
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
        if let (Some(values), Some(gradient)) = (&self.input_gradient, &gradients.input) {
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
