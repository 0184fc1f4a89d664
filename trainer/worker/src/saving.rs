//! Checkpoints behind the training: every rank writes its part.

pub(crate) mod block_digests;
pub(crate) mod protocol;
