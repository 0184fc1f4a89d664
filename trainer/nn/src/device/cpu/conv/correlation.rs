//! The shapes of a correlation of channels-last images with packed weights, and the blocks that it
//! is cut into.

use std::ops::Range;

use super::axis::Axis;
use super::tile::{PANEL, Walk, spread};

/// Elements of a block of copied rows: they share the second-level cache with a panel of weights.
pub(super) const BLOCK_ELEMENTS: usize = 64 * 1024;
/// Pixels of a row that is merged from several, where nothing lies between them.
const MERGED_PIXELS: usize = 128;

/// Shapes of one correlation of `groups · depth` source channels into `groups · targets` target
/// channels.
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

    /// The same over pairs of source channels, if these are even.
    pub(super) fn over_pairs(&self) -> Option<Correlation> {
        let halved = self.depth.is_multiple_of(2).then_some(self.depth / 2)?;
        Some(Correlation { depth: halved, ..self.clone() })
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

    pub(super) fn target_channels(&self) -> usize {
        self.groups * self.targets
    }

    /// False for a phase of the stride that meets no tap.
    pub(super) fn has_taps(&self) -> bool {
        self.y.taps * self.x.taps > 0
    }

    /// True if the source is read where it lies.
    pub(super) fn in_place(&self) -> bool {
        let step = self.x.stride * self.groups * self.depth;
        self.y.stays_inside() && self.x.stays_inside() && !collides(step)
    }

    /// Where a block's first pixel is read in place, and the distances of what is read there.
    pub(super) fn placed(&self, block: Block) -> (usize, Strides) {
        let Correlation { y, x, .. } = self;
        let pixel = self.groups * self.depth;
        let (row, image) = (x.size * pixel, y.size * x.size * pixel);
        let first_row = y.offset.max(0) as usize + block.row * y.stride;
        let start = block.image * image + first_row * row + x.offset.max(0) as usize * pixel;
        (start, Strides { image, row: row * y.step(), pixel: pixel * x.step() })
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

    /// Elements of a block. If reading all weights again is cheap, the block's targets share the
    /// cache too: they leave it in whole lines though their panels are written one after another.
    pub(super) fn limit(&self) -> usize {
        let kept = self.depth * self.y.read_stride() * self.x.read_stride();
        if self.packed_elements() > BLOCK_ELEMENTS {
            BLOCK_ELEMENTS
        } else {
            BLOCK_ELEMENTS * kept / (kept + self.targets)
        }
    }

    pub(super) fn workspace_elements(&self) -> usize {
        if !self.has_taps() || self.in_place() { 0 } else { self.block_elements(self.depth, self.limit()) }
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

    /// The walk of one pixel's taps through sources that lie `strides` apart, `depth` channels of
    /// each.
    pub(super) fn walk(&self, strides: Strides, depth: usize) -> Walk {
        let Correlation { y, x, .. } = self;
        let walk = Walk {
            rows: y.taps,
            row_step: y.read_dilation() * strides.row,
            segments: x.taps,
            segment_step: x.read_dilation() * strides.pixel,
            depth,
            pixel: x.read_stride() * strides.pixel,
            panel: self.panel_elements(),
        };
        if walk.segment_step == depth { Walk { segments: 1, depth: depth * x.taps, ..walk } } else { walk }
    }
}

/// True if pixels this many elements apart compete for a few sets of the first-level cache.
fn collides(step: usize) -> bool {
    step.is_multiple_of(256)
}
