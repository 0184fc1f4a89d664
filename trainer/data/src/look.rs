//! Looks at the kind of thing that lies at a path.

use std::{
    fs::{self, Metadata},
    io,
    path::Path,
};

use crate::DataError;

/// What lies at a path, if anything. Storage that does not answer is an error, not an absence.
pub(crate) fn look(path: &Path) -> Result<Option<Metadata>, DataError> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(DataError::Read { path: path.to_owned(), source }),
    }
}

/// Refuses a folder that is none.
///
/// # Errors
/// [`DataError::FolderMissing`].
pub(crate) fn check_folder(folder: &Path, holds: &'static str) -> Result<(), DataError> {
    if look(folder)?.is_some_and(|found| found.is_dir()) {
        return Ok(());
    }
    Err(DataError::FolderMissing { folder: folder.to_owned(), holds })
}
