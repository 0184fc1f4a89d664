//! Folders as `file://` URIs.

use crate::InvalidField;

/// Refuses a URI that names no folder by an absolute path.
pub(crate) fn check_file_uri(field: &str, uri: &str) -> Result<(), InvalidField> {
    match uri.strip_prefix("file:///") {
        Some(path) if !path.is_empty() && !path.split('/').any(|part| part == "..") => Ok(()),
        _ => Err(InvalidField::new(field, uri, "file:///FOLDER, an absolute path without `..`")),
    }
}
