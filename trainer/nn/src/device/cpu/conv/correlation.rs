//! Forward, and the input's gradient: correlations of channels-last images with packed weights.
//!
//! A block of rows is copied with its zero padding into the workspace, unless it can be read in place. Then every tile
//! of up to 14 pixels × 32 channels stays in registers over all taps and source channels. For kernels without
//! dilation, the taps of one kernel row and their channels are adjacent: one run of `taps · channels` elements, which
//! also fills the loop for images of three channels.

#![allow(unsafe_code, reason = "vector loads through pointers, and functions compiled for detected instructions")]

use std::ops::Range;

use super::axis::Axis;
use super::lanes::Lanes;
use super::tile::{self, Ahead, PANEL, Walk, spread, unrolled, with_constant};
use crate::device::Accumulation;

/// Elements of a block of copied rows: they share the second-level cache with a panel of weights.
pub(super) const BLOCK_ELEMENTS: usize = 64 * 1024;
/// Pixels of a row that is merged from several, where nothing lies between them.
const MERGED_PIXELS: usize = 128;

/// Shapes of one correlation of `groups · depth` source channels into `groups · targets` target channels.
#[derive(Debug, Clone)]
pub(super) struct Correlation {
    pub(super) batch: usize,
    pub(super) groups: usize,
    pub(super) depth: usize,
    pub(super) targets: usize,
    pub(super) y: Axis,
    pub(super) x: Axis,
    /// Rows and columns of the target's tensor.
    pub(super) target_size: [usize; 2],
}

/// What happens to a sum before it is written: `relu(scale · sum + shift (+ what was there))`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finish<'a> {
    /// One factor for each output channel, or 1.
    pub scale: Option<&'a [f32]>,
    /// One addend for each output channel, or 0: a bias, for example.
    pub shift: Option<&'a [f32]>,
    /// Whether `max(0, x)` comes last.
    pub relu: bool,
}

pub(super) struct Job<'a> {
    pub(super) correlation: &'a Correlation,
    pub(super) source: &'a [f32],
    /// From [`super::pack`].
    pub(super) packed: &'a [f32],
    pub(super) finish: Finish<'a>,
    pub(super) accumulation: Accumulation,
    pub(super) target: &'a mut [f32],
    pub(super) workspace: &'a mut [f32],
}

/// Where a block's pixels lie: distances in elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strides {
    pub(super) image: usize,
    pub(super) row: usize,
    pub(super) pixel: usize,
}

/// Target rows `row..row + rows` of images `image..image + images`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) image: usize,
    pub(super) images: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
}

impl Correlation {
    /// The same correlation, with rows merged where source and target have nothing between them.
    pub(super) fn merged(self) -> Correlation {
        let plain = |axis: &Axis| axis.taps == 1 && axis.stride == 1 && axis.offset == 0 && axis.spacing == 1;
        if !(plain(&self.y) && plain(&self.x)) {
            return self;
        }
        let (rows, columns) = (self.batch * self.y.size, self.x.size);
        let merge =
            (1..=MERGED_PIXELS.div_ceil(columns)).rev().find(|rows_in_one| rows % rows_in_one == 0).unwrap_or(1);
        let axis = |axis: Axis, size: usize| Axis { size, targets: size, ..axis };
        let (rows, columns) = (rows / merge, columns * merge);
        Correlation { batch: 1, y: axis(self.y, rows), x: axis(self.x, columns), target_size: [rows, columns], ..self }
    }

    pub(super) fn panels(&self) -> usize {
        self.targets.div_ceil(PANEL)
    }

    /// Elements of a packed panel.
    pub(super) fn panel_elements(&self) -> usize {
        self.y.taps * self.x.taps * self.depth * PANEL
    }

    pub(super) fn packed_elements(&self) -> usize {
        self.groups * self.panels() * self.panel_elements()
    }

    pub(super) fn source_elements(&self) -> usize {
        self.batch * self.y.size * self.x.size * self.groups * self.depth
    }

    pub(super) fn target_elements(&self) -> usize {
        self.batch * self.target_size[0] * self.target_size[1] * self.groups * self.targets
    }

