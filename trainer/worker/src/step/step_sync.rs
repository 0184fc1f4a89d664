//! The numbers that ranks exchange once a step.

pub(crate) mod checkpoint_flags;
pub(crate) mod slots;
