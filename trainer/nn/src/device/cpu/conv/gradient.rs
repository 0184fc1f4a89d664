//! The gradients of weights and bias: `dw[t][c][o] = Σ x[stride·j + dilation·t − padding][c] · dy[j][o]` over all pixels
//! `j` of all images, and `db[o] = Σ dy[j][o]`.
//!
//! A tile of up to 14 neighbouring (tap column, input channel) × 32 output channels stays in registers over all pixels
//! of a block; the block's `dy` for these channels is copied together and stays in the first-level cache.

#![allow(unsafe_code, reason = "vector loads through pointers")]

use std::ops::Range;

use super::correlation::{BLOCK_ELEMENTS, Block, Correlation, Strides};
use super::lanes::Lanes;
use super::pack::{self, Order};
use super::tile::{Ahead, PANEL, spread, unrolled, vector, with_constant};
use crate::device::Accumulation;

/// Pixels of a block, unless one row has more.
const BLOCK_PIXELS: usize = 192;
/// Panels that a tile covers at most.
const PANELS: usize = 2;

pub(super) struct Job<'a> {
    /// Forward's.
    pub(super) correlation: &'a Correlation,
    pub(super) order: Order,
    pub(super) input: &'a [f32],
    pub(super) output_gradient: &'a [f32],
    pub(super) accumulation: Accumulation,
    pub(super) weight_gradient: &'a mut [f32],
    pub(super) bias_gradient: Option<&'a mut [f32]>,
    pub(super) workspace: &'a mut [f32],
}

/// Input channels of a group that a block takes together, in units of 16, so that the block has enough pixels.
fn channels_of_block(correlation: &Correlation) -> usize {
    let Correlation { batch, depth, y, x, .. } = correlation;
    let targets = y.targets * x.targets;
    let read = y.read_by(y.targets) * x.read_by(x.targets);
    let pixels = BLOCK_PIXELS.min(batch * targets) * read / targets;
    let most = (BLOCK_ELEMENTS / pixels.max(1) / PANEL).max(1) * PANEL;
    if *depth <= most { *depth } else { most }
}

fn blocks(correlation: &Correlation, channels: usize) -> impl Iterator<Item = Block> + use<> {
    correlation.blocks(channels, limit(correlation, channels))
}

/// Elements of a block: at most `BLOCK_PIXELS` targets where they fit.
fn limit(correlation: &Correlation, channels: usize) -> usize {
    let Correlation { y, x, .. } = correlation;
    let targets = y.targets * x.targets;
    let elements = if targets <= BLOCK_PIXELS {
        BLOCK_PIXELS / targets * correlation.copied(channels, y.targets).image
    } else {
        correlation.copied(channels, (BLOCK_PIXELS / x.targets).max(1)).image
    };
    elements.min(BLOCK_ELEMENTS)
}

/// Elements of workspace: sums, a block's output gradient, a block's input.
pub(super) fn workspace_elements(correlation: &Correlation) -> usize {
    let channels = channels_of_block(correlation);
    let pixels = blocks(correlation, channels).map(|block| pixels(correlation, block)).max().unwrap_or(0);
    correlation.packed_elements()
        + PANELS * PANEL * pixels
        + correlation.block_elements(channels, limit(correlation, channels))
}

fn pixels(correlation: &Correlation, block: Block) -> usize {
    block.images * block.rows * correlation.x.targets
}

