//! Stores training state and loads it again. A checkpoint is whole or absent.
//!
//! ```text
//! FOLDER/checkpoints/step-00000120/1f6c….chunk      a range of the state, named after its digest
//!                                  manifest.json    written last: tensors, chunks, digests
//! FOLDER/checkpoints/step-00000120.g4/…             the same step by generation 4, if another
//!                                                   checkpoint has the name above
//! FOLDER/checkpoints/.tmp-step-00000130.g4          an unfinished save by generation 4
//! FOLDER/probes/…                                   see [`Folder::probe_write`]
//!
//! s3://BUCKET/JOB/checkpoints/step-00000120.g4/…    in a bucket: parts are stored where they stay,
//!                                                   the manifest is created last
//! ```
//!
//! A state is one sequence of bytes with a [`Layout`]. Each of `n` writers stores its part in a
//! `.tmp-…` folder with [`Folder::write_part`], every file synced. One member collects the receipts
//! for [`Folder::commit`], which writes the manifest and renames the folder. [`Folder::save`] does
//! both for a single writer. A [`Snapshotter`] works while training goes on: its receipts lie
//! beside the parts until the manifest is written.
//!
//! A chunk that the checkpoint before already holds is not written again. It gets a second name.
//! [`Folder::newest`] verifies every digest and falls back to the next older checkpoint if one does
//! not fit. [`Objects`] is the interface to an object store.

mod about;
mod error;
mod format;
mod objects;
mod plain_name;
mod snapshot;

mod checkpoint_id;
mod chunk;
mod file_operation;
mod layout;
mod manifest;
mod part;
mod read_error;
mod tensor_entry;

mod backend;
mod destination;
mod file_backend;
mod folder;
mod object_backend;
mod read;

mod commit;
mod load;
mod save;
mod write_part;

mod list;
mod note;
mod probe;
mod prune;
mod snapshotter;

mod export;
mod read_model;
mod safetensors_file;

pub use about::{About, Evaluation, Metric};
pub use chunk::{Chunk, ChunkDigest};
pub use commit::{Facts, Saved};
pub use destination::{Destination, LoadRefusal, Tensors};
pub use error::CheckpointError;
pub use export::{Exported, export_model};
pub use folder::Folder;
pub use layout::{BLOCK_VALUES, Layout, Piece};
pub use list::{Description, Listed};
pub use load::{Checkpoint, Newest, Skipped};
pub use objects::{Created, Objects, ObjectsError};
pub use part::{CheckpointPart, PartReceipt};
pub use prune::Pruned;
pub use read_model::{MAX_HEADER_BYTES, MAX_MODEL_BYTES, ReadModel, UnreadModel, read_model};
pub use snapshot::{OwnedTensor, Position, Snapshot, Tensor, TrainingIdentity};
pub use snapshotter::{Committed, Ended, Snapshotter, Taken};

#[cfg(test)]
mod tests;
