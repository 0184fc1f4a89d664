use std::path::PathBuf;

use crate::{
    CheckpointError, Folder,
    file_operation::Contents,
    plain_name::{MAX_TOKEN_BYTES, is_plain_name},
};

/// A probe checks that all members see the same folder: one writes a token and the others look for
/// it. Storage that some members do not see would lose checkpoints, so the job refuses it.
impl Folder {
    /// Writes `token` for the other members.
    ///
    /// # Errors
    /// [`CheckpointError::Token`], or any error of the storage.
    pub fn probe_write(&self, token: &str) -> Result<(), CheckpointError> {
        let path = self.probe(token)?;
        self.backend.store(&path, Contents::Bytes(token.as_bytes()))
    }

    /// True if another member's `token` is visible. A network file system may take seconds to show
    /// it: ask again.
    ///
    /// # Errors
    /// [`CheckpointError::Token`], or any error of the storage except absence.
    pub fn probe_seen(&self, token: &str) -> Result<bool, CheckpointError> {
        let path = self.probe(token)?;
        match self.backend.length(&path) {
            Ok(length) => Ok(length == Some(token.len() as u64)),
            Err(unusable) => Err(unusable.at(path)),
        }
    }

    /// Deletes `token`. Succeeds if it is already gone.
    ///
    /// # Errors
    /// [`CheckpointError::Token`], or any error of the storage except absence.
    pub fn probe_clear(&self, token: &str) -> Result<(), CheckpointError> {
        self.backend.remove(&self.probe(token)?)
    }

    fn probe(&self, token: &str) -> Result<PathBuf, CheckpointError> {
        if token.len() > MAX_TOKEN_BYTES || !is_plain_name(token) {
            return Err(CheckpointError::Token { token: token.chars().take(MAX_TOKEN_BYTES).collect() });
        }
        Ok(self.path().join("probes").join(token))
    }
}
