//! Training state ↔ storage. A checkpoint is whole or absent.
//!
//! ```text
//! FOLDER/checkpoints/step-00000120/1f6c….chunk      a part of the state, named after its digest
//!                                  manifest.json    written last: tensors, which bytes are in which chunk, digests, its own too
//! FOLDER/checkpoints/step-00000120.g4/…             that step by generation 4, where another one has the name above
//! FOLDER/checkpoints/.tmp-step-00000130.g4          a save in progress by generation 4, or what a crash left of one
//! FOLDER/probes/…                                   see [`Folder::probe_write`]
//!
//! s3://BUCKET/JOB/checkpoints/step-00000120.g4/…    the same in a bucket: parts at once where they stay, the manifest created last
//! ```
//!
//! A state is one sequence of bytes, its [`Layout`]. Of `n` writers each stores a part of it with [`Folder::write_shard`] into a `.tmp-…`
//! sibling, every file synced; one of them gathers the receipts and gives them to [`Folder::commit`], which writes the manifest and renames
//! the folder. [`Folder::save`] is both for one writer. A [`Snapshotter`] does its part while training goes on; there the receipts lie
//! beside the parts until the manifest is written. A chunk that the checkpoint before has too is not written again but gets a second
//! name. What is asked of an object store is [`Objects`]. [`Folder::newest`] verifies every digest, whoever wrote, and falls back to the next older checkpoint where one does not fit.

mod bucket;
mod chunk;
mod commit;
mod destination;
mod error;
mod export;
mod files;
mod folder;
mod layout;
mod list;
mod load;
mod manifest;
mod medium;
mod note;
mod objects;
mod operation;
mod probe;
mod prune;
mod read;
mod save;
mod shard;
mod slot;
mod snapshot;
mod snapshotter;
mod tensors;

pub use chunk::{Chunk, ChunkDigest, MAX_CHUNK_BYTES};
pub use commit::{Facts, Saved};
pub use destination::{Destination, NoPlace, Tensors};
pub use error::CheckpointError;
pub use export::{Exported, export_model};
pub use folder::Folder;
pub use layout::{BLOCK_VALUES, Layout, Piece};
pub use list::{Description, Listed};
pub use load::{Checkpoint, Newest, Skipped};
pub use manifest::{FORMAT_VERSION, MAX_MANIFEST_BYTES};
pub use note::MAX_NOTE_BYTES;
pub use objects::{Created, Objects, ObjectsError};
pub use probe::MAX_TOKEN_BYTES;
pub use prune::Pruned;
pub use shard::{Shard, ShardReceipt};
pub use snapshot::{Identity, OwnedTensor, Position, Snapshot, Tensor};
pub use snapshotter::{BUFFERS, Committed, Ended, Part, Snapshotter, Taken};

#[cfg(test)]
mod tests;
