//! Handles of planned memory: an operation names memory, it never holds a slice.

use std::ops::Range;

use crate::{dtype::DType, shape::Shape};

/// One allocation of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Memory {
    pub(crate) number: usize,
    /// The type of its elements.
    pub dtype: DType,
}

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

    /// Some of its elements, counted from its first.
    pub fn part(&self, elements: Range<usize>) -> Region {
        assert!(elements.end <= self.len, "elements {elements:?} of a region of {}", self.len);
        Region { memory: self.memory, start: self.start + elements.start, len: elements.len() }
    }

    /// True if both have an element in common.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.memory == other.memory
            && self.start.max(other.start) < (self.start + self.len).min(other.start + other.len)
    }
}

/// Samples that lie side by side in [`Form::Lanes`].
pub const LANES: usize = 16;

/// How the samples of a tensor lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// One after another, each in the device's order of channels, rows and columns.
    Samples,
    /// Side by side: `[samples / 16][channel][row][column][16]`, with rows and columns of zeros on
    /// each side that nothing writes after planning. Only [`crate::op::Op::Block`], uploads and
    /// flattening know it.
    Lanes {
        /// Rows and columns of zeros on each side.
        halo: usize,
    },
}

impl Form {
    /// Elements of so many samples.
    #[must_use]
    pub const fn elements(self, shape: Shape, samples: usize) -> usize {
        match self {
            Form::Samples => shape.elements() * samples,
            Form::Lanes { halo } => {
                let (height, width) = (shape.height + 2 * halo, shape.width + 2 * halo);
                shape.channels * height * width * samples.next_multiple_of(LANES)
            }
        }
    }
}

/// A value of the graph, or its gradient, for a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// Its place.
    pub region: Region,
    /// Shape of a sample.
    pub shape: Shape,
    /// How samples lie.
    pub form: Form,
}

impl Tensor {
    /// The elements of the first samples.
    pub fn of(&self, samples: usize) -> Region {
        self.region.part(0..self.form.elements(self.shape, samples))
    }

    /// Places with all channels of the first samples.
    pub fn pixels(&self, samples: usize) -> usize {
        samples * self.shape.pixels()
    }
}

/// True if a result replaces what was there or is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulation {
    /// It replaces it.
    Replace,
    /// It is added.
    Add,
}
