//! Checkpoints behind the training. Every rank writes its part.

mod block_digests;
pub(crate) mod protocol;
