//! What tells a file from one that was changed since.

use std::{fs::Metadata, time::SystemTime};

/// The length and the time of the last change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    pub(crate) fn of(found: &Metadata) -> Self {
        Self { bytes: found.len(), modified: found.modified().ok() }
    }
}
