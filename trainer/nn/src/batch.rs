//! The samples of a micro-batch, as the host has them.

use crate::device::Values;

/// Samples of a micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// For each input of the network `[sample][channel][row][column]`.
    pub inputs: &'a [Values<'a>],
    /// For each target of the network the same.
    pub targets: &'a [Values<'a>],
    /// Samples.
    pub samples: usize,
    /// Where each group of samples ends whose statistics a batch norm shares: the virtual shards of
    /// the global batch. One group where it is empty. The groups of a step must not depend on the
    /// number of workers.
    pub group_ends: &'a [u32],
    /// What tells a sample from all others of its step, for dice; its place in the step on this
    /// replica where none is given.
    pub keys: &'a [u64],
    /// The mean of a sample's losses is multiplied by this where labels count by their class or do
    /// not count at all: the labels of the whole step, divided by the sum of their weights. It must
    /// be the same in all micro-batches of a step. 1 leaves the losses as they are.
    pub importance: f32,
}

impl<'a> Batch<'a> {
    /// Samples that form one group.
    #[must_use]
    pub const fn new(inputs: &'a [Values<'a>], targets: &'a [Values<'a>], samples: usize) -> Batch<'a> {
        Batch { inputs, targets, samples, group_ends: &[], keys: &[], importance: 1.0 }
    }
}
