//! The gradients of weights and bias, summed over all pixels `j` of all images:
//! `dw[t][c][o] = Σ x[stride·j + dilation·t − padding][c] · dy[j][o]` and `db[o] = Σ dy[j][o]`.
//!
//! A tile of up to 14 neighbouring (tap column, input channel) × 32 output channels stays in
//! registers over all pixels of a block; the block's `dy` for these channels is copied together and
//! stays in the first-level cache.

#![allow(unsafe_code, reason = "vector loads through pointers")]

use std::ops::Range;

use super::ahead::Ahead;
use super::correlation::{BLOCK_ELEMENTS, Block, Correlation, Strides};
use super::input::Input;
use super::pack::{self, Order};
use super::pairs;
use super::tile::{PANEL, spread, unrolled, vector, with_constant};
use crate::device::Accumulation;
use crate::kernels::simd::Simd;

/// Pixels of a block, unless one row has more.
const BLOCK_PIXELS: usize = 192;
/// Panels that a tile covers at most.
const PANELS: usize = 2;

pub(super) struct Job<'a> {
    /// Forward's.
    pub(super) correlation: &'a Correlation,
    pub(super) order: Order,
    pub(super) input: Input<'a>,
    /// Of the input's type.
    pub(super) output_gradient: Input<'a>,
    pub(super) accumulation: Accumulation,
    pub(super) weight_gradient: &'a mut [f32],
    pub(super) bias_gradient: Option<&'a mut [f32]>,
    pub(super) workspace: &'a mut [f32],
}

/// Input channels of a group that a block takes together, in units of 16, so that the block has
/// enough pixels.
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

impl Job<'_> {
    pub(super) fn check(&self) {
        let Job { correlation, input, output_gradient, bias_gradient, .. } = self;
        assert!(input.len() >= correlation.source_elements(), "input of {}", input.len());
        assert!(output_gradient.len() >= correlation.target_elements(), "gradient of {}", output_gradient.len());
        assert_eq!(input.is_bf16(), output_gradient.is_bf16(), "types of the operands");
        if let Some(bias) = bias_gradient {
            assert_eq!(bias.len(), correlation.target_channels(), "gradient of the bias");
        }
    }
}

/// All blocks. `WIDE` vectors hold two panels, if registers allow, and `NARROW` one; their tiles
/// have at most so many taps.
///
/// # Safety
/// The core has the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn run<
    S: Simd,
    const WIDE: usize,
    const WIDE_TAPS: usize,
    const NARROW: usize,
    const NARROW_TAPS: usize,
