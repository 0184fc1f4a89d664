//! One step of all ranks, and the numbers that they exchange beside the gradients.

pub(crate) mod efficiency;
pub(crate) mod rank;
pub(crate) mod step_sync;
