use std::path::PathBuf;

use crate::{CheckpointError, Folder, manifest::is_plain_name, operation::Contents};

/// The longest token of a probe.
pub const MAX_TOKEN_BYTES: usize = 128;

/// A probe tells whether members see one and the same folder: one writes a token, which the others look for. Storage that not every
/// member sees would lose checkpoints and is to be refused.
impl Folder {
    /// Leaves `token` for the others to see.
    ///
    /// # Errors
    /// [`CheckpointError::Token`], or any error of the storage.
    pub fn probe_write(&self, token: &str) -> Result<(), CheckpointError> {
        let path = self.probe(token)?;
        self.medium.store(&path, Contents::Bytes(token.as_bytes()))
    }

    /// Whether `token`, which another member left, is here. A network file system may take seconds to show it: ask again.
    ///
    /// # Errors
    /// [`CheckpointError::Token`], or any error of the storage but absence.
    pub fn probe_seen(&self, token: &str) -> Result<bool, CheckpointError> {
        let path = self.probe(token)?;
        match self.medium.length(&path) {
            Ok(length) => Ok(length == Some(token.len() as u64)),
            Err(unusable) => Err(unusable.at(path)),
        }
    }

    /// Takes `token` away; no error where it is gone already.
    ///
    /// # Errors
    /// [`CheckpointError::Token`], or any error of the storage but absence.
    pub fn probe_clear(&self, token: &str) -> Result<(), CheckpointError> {
        self.medium.remove(&self.probe(token)?)
    }

    fn probe(&self, token: &str) -> Result<PathBuf, CheckpointError> {
        if token.len() > MAX_TOKEN_BYTES || !is_plain_name(token) {
            return Err(CheckpointError::Token { token: token.chars().take(MAX_TOKEN_BYTES).collect() });
        }
        Ok(self.path().join("probes").join(token))
    }
}
