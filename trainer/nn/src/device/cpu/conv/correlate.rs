//! Forward, and the input's gradient, block by block.
//!
//! A block of rows is copied with its zero padding into the workspace, unless it can be read in
//! place. Then every tile of up to 14 pixels × 32 channels stays in registers over all taps and
//! source channels. For kernels without dilation, the taps of one kernel row and their channels are
//! adjacent: one run of `taps · channels` elements, which also fills the loop for images of three
//! channels.

#![allow(unsafe_code, reason = "vector loads through pointers")]

use super::ahead::Ahead;
use super::correlation::{Block, Correlation, Strides};
use super::finish::{Finish, Written};
use super::tile::{PANEL, Walk, spread, with_constant};
use crate::device::Accumulation;
use crate::kernels::simd::Simd;
use crate::kernels::stored::Stored;

/// Rows up to this long leave out the columns where a tap finds zeros: that saves more than one
/// long run for all taps of a kernel row, if there are enough channels.
const SHORT_ROW: usize = 16;
const ENOUGH_CHANNELS: usize = 32;

pub(super) struct Job<'a, T> {
    pub(super) correlation: &'a Correlation,
    pub(super) source: &'a [f32],
    /// From [`super::pack`].
    pub(super) packed: &'a [f32],
    pub(super) finish: Finish<'a>,
    pub(super) accumulation: Accumulation,
    pub(super) target: &'a mut [T],
    pub(super) workspace: &'a mut [f32],
}

impl<T> Job<'_, T> {
    fn check(&self) {
        let Job { correlation, source, packed, finish, target, .. } = self;
        assert!(source.len() >= correlation.source_elements(), "source of {}", source.len());
        assert!(target.len() >= correlation.target_elements(), "target of {}", target.len());
        assert!(packed.len() >= correlation.packed_elements(), "packed weights of {}", packed.len());
        for values in [finish.scale, finish.shift].into_iter().flatten() {
            assert_eq!(values.len(), correlation.target_channels(), "one factor or addend for each output channel");
        }
    }
}

/// All blocks. `WIDE` vectors hold two panels, if registers allow, and `NARROW` one; their tiles
/// have at most so many pixels.
///
/// # Safety
/// The core has the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn run<
    S: Simd,
    T: Stored,
    const WIDE: usize,
    const WIDE_PIXELS: usize,
    const NARROW: usize,
    const NARROW_PIXELS: usize,
>(
    job: Job<'_, T>,
) {
    job.check();
    let Job { correlation, source, packed, finish, accumulation, target, workspace } = job;
    if !correlation.has_taps() {
        return without_taps(correlation, accumulation, target);
    }
    let panels = correlation.panels();
    let mut blocks = correlation.blocks(correlation.depth, correlation.limit()).peekable();
    while let Some(block) = blocks.next() {
        let pixels = if panels > 1 { WIDE_PIXELS } else { NARROW_PIXELS };
        let tiles = block.images * block.rows * correlation.x.targets.div_ceil(pixels);
        let next = blocks.peek().map_or(&[][..], |next| &source[correlation.rows_read(*next)]);
        let mut ahead = Ahead::new(next, tiles);
        for group in 0..correlation.groups {
            // SAFETY: the caller's promise.
            let read = unsafe { Read::new::<S>(correlation, source, block, group, workspace) };
            let mut panel = 0;
            while panel < panels {
                let wide = WIDE != NARROW && panel + 1 < panels;
                let together = if wide { 2 } else { 1 };
                let part = Part {
                    correlation,
                    block,
                    read: &read,
                    weights: &packed[(group * panels + panel) * correlation.panel_elements()..],
                    written: Written {
                        finish,
                        accumulation,
                        channel: group * correlation.targets + panel * PANEL,
                        channels: (correlation.targets - panel * PANEL).min(together * PANEL),
                        pixel: correlation.x.spacing * correlation.target_channels(),
                    },
                };
                // SAFETY: the caller's promise; `check` compared the lengths with the shapes.
                unsafe {
                    if wide {
                        part.run::<S, T, WIDE, WIDE_PIXELS>(target, &mut ahead);
                    } else {
                        part.run::<S, T, NARROW, NARROW_PIXELS>(target, &mut ahead);
                    }
                }
                panel += together;
            }
        }
    }
}

