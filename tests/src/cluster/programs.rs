//! The cluster's own programs, which Go built.

use std::path::{Path, PathBuf};

use crate::go_programs;

/// The folder of the programs that Go built.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Returns the programs, and builds them if they are missing.
    ///
    /// # Errors
    /// Go is missing or fails.
    pub(crate) fn ensure() -> anyhow::Result<Self> {
        go_programs::cluster_programs().map(Self::in_folder)
    }

    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }

    /// Returns kwok's description of its nodes and pods, from its own module.
    pub(crate) fn kwok_stages(&self) -> PathBuf {
        self.folder.join("stage")
    }
}
