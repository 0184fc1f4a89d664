//! The numbers that all ranks sum once a step, beside the gradients.

pub(crate) mod checkpoint_flags;
pub(crate) mod numbers;