/// # Safety
/// The core has the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn run<S: Lanes, const WIDE: usize, const NARROW: usize, const TAPS: usize>(job: Job<'_>) {
    let Job { correlation, order, input, output_gradient, accumulation, weight_gradient, bias_gradient, workspace } =
        job;
    assert!(input.len() >= correlation.source_elements(), "input of {}", input.len());
    assert!(output_gradient.len() >= correlation.target_elements(), "gradient of the output");
    let mut bias_gradient = bias_gradient;
    let Correlation { groups, depth, targets, y, x, .. } = correlation;
    if let Some(bias) = &mut bias_gradient {
        assert_eq!(bias.len(), groups * targets, "gradient of the bias");
        if accumulation == Accumulation::Replace {
            bias.fill(0.0);
        }
    }
    let (sums, workspace) = workspace.split_at_mut(correlation.packed_elements());
    let channels = channels_of_block(correlation);
    // One panel leaves registers for more taps.
    let most = if WIDE == NARROW { TAPS } else { TAPS + 2 };
    let panels = correlation.panels();
    let panel_elements = correlation.panel_elements();
    let in_place = *groups == 1 && targets.is_multiple_of(PANEL) && *targets <= PANELS * PANEL;
    let mut blocks = blocks(correlation, channels).enumerate().peekable();
    while let Some((index, block)) = blocks.next() {
        let next = blocks.peek().map(|(_, next)| *next);
        let tiles = y.taps * x.taps * depth.div_ceil(most) * panels;
        let mut input_ahead = Ahead::new(next.map_or(&[][..], |next| &input[correlation.rows_read(next)]), tiles);
        let mut gradient_ahead =
            Ahead::new(next.map_or(&[][..], |next| &output_gradient[written(correlation, next)]), tiles);
        let pixels = pixels(correlation, block);
        let (gathered, copy) = workspace.split_at_mut(PANELS * PANEL * pixels);
        for group in 0..*groups {
            for (unit, units) in spread(depth.div_ceil(PANEL), channels.div_ceil(PANEL)) {
                let channel = unit * PANEL;
                let channels = (units * PANEL).min(depth - channel);
                let from = group * depth + channel;
                // SAFETY: the caller's promise.
                let strides = unsafe { correlation.copy::<S>(input, block, from, channels, copy) };
                let walk = correlation.walk(strides, channels, [1, 1]);
                // The taps of a row are neighbours among the sums only if a block has all channels. Few channels make
                // better tiles together; many leave out the columns where a tap finds zeros.
                let together = channels == *depth && channels < PANEL;
                let (segments, run) = if together { (walk.segments, walk.depth) } else { (x.taps, channels) };
                let mut panel = 0;
                while panel < panels {
                    let wide = WIDE != NARROW && panel + 1 < panels;
                    let panels_at_once = if wide { 2 } else { 1 };
                    let first = group * targets + panel * PANEL;
                    let width = (targets - panel * PANEL).min(panels_at_once * PANEL);
                    let lines = if in_place {
                        let lines = &output_gradient[written(correlation, block)];
                        Lines { lines: &lines[first..], line: *targets, panel: PANEL }
                    } else {
                        gather(correlation, output_gradient, block, first, width, gathered);
                        Lines { lines: &*gathered, line: PANEL, panel: pixels * PANEL }
                    };
                    if let Some(bias) = bias_gradient.as_deref_mut().filter(|_| channel == 0) {
                        lines.add(pixels, &mut bias[first..][..width]);
                    }
                    let start = (group * panels + panel) * panel_elements;
                    let scan = Scan {
                        images: block.images,
                        rows: block.rows,
                        columns: x.targets,
                        strides,
                        row: y.read_stride() * strides.row,
                        pixel: walk.pixel,
                        line: lines.line,
                        lines_row: x.targets * lines.line,
                        lines_image: block.rows * x.targets * lines.line,
                        lines_panel: lines.panel,
                        sums_panel: panel_elements,
                        fresh: index == 0,
                    };
                    for row in 0..walk.rows {
                        let rows = y.targets_inside(row, block.row..block.row + block.rows);
                        let above = rows.start - block.row;
                        let scan = Scan { rows: rows.len(), ..scan };
                        for segment in 0..segments {
                            let columns = if together { 0..x.targets } else { x.targets_inside(segment, 0..x.targets) };
                            let scan = Scan { columns: columns.len(), ..scan };
                            for (k, count) in spread(run, if wide { TAPS } else { most }) {
                                let tap = row * walk.row_step + segment * walk.segment_step;
                                let from = above * scan.row + columns.start * scan.pixel + tap + k;
                                let skipped = above * x.targets + columns.start;
                                let lines = lines.lines[skipped * lines.line..].as_ptr();
                                let into = start + ((row * x.taps + segment) * depth + channel + k) * PANEL;
                                // SAFETY: `copy` filled what the strides reach, or would have panicked, `gather` its
                                // pixels; the sums end with their last panel.
                                unsafe {
                                    let source = copy.as_ptr().add(from);
                                    let sums = sums.as_mut_ptr().add(into);
                                    input_ahead.fetch::<S>();
                                    gradient_ahead.fetch::<S>();
                                    if wide {
                                        with_constant!(count, 14, R, scan.run::<S, WIDE, R>(source, lines, sums));
                                    } else {
                                        with_constant!(count, 16, R, scan.run::<S, NARROW, R>(source, lines, sums));
                                    }
                                }
                            }
                        }
                    }
                    panel += panels_at_once;
                }
            }
        }
    }
    pack::unpack(correlation, order, accumulation, sums, weight_gradient);
}