/// Where one group of a block is read.
struct Read {
    start: *const f32,
    strides: Strides,
    walk: Walk,
}

impl Read {
    /// # Safety
    /// The core has the instructions of `S`; the source holds its shape.
    #[inline(always)]
    unsafe fn new<S: Simd>(
        correlation: &Correlation,
        source: &[f32],
        block: Block,
        group: usize,
        workspace: &mut [f32],
    ) -> Read {
        let channel = group * correlation.depth;
        let (start, strides) = if correlation.in_place() {
            let (start, strides) = correlation.placed(block);
            (source[start + channel..].as_ptr(), strides)
        } else {
            // SAFETY: the caller's promise.
            let strides = unsafe { correlation.copy::<S>(source, block, channel, correlation.depth, workspace) };
            (workspace.as_ptr(), strides)
        };
        Read { start, strides, walk: correlation.walk(strides, correlation.depth) }
    }
}

/// One panel, or two, of a block's target channels.
struct Part<'a> {
    correlation: &'a Correlation,
    block: Block,
    read: &'a Read,
    weights: &'a [f32],
    written: Written<'a>,
}

impl Part<'_> {
    /// All tiles: `V` vectors hold the panels, for at most `PIXELS` pixels.
    ///
    /// # Safety
    /// The core has the instructions of `S`; what is read, weights and target hold the block.
    #[inline(always)]
    unsafe fn run<S: Simd, T: Stored, const V: usize, const PIXELS: usize>(&self, target: &mut [T], ahead: &mut Ahead) {
        let Part { correlation, block, read, weights, written } = self;
        let Correlation { depth, y, x, target_size: [height, width], .. } = correlation;
        let Read { start, strides, walk } = read;
        // Vectors of half a panel have half the registers: there these tiles would not fit.
        let skips = S::LANES == PANEL && x.targets <= SHORT_ROW && *depth >= ENOUGH_CHANNELS;
        let by_column = Walk { segments: x.taps, depth: *depth, ..*walk };
        for image in 0..block.images {
            for row in 0..block.rows {
                let taps = y.taps_inside(block.row + row);
                let (walk, by_column) = (Walk { rows: taps.len(), ..*walk }, Walk { rows: taps.len(), ..by_column });
                let weights = weights[taps.start * x.taps * depth * PANEL..].as_ptr();
                let from = image * strides.image + row * y.read_stride() * strides.row + taps.start * walk.row_step;
                let line = ((block.image + image) * height + y.place + y.spacing * (block.row + row)) * width;
                for (first, count) in spread(x.targets, PIXELS) {
                    let into = (line + x.place + x.spacing * first) * correlation.target_channels() + written.channel;
                    let (left, right) = (x.taps_inside(first).start, x.taps_inside(first + count - 1).end);
                    let whole = left == 0 && right == x.taps;
                    // SAFETY: the caller's promise.
                    unsafe {
                        let source = start.add(from + first * walk.pixel);
                        let target = target.as_mut_ptr().add(into);
                        ahead.fetch::<S>();
                        written.fetch::<S, T, V>(target, count);
                        with_constant!(count, R, {
                            if R <= PIXELS {
                                let sums = if whole || !skips {
                                    walk.sums::<S, V, R>(source, weights)
                                } else {
                                    by_column.sums_inside::<S, V, R>(source, weights, left, right)
                                };
                                written.write::<S, T, V, R>(sums, target);
                            }
                        });
                    }
                }
            }
        }
    }
}

/// A phase that no tap reaches: its sums are zero.
pub(super) fn without_taps<T: Stored>(correlation: &Correlation, accumulation: Accumulation, target: &mut [T]) {
    if accumulation == Accumulation::Add {
        return;
    }
    let Correlation { batch, y, x, target_size: [height, width], .. } = correlation;
    let channels = correlation.target_channels();
    for image in 0..*batch {
        for row in 0..y.targets {
            let line = (image * height + y.place + y.spacing * row) * width;
            for column in 0..x.targets {
                target[(line + x.place + x.spacing * column) * channels..][..channels].fill(T::of(0.0));
            }
        }
    }
}
