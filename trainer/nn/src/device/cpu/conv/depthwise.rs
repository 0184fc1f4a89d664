//! Depthwise convolution: every channel by itself, so that vectors run over channels and nothing is broadcast.
//!
//! Packed weights and their gradient's sums: `[panel of 16 channels][tap row][tap column][16]`.

#![allow(unsafe_code, reason = "vector loads through pointers")]

use super::correlation::{BLOCK_ELEMENTS, Correlation, Written};
use super::gradient::{Lines, gather};
use super::lanes::Lanes;
use super::tile::{PANEL, spread, with_constant};
use crate::device::Accumulation;

/// Pixels of a tile.
const PIXELS: usize = 7;
/// Taps of a tile of the weights' gradient.
const TAPS: usize = 7;

/// Elements that a copied block and a load past its end need; `correlation` has one group of all channels.
pub(super) fn workspace_elements(correlation: &Correlation) -> usize {
    correlation.block_elements(correlation.depth, BLOCK_ELEMENTS) + PANEL
}

/// Elements for the weights' gradient: sums, a block's output gradient, a block's input.
pub(super) fn gradient_workspace_elements(correlation: &Correlation) -> usize {
    let pixels = |images: usize, rows: usize| images * rows * correlation.x.targets * PANEL;
    let most = correlation
        .blocks(correlation.depth, BLOCK_ELEMENTS)
        .map(|block| pixels(block.images, block.rows))
        .max()
        .unwrap_or(0);
    packed_elements(correlation) + most + workspace_elements(correlation)
}

pub(super) fn packed_elements(correlation: &Correlation) -> usize {
    correlation.panels() * correlation.y.taps * correlation.x.taps * PANEL
}

/// Packs weights `[channels][kernel rows][kernel columns]`; `columns` is the kernel's width, `taps` its size.
pub(super) fn pack(correlation: &Correlation, columns: usize, taps: usize, weights: &[f32], packed: &mut [f32]) {
    packed[..packed_elements(correlation)].fill(0.0);
    pairs(correlation, columns, taps, |packed_index, weight| packed[packed_index] = weights[weight]);
}

fn pairs(correlation: &Correlation, columns: usize, taps: usize, mut each: impl FnMut(usize, usize)) {
    let Correlation { targets, y, x, .. } = correlation;
    for channel in 0..*targets {
        for row in 0..y.taps {
            for column in 0..x.taps {
                let line = (channel / PANEL * y.taps + row) * x.taps + column;
                let weight = channel * taps + y.kernel(row) * columns + x.kernel(column);
                each(line * PANEL + channel % PANEL, weight);
            }
        }
    }
}

/// # Safety
/// The core has the instructions of `S`; `V` vectors hold a panel.
#[inline(always)]
pub(super) unsafe fn run<S: Lanes, const V: usize>(job: super::correlation::Job<'_>) {
    const { assert!(V * S::LANES == PANEL) };
    let super::correlation::Job { correlation, source, packed, finish, accumulation, target, workspace } = job;
    assert!(source.len() >= correlation.source_elements(), "source of {}", source.len());
    assert!(target.len() >= correlation.target_elements(), "target of {}", target.len());
    assert!(packed.len() >= packed_elements(correlation), "packed weights of {}", packed.len());
    let Correlation { depth: channels, y, x, target_size, .. } = correlation;
    for bound in [finish.scale, finish.shift].into_iter().flatten() {
        assert_eq!(bound.len(), *channels, "one factor or addend for each output channel");
    }
    if y.taps * x.taps == 0 {
        return super::correlation::without_taps(correlation, finish, accumulation, target);
    }
    assert!(workspace.len() >= workspace_elements(correlation), "{} elements of workspace", workspace.len());
    for block in correlation.blocks(*channels, BLOCK_ELEMENTS) {
        // SAFETY: the caller's promise.
        let strides = unsafe { correlation.copy::<S>(source, block, 0, *channels, workspace) };
        let row_step = y.read_dilation() * strides.row;
        let tap_step = x.read_dilation() * strides.pixel;
        let pixel = x.read_stride() * strides.pixel;
        for image in 0..block.images {
            for row in 0..block.rows {
                let target_row = y.place + y.spacing * (block.row + row);
                let line = ((block.image + image) * target_size[0] + target_row) * target_size[1];
                for (panel, weights) in
                    packed.chunks_exact(y.taps * x.taps * PANEL).take(correlation.panels()).enumerate()
                {
                    let channel = panel * PANEL;
                    let written = Written {
                        finish,
                        accumulation,
                        channel,
                        channels: PANEL.min(channels - channel),
                        pixel: x.spacing * channels,
                    };
                    for (first, count) in spread(x.targets, PIXELS) {
                        let from =
                            image * strides.image + row * y.read_stride() * strides.row + first * pixel + channel;
                        let into = (line + x.place + x.spacing * first) * channels + channel;
                        // SAFETY: `copy` filled what the strides reach, or would have panicked; loads of the last
                        // panel end at most `PANEL` elements later, which the workspace has. The target was measured.
                        unsafe {
                            let source = workspace.as_ptr().add(from);
                            let target = target.as_mut_ptr().add(into);
                            with_constant!(count, 14, R, {
                                let mut sums = [[S::splat(0.0); V]; R];
                                for tap_row in y.taps_inside(block.row + row) {
                                    for tap in 0..x.taps {
                                        let source = source.add(tap_row * row_step + tap * tap_step);
                                        let factors = weights.as_ptr().add((tap_row * x.taps + tap) * PANEL);
                                        for v in 0..V {
                                            let factor = S::load(factors.add(v * S::LANES));
                                            for r in 0..R {
                                                let value = S::load(source.add(r * pixel + v * S::LANES));
                                                sums[r][v] = value.mul_add(factor, sums[r][v]);
                                            }
                                        }
                                    }
                                }
                                written.write::<S, V, R>(sums, target);
                            });
                        }
                    }
                }
            }
        }
    }
}

