use std::path::PathBuf;

use crate::{
    Checkpoint, CheckpointError, Folder, Identity, Position,
    manifest::{Stored, Unusable},
};

/// A checkpoint as its manifest describes it; its files were not read.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Its step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// What its manifest says, or what is wrong with that.
    pub described: Result<Description, String>,
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
    /// All checkpoints, newest first.
    ///
    /// # Errors
    /// Any error of the storage.
    pub fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        self.steps()?.into_iter().map(|step| self.describe(step)).collect()
    }

    fn describe(&self, step: u64) -> Result<Listed, CheckpointError> {
        let path = self.step(step);
        let described = match self.manifest_of(step) {
            Ok((manifest, _, length)) => Ok(Description {
                bytes: length + manifest.stored_bytes(),
                files: match &manifest.stored {
                    Stored::Objects(objects) => objects.len(),
                    Stored::Chunks(chunks) => crate::manifest::files(chunks).len(),
                },
                identity: manifest.identity,
                position: manifest.position,
                time: manifest.time,
                format_version: manifest.format_version,
                writer: manifest.writer,
                tensors: manifest.tensors.len(),
            }),
            Err(Unusable::Damaged(reason)) => Err(reason),
            Err(Unusable::Newer(version)) => {
                Err(format!("has format version {version}, which this program does not read"))
            }
            Err(unread @ Unusable::Unread(_)) => return Err(unread.at(path)),
        };
        Ok(Listed { step, path, described })
    }

    /// Reads and verifies the checkpoint of `step`, whosever it is; tells what is wrong with it.
    ///
    /// # Errors
    /// [`CheckpointError::NewerFormat`] and any error of the storage.
    pub fn verify(&self, step: u64) -> Result<Result<Checkpoint, String>, CheckpointError> {
        self.read(step, |_, _| Ok(()))
    }
}
