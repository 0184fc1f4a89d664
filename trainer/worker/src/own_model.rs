//! A user's own model: forward and backward in plain Rust. Everything else that training needs is
//! here: memory, the optimiser of the manifest, digests and checkpoints.

mod trained_model;

use crate::trainee::{Judged, SampleCounts};

pub(crate) use self::trained_model::open;

/// A model with its samples. [`run`](crate::run) trains it.
///
/// Samples have numbers: those for training from 0, then those that are held out. What a function
/// computes depends on its arguments only, so that all workers compute the same.
pub trait OwnModel {
    /// The parameters. All functions get their values in this order.
    fn parameters(&self) -> Vec<Parameter>;

    /// The number of samples.
    fn samples(&self) -> SampleCounts;

    /// Brings samples into memory, from a disk for example. `judge_all` gets the same ones next.
    /// The time counts as phase `data`. Default: nothing, for samples that are in memory or
    /// computed.
    fn read(&self, samples: &[u64]) {
        let _ = samples;
    }

    /// Judges the weights by one sample. If there are `gradients`, adds those of its loss to them.
    fn judge(&self, weights: &[&[f32]], sample: u64, gradients: Option<&mut [&mut [f32]]>) -> Judged;

    /// Judges the weights by several samples. A model that computes faster in batches replaces
    /// this.
    fn judge_all(&self, weights: &[&[f32]], samples: &[u64], mut gradients: Option<&mut [&mut [f32]]>) -> Judged {
        let judge = |sample: &u64| self.judge(weights, *sample, gradients.as_deref_mut());
        samples.iter().map(judge).fold(Judged::default(), Judged::plus)
    }

    /// A number that changes with the samples. Workers with other numbers do not train together,
    /// and a checkpoint of other samples is refused. Default: 0, for samples that never change.
    fn data_version(&self) -> u64 {
        0
    }
}

/// A tensor of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    name: String,
    shape: Vec<usize>,
    is_bias: bool,
}

impl Parameter {
    /// A tensor that multiplies inputs, of shape outputs × inputs. It begins between ±1/√inputs.
    /// Weight decay applies to it.
    pub fn weight(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into(), is_bias: false }
    }

    /// A tensor that is added to outputs. It begins with zeros.
    pub fn bias(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { is_bias: true, ..Self::weight(name, shape) }
    }
}
