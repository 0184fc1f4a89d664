use std::path::PathBuf;

use crate::{Checkpoint, CheckpointError, Destination, Folder, Identity, Position, manifest::Unusable, slot::Slot};

/// A checkpoint as its manifest describes it; its files were not read.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Its step.
    pub step: u64,
    /// Its folder; in a bucket, its URI.
    pub path: PathBuf,
    /// What its manifest says, or what is wrong with that.
    pub described: Result<Description, String>,
    slot: Slot,
}

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Whose it is.
    pub identity: Identity,
    /// Where training stands.
    pub position: Position,
    /// When it was saved, RFC 3339.
    pub time: String,
    /// Version of its format.
    pub format_version: u64,
    /// The program that wrote it.
    pub writer: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of files besides the manifest.
    pub files: usize,
    /// Bytes of all files; those that checkpoints share count for each.
    pub bytes: u64,
}

impl Folder {
    /// All checkpoints, newest first. One whose manifest the storage does not give says so; the others are described all the same.
    ///
    /// # Errors
    /// Any error of the storage where it does not give their names.
    pub fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        Ok(self.medium.slots()?.into_iter().map(|slot| self.describe(slot)).collect())
    }

    fn describe(&self, slot: Slot) -> Listed {
        let path = self.place(slot);
        let described = match self.manifest_of(slot) {
            Ok((manifest, _, length)) => Ok(Description {
                bytes: length + manifest.stored_bytes(),
                files: crate::manifest::files(&manifest.chunks).len(),
                identity: manifest.identity,
                position: manifest.position,
                time: manifest.time,
                format_version: manifest.format_version,
                writer: manifest.writer,
                tensors: manifest.tensors.len(),
            }),
            Err(Unusable::Damaged(reason)) => Err(reason),
            Err(Unusable::UnknownFormat(version)) => {
                Err(format!("has format version {version}, which this program does not know"))
            }
            Err(Unusable::Unread(error)) => Err(error.to_string()),
        };
        Listed { step: slot.step, path, described, slot }
    }

    /// Reads and verifies a checkpoint, whosever it is, and keeps none of it; tells what is wrong with it.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownFormat`] and any error of the storage.
    pub fn verify(&self, listed: &Listed) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.verify_slot(listed.slot, None, self.at_once)
    }

    /// Loads and verifies a checkpoint, whosever it is; tells what is wrong with it.
    ///
    /// # Errors
    /// [`CheckpointError::Misfit`], [`CheckpointError::UnknownFormat`] and any error of the storage.
    pub fn load(
        &self,
        listed: &Listed,
        into: &mut impl Destination,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.load_slot(listed.slot, None, into)
    }
}
