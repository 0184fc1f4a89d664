//! Handles of planned memory: an operation names memory, it never holds a slice.

use std::ops::Range;

/// Samples that lie side by side in an image tensor, and the multiple to which a micro-batch is padded with zeros.
pub const SAMPLE_LANES: usize = 16;

/// One allocation of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Memory(pub(crate) usize);

impl Memory {
    /// A range of its elements.
    pub fn region(self, range: Range<usize>) -> Region {
        Region { memory: self, start: range.start, len: range.len() }
    }
}

/// Totals of a step on a device: the sum of losses and the number of correct predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tally(pub(crate) usize);

/// A range of elements of one allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// The allocation.
    pub memory: Memory,
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Region {
    /// The elements of the allocation.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Whether both have an element in common.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.memory == other.memory
            && self.start.max(other.start) < (self.start + self.len).min(other.start + other.len)
    }
}

/// How the samples of a tensor lie; chosen by what reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `[samples / 16][channel][row][column][16]`: read by convolutions, whose vectors run over samples.
    Images,
    /// `[feature][samples]`: read by matrix products and the loss.
    Features,
}

/// Activations, or their gradients, of one point of the network for a micro-batch.
///
/// The layout is the CPU's; a device with its own may see the region as plain storage of at least as many elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// Where it lies.
    pub region: Region,
    /// Channels of a sample.
    pub channels: usize,
    /// Rows of a sample, without halo.
    pub height: usize,
    /// Columns of a sample, without halo.
    pub width: usize,
    /// Rows and columns of zeros on each side, never written after planning: the padding of the convolution that reads.
    pub halo: usize,
    /// How the samples lie.
    pub form: Form,
    /// Samples planned for, a multiple of [`SAMPLE_LANES`].
    pub capacity: usize,
}

impl Tensor {
    /// Elements of its region.
    pub fn elements(&self) -> usize {
        self.sample_elements() * self.capacity
    }

    /// Elements of one sample, halo included.
    pub(crate) fn sample_elements(&self) -> usize {
        self.channels * self.stored_height() * self.stored_width()
    }

    /// Rows, halo included.
    pub(crate) fn stored_height(&self) -> usize {
        self.height + 2 * self.halo
    }

    /// Columns, halo included.
    pub(crate) fn stored_width(&self) -> usize {
        self.width + 2 * self.halo
    }

    /// Elements between two neighbours of a sample.
    pub(crate) fn row_stride(&self) -> usize {
        match self.form {
            Form::Images => SAMPLE_LANES,
            Form::Features => self.capacity,
        }
    }

    /// Elements between the first samples of two groups of [`SAMPLE_LANES`].
    pub(crate) fn block_stride(&self) -> usize {
        match self.form {
            Form::Images => self.sample_elements() * SAMPLE_LANES,
            Form::Features => SAMPLE_LANES,
        }
    }
}
