use serde::{Deserialize, Serialize};

/// Whose state it is. Only a checkpoint of the same identity can be resumed from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The model as the job names it.
    pub model: String,
    /// What else decides which samples a step sums: data set, batch, seed. The optimiser's rates and the number of passes may differ.
    pub workload_digest: String,
}

/// Where training stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Optimiser steps done.
    pub step: u64,
    /// Passes over the data that are finished.
    pub epoch: u64,
    /// Samples of the current pass that were taken.
    pub cursor: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Generation of the group that reached this step.
    pub generation: u64,
}

/// A named block of 32-bit floats, borrowed from an arena.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// As PyTorch would name it: `conv1.weight`; a slot `conv1.weight.momentum_buffer`.
    pub name: &'a str,
    /// Length of each dimension, last fastest.
    pub shape: &'a [usize],
    /// As many as the shape says.
    pub values: &'a [f32],
}

/// A block of 32-bit floats that was loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedTensor {
    /// As it was saved.
    pub name: String,
    /// As it was saved.
    pub shape: Vec<usize>,
    /// The same bits as were saved.
    pub values: Vec<f32>,
}

/// Everything that decides the next step.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// Whose.
    pub identity: &'a Identity,
    /// Where training stands.
    pub position: Position,
    /// Digest of the state as the group computes it, in its own spelling; returned as it is.
    pub state_digest: &'a str,
    /// When, RFC 3339.
    pub time: &'a str,
    /// How its gradients were summed, in the group's own spelling; returned as it is.
    pub communication: Option<&'a str>,
    /// The model's parameters.
    pub weights: &'a [Tensor<'a>],
    /// The optimiser's slots.
    pub slots: &'a [Tensor<'a>],
}