pub(super) struct Gradient<'a> {
    /// Forward's.
    pub(super) correlation: &'a Correlation,
    pub(super) input: &'a [f32],
    pub(super) output_gradient: &'a [f32],
    pub(super) accumulation: Accumulation,
    pub(super) weight_gradient: &'a mut [f32],
    pub(super) bias_gradient: Option<&'a mut [f32]>,
    pub(super) workspace: &'a mut [f32],
}

/// # Safety
/// The core has the instructions of `S`; `V` vectors hold a panel.
#[inline(always)]
pub(super) unsafe fn run_gradient<S: Lanes, const V: usize>(job: Gradient<'_>) {
    const { assert!(V * S::LANES == PANEL) };
    let Gradient { correlation, input, output_gradient, accumulation, weight_gradient, bias_gradient, workspace } = job;
    assert!(input.len() >= correlation.source_elements(), "input of {}", input.len());
    assert!(output_gradient.len() >= correlation.target_elements(), "gradient of the output");
    assert!(workspace.len() >= gradient_workspace_elements(correlation), "{} elements of workspace", workspace.len());
    let mut bias_gradient = bias_gradient;
    let Correlation { depth: channels, y, x, .. } = correlation;
    if let Some(bias) = &mut bias_gradient {
        assert_eq!(bias.len(), *channels, "gradient of the bias");
        if accumulation == Accumulation::Replace {
            bias.fill(0.0);
        }
    }
    let (sums, workspace) = workspace.split_at_mut(packed_elements(correlation));
    sums.fill(0.0);
    for block in correlation.blocks(*channels, BLOCK_ELEMENTS) {
        let pixels = block.images * block.rows * x.targets;
        let (gathered, copy) = workspace.split_at_mut(pixels * PANEL);
        // SAFETY: the caller's promise.
        let strides = unsafe { correlation.copy::<S>(input, block, 0, *channels, copy) };
        let pixel = x.read_stride() * strides.pixel;
        let tap_step = x.read_dilation() * strides.pixel;
        for panel in 0..correlation.panels() {
            let channel = panel * PANEL;
            let width = PANEL.min(channels - channel);
            gather(correlation, output_gradient, block, channel, width, gathered);
            if let Some(bias) = bias_gradient.as_deref_mut() {
                let lines = Lines { lines: gathered, line: PANEL, panel: pixels * PANEL };
                lines.add(pixels, &mut bias[channel..][..width]);
            }
            for tap_row in 0..y.taps {
                let rows = y.targets_inside(tap_row, block.row..block.row + block.rows);
                let rows = rows.start - block.row..rows.end - block.row;
                for (tap, count) in spread(x.taps, TAPS) {
                    let from = tap_row * y.read_dilation() * strides.row + tap * tap_step + channel;
                    let into = ((panel * y.taps + tap_row) * x.taps + tap) * PANEL;
                    // SAFETY: as in `run`; the sums end with their last panel.
                    unsafe {
                        let source = copy.as_ptr().add(from);
                        let target = sums.as_mut_ptr().add(into);
                        with_constant!(count, 14, R, {
                            let mut sums = [[S::splat(0.0); V]; R];
                            for image in 0..block.images {
                                let above = (image * block.rows + rows.start) * x.targets;
                                let mut line = gathered.as_ptr().add(above * PANEL);
                                for row in rows.clone() {
                                    let start = image * strides.image + row * y.read_stride() * strides.row;
                                    let mut source = source.add(start);
                                    for _ in 0..x.targets {
                                        for v in 0..V {
                                            let gradient = S::load(line.add(v * S::LANES));
                                            for r in 0..R {
                                                let value = S::load(source.wrapping_add(r * tap_step + v * S::LANES));
                                                sums[r][v] = value.mul_add(gradient, sums[r][v]);
                                            }
                                        }
                                        source = source.wrapping_add(pixel);
                                        line = line.add(PANEL);
                                    }
                                }
                            }
                            for r in 0..R {
                                for v in 0..V {
                                    let target = target.add(r * PANEL + v * S::LANES);
                                    S::load(target).add(sums[r][v]).store(target);
                                }
                            }
                        });
                    }
                }
            }
        }
    }
    let (columns, taps) = (x.taps, y.taps * x.taps);
    match accumulation {
        Accumulation::Replace => pairs(correlation, columns, taps, |sum, weight| weight_gradient[weight] = sums[sum]),
        Accumulation::Add => pairs(correlation, columns, taps, |sum, weight| weight_gradient[weight] += sums[sum]),
    }
}
