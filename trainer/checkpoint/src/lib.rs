//! Training state ↔ storage. A checkpoint is whole or absent.
//!
//! ```text
//! FOLDER/checkpoints/step-00000120/weights.safetensors     every weight
//!                                  optimizer.safetensors   every optimiser slot
//!                                  manifest.json           written last; carries the digests of the others and its own
//! FOLDER/checkpoints/.tmp-…                                a save in progress, or what a crash left of one
//! FOLDER/probes/…                                          see [`Folder::probe_write`]
//! ```
//!
//! [`Folder::save`] writes into a `.tmp-…` sibling, syncs every file, the manifest last, and renames the folder;
//! [`Folder::newest`] verifies every digest and falls back to the next older checkpoint where one does not fit.

mod error;
mod export;
mod folder;
mod load;
mod manifest;
mod operation;
mod probe;
mod prune;
mod save;
mod snapshot;
mod tensors;

pub use error::CheckpointError;
pub use export::export_model;
pub use folder::Folder;
pub use load::{Checkpoint, Newest, Skipped};
pub use manifest::{FORMAT_VERSION, MAX_MANIFEST_BYTES, MAX_OBJECT_BYTES};
pub use probe::MAX_TOKEN_BYTES;
pub use prune::Pruned;
pub use save::Saved;
pub use snapshot::{Identity, OwnedTensor, Position, Snapshot, Tensor};

#[cfg(test)]
mod tests;