    /// True if the source is read where it lies.
    fn in_place(&self) -> bool {
        let step = self.x.stride * self.groups * self.depth;
        self.y.stays_inside() && self.x.stays_inside() && !collides(step)
    }

    /// Elements from one copied pixel of `depth` channels to the next.
    pub(super) fn copied_pixel(&self, depth: usize) -> usize {
        if collides(depth * self.x.read_stride()) { depth + PANEL } else { depth }
    }

    /// Strides of a copied block of `rows` target rows.
    pub(super) fn copied(&self, depth: usize, rows: usize) -> Strides {
        let pixel = self.copied_pixel(depth);
        let row = self.x.read_by(self.x.targets) * pixel;
        Strides { image: self.y.read_by(rows) * row, row, pixel }
    }

    /// Blocks whose copies of `depth` channels stay below `limit` elements, if one row does.
    pub(super) fn blocks(&self, depth: usize, limit: usize) -> impl Iterator<Item = Block> + use<> {
        let (images, rows) = self.block_size(depth, limit);
        let (batch, height) = (self.batch, self.y.targets);
        (0..batch).step_by(images).flat_map(move |image| {
            let images = images.min(batch - image);
            let parts = height.div_ceil(rows);
            spread(height, height.div_ceil(parts)).map(move |(row, rows)| Block { image, images, row, rows })
        })
    }

    /// The most images and rows of a block.
    fn block_size(&self, depth: usize, limit: usize) -> (usize, usize) {
        let whole = self.copied(depth, self.y.targets).image;
        if whole <= limit {
            return ((limit / whole).min(self.batch), self.y.targets);
        }
        let fits = |rows: &usize| self.copied(depth, *rows).image <= limit;
        (1, (1..=self.y.targets).rev().find(fits).unwrap_or(1))
    }

    /// Elements that copied blocks need.
    pub(super) fn block_elements(&self, depth: usize, limit: usize) -> usize {
        let (images, rows) = self.block_size(depth, limit);
        images * self.copied(depth, rows).image
    }

    /// Elements of a block. If reading all weights again is cheap, the block's targets share the cache too: they leave
    /// it in whole lines though their panels are written one after another.
    fn limit(&self) -> usize {
        let kept = self.depth * self.y.read_stride() * self.x.read_stride();
        if self.packed_elements() > BLOCK_ELEMENTS {
            BLOCK_ELEMENTS
        } else {
            BLOCK_ELEMENTS * kept / (kept + self.targets)
        }
    }

    pub(super) fn workspace_elements(&self) -> usize {
        if self.y.taps * self.x.taps == 0 || self.in_place() {
            0
        } else {
            self.block_elements(self.depth, self.limit())
        }
    }

    /// The source rows that a block reads, from its first image to its last.
    pub(super) fn rows_read(&self, block: Block) -> Range<usize> {
        let Axis { size, offset, stride, dilation, taps, .. } = self.y;
        let row = |row: isize| row.clamp(0, size as isize) as usize;
        let first = offset + (block.row * stride) as isize;
        let last = first + ((block.rows - 1) * stride + (taps - 1) * dilation) as isize;
        let elements = self.x.size * self.groups * self.depth;
        let last_image = block.image + block.images - 1;
        let start = (block.image * size + row(first)) * elements;
        start..((last_image * size + row(last + 1)) * elements).max(start)
    }

