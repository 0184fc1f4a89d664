//! Depthwise convolution: every channel by itself, so that vectors run over channels and nothing is
//! broadcast.
//!
//! Here a correlation has one group of all channels. Packed weights and the sums of their gradient:
//! `[panel of 16 channels][tap row][tap column][16]`.

#![allow(unsafe_code, reason = "vector loads through pointers")]

use std::ops::Range;

use super::correlate::{self, without_taps};
use super::correlation::{BLOCK_ELEMENTS, Block, Correlation, Strides};
use super::finish::Written;
use super::gradient::{self, Lines, gather};
use super::pack::Order;
use super::tile::{PANEL, spread, unrolled, with_constant};
use crate::device::Accumulation;
use crate::kernels::simd::Simd;

/// Pixels of a tile, and taps of a tile of the weights' gradient.
const TILE: usize = 7;

/// Elements that a copied block needs; the last load may end after it.
pub(super) fn workspace_elements(correlation: &Correlation) -> usize {
    correlation.block_elements(correlation.depth, BLOCK_ELEMENTS) + PANEL
}

/// Elements for the weights' gradient: sums, a block's output gradient, a block's input.
pub(super) fn gradient_workspace_elements(correlation: &Correlation) -> usize {
    let pixels = |block: Block| block.images * block.rows * correlation.x.targets;
    let most = correlation.blocks(correlation.depth, BLOCK_ELEMENTS).map(pixels).max().unwrap_or(0);
    packed_elements(correlation) + most * PANEL + workspace_elements(correlation)
}

pub(super) fn packed_elements(correlation: &Correlation) -> usize {
    correlation.panels() * correlation.y.taps * correlation.x.taps * PANEL
}

/// Packs weights `[channels][kernel rows][kernel columns]`.
pub(super) fn pack(correlation: &Correlation, order: Order, weights: &[f32], packed: &mut [f32]) {
    packed[..packed_elements(correlation)].fill(0.0);
    pairs(correlation, order, |packed_index, weight| packed[packed_index] = weights[weight]);
}

/// Every (packed index, weight index).
fn pairs(correlation: &Correlation, order: Order, mut each: impl FnMut(usize, usize)) {
    let Correlation { targets, y, x, .. } = correlation;
    for channel in 0..*targets {
        for row in 0..y.taps {
            for column in 0..x.taps {
                let line = (channel / PANEL * y.taps + row) * x.taps + column;
                let weight = channel * order.group + y.kernel(row) * order.row + x.kernel(column);
                each(line * PANEL + channel % PANEL, weight);
            }
        }
    }
}

/// Forward, or the input's gradient.
///
/// # Safety
/// The core has the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn run<S: Simd, const V: usize>(job: correlate::Job<'_, f32>) {
    const { assert!(V * S::LANES == PANEL) };
    let correlate::Job { correlation, source, packed, finish, accumulation, target, workspace } = job;
    assert!(source.len() >= correlation.source_elements(), "source of {}", source.len());
    assert!(target.len() >= correlation.target_elements(), "target of {}", target.len());
    assert!(packed.len() >= packed_elements(correlation), "packed weights of {}", packed.len());
    let Correlation { depth: channels, y, x, target_size: [height, width], .. } = correlation;
    for values in [finish.scale, finish.shift].into_iter().flatten() {
        assert_eq!(values.len(), *channels, "one factor or addend for each output channel");
    }
    if !correlation.has_taps() {
        return without_taps(correlation, accumulation, target);
    }
    assert!(workspace.len() >= workspace_elements(correlation), "{} elements of workspace", workspace.len());
    for block in correlation.blocks(*channels, BLOCK_ELEMENTS) {
        // SAFETY: the caller's promise.
        let strides = unsafe { correlation.copy::<S>(source, block, 0, *channels, workspace) };
        let steps = Steps::new(correlation, strides);
        for (image, row) in (0..block.images).flat_map(|image| (0..block.rows).map(move |row| (image, row))) {
            let from = image * strides.image + row * steps.row;
            let line = ((block.image + image) * height + y.place + y.spacing * (block.row + row)) * width;
            let taps = y.taps_inside(block.row + row);
            for (channel, weights) in (0..*channels).step_by(PANEL).zip(packed.chunks_exact(y.taps * x.taps * PANEL)) {
                let pixel = x.spacing * channels;
                let channels_left = PANEL.min(channels - channel);
                let written = Written { finish, accumulation, channel, channels: channels_left, pixel };
                for (first, count) in spread(x.targets, TILE) {
                    let into = (line + x.place + x.spacing * first) * channels + channel;
                    // SAFETY: `copy` filled what the steps reach, or would have panicked; loads of
                    // the last panel end at most `PANEL` elements later, which the workspace has.
                    // The target was measured.
                    unsafe {
                        let source = workspace.as_ptr().add(from + first * steps.pixel + channel);
                        let target = target.as_mut_ptr().add(into);
                        with_constant!(count, R, {
                            if R <= TILE {
                                let sums = steps.sums::<S, V, R>(source, weights, taps.clone(), x.taps);
                                written.write::<S, f32, V, R>(sums, target);
                            }
                        });
                    }
                }
            }
        }
    }
}