>(
    job: Job<'_>,
) {
    job.check();
    let Job { correlation, order, input, output_gradient, accumulation, weight_gradient, bias_gradient, workspace } =
        job;
    let mut bias_gradient = bias_gradient;
    if let (Some(bias), Accumulation::Replace) = (&mut bias_gradient, accumulation) {
        bias.fill(0.0);
    }
    let (sums, workspace) = workspace.split_at_mut(correlation.packed_elements());
    let Correlation { groups, depth, targets, y, x, .. } = correlation;
    let panels = correlation.panels();
    let most_channels = channels_of_block(correlation);
    let mut blocks = blocks(correlation, most_channels).enumerate().peekable();
    while let Some((index, block)) = blocks.next() {
        let tiles = y.taps * x.taps * depth.div_ceil(NARROW_TAPS) * panels;
        let next = blocks.peek().map(|(_, next)| *next);
        let next_rows = |of: &Input<'_>, rows: Range<usize>| match of {
            Input::F32(values) => Ahead::new(&values[rows], tiles),
            Input::Bf16(values) => Ahead::new(&values[rows], tiles),
        };
        let mut ahead = [
            next_rows(&input, next.map_or(0..0, |next| correlation.rows_read(next))),
            next_rows(&output_gradient, next.map_or(0..0, |next| written(correlation, next))),
        ];
        let (gathered, copy) = workspace.split_at_mut(PANELS * PANEL * pixels(correlation, block));
        for (group, channels) in parts(*groups, *depth, most_channels) {
            let from = group * depth + channels.start;
            let strides = match input {
                // SAFETY: the caller's promise.
                Input::F32(input) => unsafe { correlation.copy::<S>(input, block, from, channels.len(), copy) },
                Input::Bf16(input) => pairs::copy(correlation, input, block, from, channels.len(), copy),
            };
            let mut panel = 0;
            while panel < panels {
                let wide = WIDE != NARROW && panel + 1 < panels;
                let together = if wide { 2 } else { 1 };
                let first = group * targets + panel * PANEL;
                let width = (targets - panel * PANEL).min(together * PANEL);
                let lines = lines(correlation, output_gradient, block, first, width, gathered);
                if let Some(bias) = bias_gradient.as_deref_mut().filter(|_| channels.start == 0) {
                    lines.add(&mut bias[first..][..width]);
                }
                let fresh = index == 0;
                let part = Part { correlation, block, channels: channels.clone(), copy, strides, lines, fresh };
                let sums = &mut sums[(group * panels + panel) * correlation.panel_elements()..];
                // SAFETY: the caller's promise.
                unsafe {
                    if wide {
                        part.run::<S, WIDE, WIDE_TAPS>(sums, &mut ahead);
                    } else {
                        part.run::<S, NARROW, NARROW_TAPS>(sums, &mut ahead);
                    }
                }
                panel += together;
            }
        }
    }
    pack::unpack(correlation, order, accumulation, sums, weight_gradient);
}

/// Every group, and in it ranges of at most so many of its channels, in units of 16.
fn parts(groups: usize, depth: usize, most: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    (0..groups).flat_map(move |group| {
        spread(depth.div_ceil(PANEL), most.div_ceil(PANEL))
            .map(move |(unit, units)| (group, unit * PANEL..((unit + units) * PANEL).min(depth)))
    })
}

/// Some input channels of a block × one panel, or two, of its output channels.
struct Part<'a> {
    correlation: &'a Correlation,
    block: Block,
    channels: Range<usize>,
    copy: &'a [f32],
    strides: Strides,
    lines: Lines<'a>,
    /// True if the sums replace what was there.
    fresh: bool,
}

impl Part<'_> {
    /// All tiles: `V` vectors hold the panels, for at most `TAPS` taps.
    ///
    /// # Safety
    /// The core has the instructions of `S`.
    #[inline(always)]
    unsafe fn run<S: Simd, const V: usize, const TAPS: usize>(&self, sums: &mut [f32], ahead: &mut [Ahead; 2]) {
        let Part { correlation, block, channels, copy, strides, lines, fresh } = self;
        let Correlation { depth, y, x, .. } = correlation;
        let together = lines.pixels_of_a_line;
        let walk = correlation.walk(*strides, channels.len());
        // Few channels make better tiles with those of the next tap. Many leave out the columns
        // where a tap finds zeros.
        let by_row = channels.len() == *depth && *depth < PANEL;
        let (segments, run) = if by_row { (walk.segments, walk.depth) } else { (x.taps, channels.len()) };
        for row in 0..y.taps {
            let rows = y.targets_inside(row, block.row..block.row + block.rows);
            let above = rows.start - block.row;
            for segment in 0..segments {
                // A pair of pixels begins at an even one.
                let columns =
                    if by_row || together > 1 { 0..x.targets } else { x.targets_inside(segment, 0..x.targets) };
                let scan = Scan {
                    images: block.images,
                    rows: rows.len(),
                    columns: columns.len().div_ceil(together),
                    image: strides.image,
                    row: y.read_stride() * strides.row,
                    pixel: walk.pixel * together,
                    line: lines.line,
                    lines_row: lines.of_a_row * lines.line,
                    lines_image: block.rows * lines.of_a_row * lines.line,
                    lines_panel: lines.panel,
                    sums_panel: walk.panel,
                    fresh: *fresh,
                };
                let tap = row * walk.row_step + segment * walk.segment_step;
                let copy = &copy[tap + above * scan.row + columns.start * walk.pixel..];
                let lines = &lines.lines[(above * lines.of_a_row + columns.start) * lines.line..];
                let sums = &mut sums[((row * x.taps + segment) * depth + channels.start) * PANEL..];
                for (k, count) in spread(run, TAPS) {
                    // SAFETY: the caller's promise. `copy` filled what the scan reaches, or would
                    // have panicked, and `lines` has all pixels of the block; the sums end with
                    // their last panel.
                    unsafe {
                        ahead[0].fetch::<S>();
                        ahead[1].fetch::<S>();
                        let (copy, sums) = (copy.as_ptr().add(k), sums.as_mut_ptr().add(k * PANEL));
                        with_constant!(count, R, {
                            if R <= TAPS {
                                scan.run::<S, V, R>(copy, lines.as_ptr(), sums);
                            }
                        });
                    }
                }
            }
        }
    }
}