    /// Copies channels `channel..channel + depth` of what a block reads, with zeros left and right where nothing is. Rows
    /// above and below stay as they are: no tap reads them.
    ///
    /// # Safety
    /// The core has the instructions of `S`.
    #[inline(always)]
    pub(super) unsafe fn copy<S: Lanes>(
        &self,
        source: &[f32],
        block: Block,
        channel: usize,
        depth: usize,
        copy: &mut [f32],
    ) -> Strides {
        let Correlation { y, x, .. } = self;
        let channels = self.groups * self.depth;
        let strides = self.copied(depth, block.rows);
        let columns = x.read_by(x.targets);
        let step = x.step() as isize;
        // Columns from `left` to `right` exist.
        let left = ((-x.offset).max(0) + step - 1) / step;
        let right = (x.size as isize - x.offset + step - 1).div_euclid(step);
        let left = (left as usize).min(columns);
        let right = (right.max(0) as usize).clamp(left, columns);
        let first = (x.offset + left as isize * step).max(0) as usize;
        for image in 0..block.images {
            for row in 0..y.read_by(block.rows) {
                let line = &mut copy[image * strides.image + row * strides.row..][..strides.row];
                let from = y.offset + (block.row * y.stride + row * y.step()) as isize;
                if !(0..y.size as isize).contains(&from) {
                    continue;
                }
                line[..left * strides.pixel].fill(0.0);
                line[right * strides.pixel..].fill(0.0);
                let line = &mut line[left * strides.pixel..right * strides.pixel];
                if line.is_empty() {
                    continue;
                }
                let from = (((block.image + image) * y.size + from as usize) * x.size + first) * channels + channel;
                let source = &source[from..];
                let pixels = right - left;
                assert!(source.len() >= (pixels - 1) * x.step() * channels + depth, "{pixels} pixels from {from}");
                // SAFETY: the line holds whole pixels of at least `depth` channels; the source was just measured.
                unsafe {
                    if strides.pixel == channels && x.step() == 1 {
                        tile::copy::<S>(source.as_ptr(), line.as_mut_ptr(), pixels * depth);
                        continue;
                    }
                    for pixel in 0..pixels {
                        let source = source.as_ptr().add(pixel * x.step() * channels);
                        tile::copy::<S>(source, line.as_mut_ptr().add(pixel * strides.pixel), depth);
                    }
                }
            }
        }
        strides
    }

    /// The walk of one pixel's taps through sources that lie `strides` apart, `depth` channels of each.
    pub(super) fn walk(&self, strides: Strides, depth: usize, read_step: [usize; 2]) -> Walk {
        let (row_step, segment_step) = (self.y.read_dilation() * strides.row, self.x.read_dilation() * strides.pixel);
        let (row_step, segment_step) = (row_step * read_step[0], segment_step * read_step[1]);
        let pixel = self.x.read_stride() * strides.pixel * read_step[1];
        let walk = Walk {
            rows: self.y.taps,
            row_step,
            segments: self.x.taps,
            segment_step,
            depth,
            pixel,
            panel: self.panel_elements(),
        };
        if segment_step == depth { Walk { segments: 1, depth: depth * walk.segments, ..walk } } else { walk }
    }
}

/// True if pixels this many elements apart compete for a few sets of the first-level cache.
fn collides(step: usize) -> bool {
    step.is_multiple_of(256)
}

