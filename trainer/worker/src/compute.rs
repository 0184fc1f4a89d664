//! The mathematics of one worker: its state, its devices, and backward into buckets. It knows
//! nothing of other workers.

pub(crate) mod baseline;
pub(crate) mod dataset;
pub(crate) mod devices;
pub(crate) mod fingerprint;
pub(crate) mod gradients;
pub(crate) mod memory;
pub(crate) mod model;
pub(crate) mod payload;
pub(crate) mod recipe;
pub(crate) mod trained;
pub(crate) mod training_state;