/// The gradients of weights and bias.
///
/// # Safety
/// The core has the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn run_gradient<S: Simd, const V: usize>(job: gradient::Job<'_>) {
    const { assert!(V * S::LANES == PANEL) };
    job.check();
    let gradient::Job { correlation, order, input, output_gradient, accumulation, .. } = job;
    let (input, output_gradient) = (input.in_f32(), output_gradient.in_f32());
    let gradient::Job { weight_gradient, mut bias_gradient, workspace, .. } = job;
    assert!(workspace.len() >= gradient_workspace_elements(correlation), "{} elements of workspace", workspace.len());
    if let (Some(bias), Accumulation::Replace) = (&mut bias_gradient, accumulation) {
        bias.fill(0.0);
    }
    let Correlation { depth: channels, y, x, .. } = correlation;
    let (sums, workspace) = workspace.split_at_mut(packed_elements(correlation));
    sums.fill(0.0);
    for block in correlation.blocks(*channels, BLOCK_ELEMENTS) {
        let pixels = block.images * block.rows * x.targets;
        let (gathered, copy) = workspace.split_at_mut(pixels * PANEL);
        // SAFETY: the caller's promise.
        let strides = unsafe { correlation.copy::<S>(input, block, 0, *channels, copy) };
        let steps = Steps::new(correlation, strides);
        for (channel, sums) in (0..*channels).step_by(PANEL).zip(sums.chunks_exact_mut(y.taps * x.taps * PANEL)) {
            let width = PANEL.min(channels - channel);
            gather(correlation, output_gradient, block, channel, width, gathered);
            if let Some(bias) = bias_gradient.as_deref_mut() {
                let (rows, of_a_row) = (block.images * block.rows, x.targets);
                let panel = pixels * PANEL;
                let lines = Lines { lines: gathered, line: PANEL, panel, rows, of_a_row, pixels_of_a_line: 1 };
                lines.add(&mut bias[channel..][..width]);
            }
            for row in 0..y.taps {
                let rows = y.targets_inside(row, block.row..block.row + block.rows);
                let rows = rows.start - block.row..rows.end - block.row;
                for (column, count) in spread(x.taps, TILE) {
                    // SAFETY: as in `run`; `gathered` has all pixels of the block, and the sums all
                    // taps of the panel.
                    unsafe {
                        let copy = copy.as_ptr().add(row * steps.tap_row + column * steps.tap + channel);
                        let sums = sums.as_mut_ptr().add((row * x.taps + column) * PANEL);
                        with_constant!(count, R, {
                            if R <= TILE {
                                let rows = rows.clone();
                                steps.add_products::<S, V, R>(copy, gathered, block, rows, x.targets, sums);
                            }
                        });
                    }
                }
            }
        }
    }
    match accumulation {
        Accumulation::Replace => pairs(correlation, order, |sum, weight| weight_gradient[weight] = sums[sum]),
        Accumulation::Add => pairs(correlation, order, |sum, weight| weight_gradient[weight] += sums[sum]),
    }
}

/// Distances in a copied block.
struct Steps {
    image: usize,
    /// From what one target row, or pixel, reads to what the next reads.
    row: usize,
    pixel: usize,
    tap_row: usize,
    tap: usize,
}

impl Steps {
    fn new(correlation: &Correlation, strides: Strides) -> Steps {
        let Correlation { y, x, .. } = correlation;
        Steps {
            image: strides.image,
            row: y.read_stride() * strides.row,
            pixel: x.read_stride() * strides.pixel,
            tap_row: y.read_dilation() * strides.row,
            tap: x.read_dilation() * strides.pixel,
        }
    }

    /// `Σ source · weights` over the taps of `R` pixels.
    ///
    /// # Safety
    /// The core has the instructions of `S`; the steps stay inside the source.
    #[inline(always)]
    unsafe fn sums<S: Simd, const V: usize, const R: usize>(
        &self,
        source: *const f32,
        weights: &[f32],
        rows: Range<usize>,
        columns: usize,
    ) -> [[S; V]; R] {
        // SAFETY: the caller's promise; the lines of weights are whole.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            for row in rows {
                let lines = weights[row * columns * PANEL..].chunks_exact(PANEL);
                for (column, line) in (0..columns).zip(lines) {
                    let source = source.add(row * self.tap_row + column * self.tap);
                    for v in 0..V {
                        let factor = S::load(line.as_ptr().add(v * S::LANES));
                        unrolled::<R>(|r| {
                            let value = S::load(source.add(r * self.pixel + v * S::LANES));
                            sums[r][v] = value.mul_add(factor, sums[r][v]);
                        });
                    }
                }
            }
            sums
        }
    }

    /// Adds `Σ source · gradient` over some rows of all images to the sums of `R` taps.
    ///
    /// # Safety
    /// The core has the instructions of `S`; the steps stay inside the source, and the sums hold
    /// `R` lines.
    #[inline(always)]
    unsafe fn add_products<S: Simd, const V: usize, const R: usize>(
        &self,
        source: *const f32,
        gathered: &[f32],
        block: Block,
        rows: Range<usize>,
        columns: usize,
        target: *mut f32,
    ) {
        // SAFETY: the caller's promise; the lines of the gradient are whole.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            for image in 0..block.images {
                for row in rows.clone() {
                    let lines = gathered[(image * block.rows + row) * columns * PANEL..].chunks_exact(PANEL);
                    let source = source.add(image * self.image + row * self.row);
                    for (column, line) in (0..columns).zip(lines) {
                        let source = source.add(column * self.pixel);
                        for v in 0..V {
                            let gradient = S::load(line.as_ptr().add(v * S::LANES));
                            unrolled::<R>(|r| {
                                let value = S::load(source.add(r * self.tap + v * S::LANES));
                                sums[r][v] = value.mul_add(gradient, sums[r][v]);
                            });
                        }
                    }
                }
            }
            unrolled::<R>(|r| {
                for v in 0..V {
                    let target = target.add(r * PANEL + v * S::LANES);
                    S::load(target).add(sums[r][v]).store(target);
                }
            });
        }
    }
}