/// All blocks: `WIDE` vectors hold two panels if registers allow, `NARROW` hold one; tiles of `WIDE` vectors have at most
/// `PIXELS` pixels.
///
/// # Safety
/// The core has the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn run<S: Lanes, const WIDE: usize, const NARROW: usize, const PIXELS: usize>(job: Job<'_>) {
    let Job { correlation, source, packed, finish, accumulation, target, workspace } = job;
    assert!(source.len() >= correlation.source_elements(), "source of {}", source.len());
    assert!(target.len() >= correlation.target_elements(), "target of {}", target.len());
    assert!(packed.len() >= correlation.packed_elements(), "packed weights of {}", packed.len());
    let Correlation { groups, depth, targets, y, x, target_size, .. } = correlation;
    for bound in [finish.scale, finish.shift].into_iter().flatten() {
        assert_eq!(bound.len(), groups * targets, "one factor or addend for each output channel");
    }
    if y.taps * x.taps == 0 {
        return without_taps(correlation, finish, accumulation, target);
    }
    let panels = correlation.panels();
    // One panel leaves registers for more pixels.
    let most = if WIDE == NARROW { PIXELS } else { PIXELS + 2 };
    let in_place = correlation.in_place();
    // Leaving out a zero column of a short row is worth more than walking its taps as one run.
    let skips = x.targets <= 16 && *depth >= 2 * PANEL;
    let target_channels = groups * targets;
    let mut blocks = correlation.blocks(*depth, correlation.limit()).peekable();
    while let Some(block) = blocks.next() {
        let next = blocks.peek().map_or(&[][..], |next| &source[correlation.rows_read(*next)]);
        let mut ahead =
            Ahead::new(next, block.images * block.rows * x.targets.div_ceil(if panels > 1 { PIXELS } else { most }));
        for group in 0..*groups {
            let (start, strides, read_step) = if in_place {
                let pixel = groups * depth;
                let strides = Strides { image: y.size * x.size * pixel, row: x.size * pixel, pixel };
                let row = (y.offset as usize + block.row * y.stride) * strides.row + x.offset as usize * pixel;
                let start = block.image * strides.image + row + group * depth;
                (source[start..].as_ptr(), strides, [y.step(), x.step()])
            } else {
                // SAFETY: the caller's promise.
                let strides = unsafe { correlation.copy::<S>(source, block, group * depth, *depth, workspace) };
                (workspace.as_ptr(), strides, [1, 1])
            };
            let walk = correlation.walk(strides, *depth, read_step);
            let row_step = y.read_stride() * strides.row * read_step[0];
            let weights = &packed[group * panels * walk.panel..];
            let mut panel = 0;
            while panel < panels {
                let wide = WIDE != NARROW && panel + 1 < panels;
                let weights = &weights[panel * walk.panel..];
                let channel = group * targets + panel * PANEL;
                let channels = (targets - panel * PANEL).min(if wide { 2 * PANEL } else { PANEL });
                for image in 0..block.images {
                    for row in 0..block.rows {
                        let target_row = y.place + y.spacing * (block.row + row);
                        let line = ((block.image + image) * target_size[0] + target_row) * target_size[1];
                        let taps = y.taps_inside(block.row + row);
                        let above = taps.start * walk.row_step;
                        let weights = weights[taps.start * x.taps * depth * PANEL..].as_ptr();
                        let walk = Walk { rows: taps.len(), ..walk };
                        let edges = Walk { segments: x.taps, depth: *depth, ..walk };
                        for (first, count) in spread(x.targets, if wide { PIXELS } else { most }) {
                            let place = line + x.place + x.spacing * first;
                            let written =
                                Written { finish, accumulation, channel, channels, pixel: x.spacing * target_channels };
                            // SAFETY: the assertions above compared the lengths with the shapes that bound the loops;
                            // a copied block is as long as its strides say, or `copy` would have panicked.
                            unsafe {
                                let source =
                                    start.add(image * strides.image + row * row_step + above + first * walk.pixel);
                                let target = target.as_mut_ptr().add(place * target_channels + channel);
                                ahead.fetch::<S>();
                                for r in 0..count {
                                    S::prefetch_to_write(target.add(r * written.pixel));
                                    if wide {
                                        S::prefetch_to_write(target.add(r * written.pixel + PANEL));
                                    }
                                }
                                if wide {
                                    let (left, right) = (x.taps_inside(first), x.taps_inside(first + count - 1));
                                    let whole = left.start == 0 && right.end == x.taps;
                                    with_constant!(count, 14, R, {
                                        let sums = if whole || !skips {
                                            walk.sums::<S, WIDE, R>(source, weights)
                                        } else {
                                            edges.sums_at_edges::<S, WIDE, R>(source, weights, left, right)
                                        };
                                        written.write::<S, WIDE, R>(sums, target);
                                    });
                                } else {
                                    with_constant!(count, 16, R, {
                                        let sums = walk.sums::<S, NARROW, R>(source, weights);
                                        written.write::<S, NARROW, R>(sums, target);
                                    });
                                }
                            }
                        }
                    }
                }
                panel += if wide { 2 } else { 1 };
            }
        }
    }
}

