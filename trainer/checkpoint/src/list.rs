use std::path::PathBuf;

use crate::{
    About, Checkpoint, CheckpointError, Destination, Folder, Position, TrainingIdentity, checkpoint_id::CheckpointId,
    read_error::ReadError,
};

/// A checkpoint as its manifest describes it. Its other files were not read.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The step of the checkpoint.
    pub step: u64,
    /// The path of its folder. In a bucket, its URI.
    pub path: PathBuf,
    /// The content of its manifest, or the problem with it.
    pub described: Result<Description, String>,
    id: CheckpointId,
}

/// The content of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The training that the checkpoint belongs to.
    pub identity: TrainingIdentity,
    /// The training position.
    pub position: Position,
    /// The time of the save, RFC 3339.
    pub time: String,
    /// The facts about its model.
    pub about: About,
    /// The version of the format.
    pub format_version: u64,
    /// The program that wrote it.
    pub writer: String,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of files besides the manifest.
    pub files: usize,
    /// The total length of all files. A file that checkpoints share counts for each.
    pub bytes: u64,
}

impl Folder {
    /// Lists all checkpoints, newest first. If the storage does not return a manifest, the entry
    /// says so and the others are still described.
    ///
    /// # Errors
    /// Any error of the storage when it lists the names.
    pub fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        Ok(self.backend.ids()?.into_iter().map(|id| self.describe(id)).collect())
    }

    fn describe(&self, id: CheckpointId) -> Listed {
        let path = self.path_of(id);
        let described = match self.manifest_of(id) {
            Ok((manifest, _, length)) => Ok(Description {
                bytes: length + manifest.stored_bytes(),
                files: crate::manifest::files(&manifest.chunks).len(),
                identity: manifest.identity,
                position: manifest.position,
                time: manifest.time,
                about: manifest.about,
                format_version: manifest.format_version,
                writer: manifest.writer,
                tensors: manifest.tensors.len(),
            }),
            Err(ReadError::Damaged(reason)) => Err(reason),
            Err(ReadError::UnknownFormat(version)) => {
                Err(format!("has format version {version}, which this program does not know"))
            }
            Err(ReadError::Unread(error)) => Err(error.to_string()),
        };
        Listed { step: id.step, path, described, id }
    }

    /// Verifies a checkpoint of any job and keeps nothing. Returns the damage if there is any.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownFormat`] and any error of the storage.
    pub fn verify(&self, listed: &Listed) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.verify_checkpoint(listed.id, None, self.at_once)
    }

    /// Loads and verifies a checkpoint of any job. Returns the damage if there is any.
    ///
    /// # Errors
    /// [`CheckpointError::Misfit`], [`CheckpointError::UnknownFormat`] and any error of the
    /// storage.
    pub fn load(
        &self,
        listed: &Listed,
        into: &mut impl Destination,
    ) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.load_checkpoint(listed.id, None, into)
    }
}
