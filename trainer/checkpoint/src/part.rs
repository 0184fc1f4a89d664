use std::{num::NonZeroU32, ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{Layout, Position, chunk::Chunk};

/// Names the part of a checkpoint that one writer stores.
#[derive(Clone, Debug)]
pub struct CheckpointPart {
    /// The training position. All writers of a checkpoint have the same step and generation.
    pub position: Position,
    /// The layout of the whole state.
    pub layout: Arc<Layout>,
    /// The number of this writer, from 0.
    pub writer: u32,
    /// The number of writers.
    pub writers: NonZeroU32,
}

impl CheckpointPart {
    /// The bytes of the arena that belong to the part.
    pub(crate) fn range(&self) -> Range<u64> {
        self.layout.part(self.writer, self.writers)
    }

    /// The values of the arena that belong to the part.
    pub(crate) fn values(&self) -> Range<usize> {
        self.layout.values_of(&self.range())
    }
}

/// Proves that a part is stored. The writer sends it to the member that calls [`Folder::commit`].
///
/// [`Folder::commit`]: crate::Folder::commit
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReceipt {
    /// The step of the checkpoint.
    pub step: u64,
    /// The generation that writes it.
    pub generation: u64,
    /// The bytes of the arena that belong to the part.
    pub range: Range<u64>,
    /// The chunks of the part, in order.
    pub chunks: Vec<Chunk>,
    /// The number of bytes that another chunk in storage already held, so that none were written.
    pub unchanged_bytes: u64,
}