/// A phase that no tap reaches: its sums are zero.
pub(super) fn without_taps(
    correlation: &Correlation,
    finish: Finish<'_>,
    accumulation: Accumulation,
    target: &mut [f32],
) {
    let Correlation { batch, groups, targets, y, x, target_size: [height, width], .. } = correlation;
    let channels = groups * targets;
    for image in 0..*batch {
        for row in 0..y.targets {
            for column in 0..x.targets {
                let line = (image * height + y.place + y.spacing * row) * width;
                let pixel = &mut target[(line + x.place + x.spacing * column) * channels..][..channels];
                finish.write(accumulation, 0, |_| 0.0, pixel);
            }
        }
    }
}

impl Finish<'_> {
    fn is_none(&self) -> bool {
        let Finish { scale, shift, relu } = self;
        scale.is_none() && shift.is_none() && !relu
    }

    /// A vector of sums from `channel` on; `add` comes before the ReLU.
    ///
    /// # Safety
    /// The core has the instructions of `S`; factors and addends hold the channels.
    #[inline(always)]
    unsafe fn apply<S: Lanes>(&self, channel: usize, sums: S, add: impl Fn(S) -> S) -> S {
        // SAFETY: the caller's promise.
        unsafe {
            let shift = self.shift.map_or(S::splat(0.0), |shift| S::load(shift[channel..].as_ptr()));
            let value = match self.scale {
                None => sums.add(shift),
                Some(scale) => sums.mul_add(S::load(scale[channel..].as_ptr()), shift),
            };
            let value = add(value);
            if self.relu { value.relu() } else { value }
        }
    }

    /// One pixel's channels from `channel` on.
    #[inline(always)]
    pub(super) fn write(
        &self,
        accumulation: Accumulation,
        channel: usize,
        sum: impl Fn(usize) -> f32,
        target: &mut [f32],
    ) {
        for (lane, target) in target.iter_mut().enumerate() {
            let scale = self.scale.map_or(1.0, |scale| scale[channel + lane]);
            let shift = self.shift.map_or(0.0, |shift| shift[channel + lane]);
            let mut value = sum(lane) * scale + shift;
            if accumulation == Accumulation::Add {
                value += *target;
            }
            *target = if self.relu && value <= 0.0 { 0.0 } else { value };
        }
    }
}

/// Where the sums of a tile go.
pub(super) struct Written<'a> {
    pub(super) finish: Finish<'a>,
    pub(super) accumulation: Accumulation,
    /// The first channel, and how many from there exist.
    pub(super) channel: usize,
    pub(super) channels: usize,
    /// Distance of neighbouring pixels.
    pub(super) pixel: usize,
}

impl Written<'_> {
    /// Writes the sums of a tile.
    ///
    /// # Safety
    /// The core has the instructions of `S`; the target holds `R` pixels, and `finish` the channels.
    #[inline(always)]
    pub(super) unsafe fn write<S: Lanes, const V: usize, const R: usize>(&self, sums: [[S; V]; R], target: *mut f32) {
        let Written { finish, accumulation, channel, channels, pixel } = self;
        let plain = finish.is_none() && *accumulation == Accumulation::Replace;
        // SAFETY: the caller's promise.
        unsafe {
            if plain && *channels == V * S::LANES {
                unrolled::<R>(|r| (0..V).for_each(|v| sums[r][v].store(target.add(r * pixel + v * S::LANES))));
                return;
            }
            let mut lines = [[0.0; 2 * PANEL]; R];
            unrolled::<R>(|r| (0..V).for_each(|v| sums[r][v].store(lines[r].as_mut_ptr().add(v * S::LANES))));
            for (r, line) in lines.iter().enumerate() {
                let target = target.add(r * pixel);
                let mut first = 0;
                while first + S::LANES <= *channels {
                    let value =
                        finish.apply(*channel + first, S::load(line.as_ptr().add(first)), |value| match accumulation {
                            Accumulation::Replace => value,
                            Accumulation::Add => value.add(S::load(target.add(first))),
                        });
                    value.store(target.add(first));
                    first += S::LANES;
                }
                let target = std::slice::from_raw_parts_mut(target.add(first), channels - first);
                finish.write(*accumulation, channel + first, |lane| line[first + lane], target);
            }
        }
    }
}