/// `[panel][pixel][16]` of channels `first..first + width` of a block, zeros after the last.
#[inline(always)]
pub(super) fn gather(
    correlation: &Correlation,
    values: &[f32],
    block: Block,
    first: usize,
    width: usize,
    gathered: &mut [f32],
) {
    let all = correlation.groups * correlation.targets;
    let [height, columns] = correlation.target_size;
    let pixels = pixels(correlation, block);
    for (panel, gathered) in gathered.chunks_mut(pixels * PANEL).take(width.div_ceil(PANEL)).enumerate() {
        let lanes = PANEL.min(width - panel * PANEL);
        // A block has whole rows: its pixels are neighbours, image after image.
        for (image, gathered) in gathered.chunks_mut(block.rows * columns * PANEL).enumerate() {
            let start = ((block.image + image) * height + block.row) * columns;
            let values = values[start * all + first + panel * PANEL..].chunks(all);
            let gathered = gathered.chunks_exact_mut(PANEL).zip(values);
            if lanes == PANEL {
                gathered.for_each(|(gathered, pixel)| gathered.copy_from_slice(&pixel[..PANEL]));
            } else {
                gathered.for_each(|(gathered, pixel)| {
                    gathered[..lanes].copy_from_slice(&pixel[..lanes]);
                    gathered[lanes..].fill(0.0);
                });
            }
        }
    }
}

/// The output's gradient of some pixels, in panels of 16 channels.
pub(super) struct Lines<'a> {
    pub(super) lines: &'a [f32],
    /// From a pixel to the next.
    pub(super) line: usize,
    /// From a panel to the next.
    pub(super) panel: usize,
}

impl Lines<'_> {
    /// Adds the sums over pixels to a bias's gradient.
    #[inline(always)]
    pub(super) fn add(&self, pixels: usize, bias: &mut [f32]) {
        for (panel, bias) in bias.chunks_mut(PANEL).enumerate() {
            let mut sums = [0.0; PANEL];
            for line in self.lines[panel * self.panel..].chunks(self.line).take(pixels) {
                for (sum, value) in sums.iter_mut().zip(&line[..PANEL]) {
                    *sum += value;
                }
            }
            bias.iter_mut().zip(sums).for_each(|(bias, sum)| *bias += sum);
        }
    }
}

/// The elements of a block in the output.
fn written(correlation: &Correlation, block: Block) -> Range<usize> {
    let [height, columns] = correlation.target_size;
    let elements = columns * correlation.groups * correlation.targets;
    let start = (block.image * height + block.row) * elements;
    let end = ((block.image + block.images - 1) * height + block.row + block.rows) * elements;
    start..end
}

/// The pixels of a block, and the distances around them.
#[derive(Clone, Copy)]
struct Scan {
    images: usize,
    rows: usize,
    columns: usize,
    strides: Strides,
    /// From what one target row reads to what the next reads.
    row: usize,
    pixel: usize,
    /// Of the output's gradient: from a pixel, row, image or panel to the next.
    line: usize,
    lines_row: usize,
    lines_image: usize,
    lines_panel: usize,
    sums_panel: usize,
    /// True if the sums replace what was there.
    fresh: bool,
}

impl Scan {
    /// Adds `source[r] · lines[v]` over all pixels to `R` lines of sums.
    ///
    /// # Safety
    /// The core has the instructions of `S`; the distances stay inside the three operands.
    #[inline(always)]
    unsafe fn run<S: Lanes, const V: usize, const R: usize>(
        &self,
        source: *const f32,
        lines: *const f32,
        target: *mut f32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            for image in 0..self.images {
                for row in 0..self.rows {
                    let mut source = source.add(image * self.strides.image + row * self.row);
                    let mut line = lines.add(image * self.lines_image + row * self.lines_row);
                    for _ in 0..self.columns {
                        let mut gradients = [S::splat(0.0); V];
                        for v in 0..V {
                            gradients[v] = S::load(line.add(vector::<S>(v, self.lines_panel)));
                        }
                        unrolled::<R>(|r| {
                            let value = S::splat(*source.add(r));
                            for v in 0..V {
                                sums[r][v] = value.mul_add(gradients[v], sums[r][v]);
                            }
                        });
                        source = source.wrapping_add(self.pixel);
                        line = line.wrapping_add(self.line);
                    }
                }
            }
            let line = |r: usize, v: usize| target.add(r * PANEL + vector::<S>(v, self.sums_panel));
            if self.fresh {
                unrolled::<R>(|r| (0..V).for_each(|v| sums[r][v].store(line(r, v))));
            } else {
                unrolled::<R>(|r| (0..V).for_each(|v| S::load(line(r, v)).add(sums[r][v]).store(line(r, v))));
            }
        }
    }
}