/// The output's gradient of a block, channels `first..first + width`: in place if a pixel has no
/// others, else gathered.
#[inline(always)]
fn lines<'a>(
    correlation: &Correlation,
    output_gradient: Input<'a>,
    block: Block,
    first: usize,
    width: usize,
    gathered: &'a mut [f32],
) -> Lines<'a> {
    let all = correlation.target_channels();
    let (rows, columns) = (block.images * block.rows, correlation.x.targets);
    match output_gradient {
        Input::F32(values) if all.is_multiple_of(PANEL) && all <= PANELS * PANEL && width.is_multiple_of(PANEL) => {
            let lines = &values[written(correlation, block)][first..];
            Lines { lines, line: all, panel: PANEL, rows, of_a_row: columns, pixels_of_a_line: 1 }
        }
        Input::F32(values) => {
            gather(correlation, values, block, first, width, gathered);
            let panel = rows * columns * PANEL;
            Lines { lines: gathered, line: PANEL, panel, rows, of_a_row: columns, pixels_of_a_line: 1 }
        }
        Input::Bf16(values) => {
            pairs::gather(correlation, values, block, first, width, gathered);
            let of_a_row = columns.div_ceil(2);
            let panel = rows * of_a_row * PANEL;
            Lines { lines: gathered, line: PANEL, panel, rows, of_a_row, pixels_of_a_line: 2 }
        }
    }
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
    /// Rows of all images.
    pub(super) rows: usize,
    pub(super) of_a_row: usize,
    /// 2 if a line holds pairs of neighbouring pixels.
    pub(super) pixels_of_a_line: usize,
}

impl Lines<'_> {
    /// Adds the sums over pixels to a bias's gradient.
    #[inline(always)]
    pub(super) fn add(&self, bias: &mut [f32]) {
        let count = self.rows * self.of_a_row;
        for (panel, bias) in bias.chunks_mut(PANEL).enumerate() {
            let mut sums = [0.0; PANEL];
            for line in self.lines[panel * self.panel..].chunks(self.line).take(count) {
                for (sum, value) in sums.iter_mut().zip(&line[..PANEL]) {
                    *sum += match self.pixels_of_a_line {
                        1 => *value,
                        _ => pairs::widened(*value).iter().sum(),
                    };
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
    /// From what one image, target row or pixel reads to what the next reads.
    image: usize,
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
    unsafe fn run<S: Simd, const V: usize, const R: usize>(
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
                    let mut source = source.add(image * self.image + row * self.row);
                    let mut line = lines.add(image * self.lines_image + row * self.lines_row);
                    for _ in 0..self.columns {
                        let mut gradients = [S::splat(0.0); V];
                        for v in 0..V {
                            gradients[v] = S::load(line.add(vector::<S>(v, self.lines_panel)));
                        }
                        unrolled::<R>(|r| {
                            let value = S::splat(*source.add(r));
                            for v in 0..V {
                                sums[r][v] = value.dot(gradients[v], sums[r][v]);
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
