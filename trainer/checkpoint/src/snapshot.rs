use serde::{Deserialize, Serialize};

use crate::About;

/// Identifies the training that a state belongs to. A job resumes only from a checkpoint of its own
/// identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingIdentity {
    /// The name of the model in the job.
    pub model: String,
    /// A digest of everything else that decides the samples of a step: data set, batch and seed.
    /// The optimiser's rates and the number of passes may differ.
    pub workload_digest: String,
}

/// The point that training has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The number of steps done.
    pub step: u64,
    /// The number of finished passes over the data.
    pub epoch: u64,
    /// The number of samples taken of the current pass.
    pub cursor: u64,
    /// The seed of the run.
    pub seed: u64,
    /// The generation that reached this step.
    pub generation: u64,
}

/// A named block of 32-bit floats, borrowed from an arena.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The name that PyTorch would use: `conv1.weight`, and `conv1.weight.momentum_buffer` for a
    /// slot.
    pub name: &'a str,
    /// The length of each dimension. The last one varies fastest.
    pub shape: &'a [usize],
    /// The values. Their number is the product of `shape`.
    pub values: &'a [f32],
}

/// A loaded block of 32-bit floats.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedTensor {
    /// The name from the checkpoint.
    pub name: String,
    /// The shape from the checkpoint.
    pub shape: Vec<usize>,
    /// The saved values, bit for bit.
    pub values: Vec<f32>,
}

impl OwnedTensor {
    /// Returns the tensor without its memory.
    #[must_use]
    pub fn borrowed(&self) -> Tensor<'_> {
        Tensor { name: &self.name, shape: &self.shape, values: &self.values }
    }
}

/// The state that decides the next step.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The training that the state belongs to.
    pub identity: &'a TrainingIdentity,
    /// The training position.
    pub position: Position,
    /// A digest of the state in the group's own spelling. A load returns it unchanged.
    pub state_digest: &'a str,
    /// The time of the snapshot, RFC 3339.
    pub time: &'a str,
    /// The plan by which gradients were summed, in the group's own spelling. A load returns it
    /// unchanged.
    pub communication: Option<&'a str>,
    /// The facts about its model.
    pub about: Option<&'a About>,
    /// The model's parameters.
    pub weights: &'a [Tensor<'a>],
    /// The optimiser's slots.
    pub slots: &'a [Tensor<'a>],
}
