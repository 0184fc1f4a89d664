//! The settings of a training that stay the same from the first step to the last.

use lockstep_nn::Sgd;

/// The settings of a training, from its seed to its learning rate.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub seed: u64,
    pub global_batch: u64,
    pub micro_batch: usize,
    pub total_steps: u64,
    pub steps_per_epoch: u64,
    pub optimiser: Sgd,
    pub rate: f32,
}
