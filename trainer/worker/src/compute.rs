//! One worker's mathematics: its state, its devices, and backward into buckets.

pub(crate) mod baseline;
pub(crate) mod devices;
pub(crate) mod fingerprint;
pub(crate) mod gradients;
pub(crate) mod memory;
pub(crate) mod model;
pub(crate) mod training_state;
