//! The classes and the pictures that a folder holds.

use std::{
    fs::{self, DirEntry},
    path::{Path, PathBuf},
};

use super::MAX_PICTURES;
use crate::{DataError, stamp::Stamp};

/// Ends of the names of files that are pictures, in lower case.
const ENDS: [&str; 3] = ["jpg", "jpeg", "png"];

/// The folder of a class.
#[derive(Clone, Debug)]
pub(super) struct ClassFolder {
    pub(super) name: String,
    pub(super) folder: PathBuf,
    /// In the order of their names.
    pub(super) pictures: Vec<PictureFile>,
}

/// A file whose name says that it is a picture.
#[derive(Clone, Debug)]
pub(super) struct PictureFile {
    /// Below the data set's folder.
    pub(super) path: PathBuf,
    pub(super) stamp: Stamp,
}

/// Lists the folders below `part` of the data set's `folder`, in the order of their names. Files
/// beside them are no pictures of any class, and hidden folders no classes.
pub(super) fn class_folders(folder: &Path, part: &str) -> Result<Vec<ClassFolder>, DataError> {
    let outer = folder.join(part);
    let mut found = 0;
    let mut classes = Vec::new();
    for entry in sorted(&outer)? {
        let path = entry.path();
        let is_folder = fs::metadata(&path).map_err(|source| read_error(&path, source))?.is_dir();
        let file_name = entry.file_name();
        if !is_folder || file_name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let Some(name) = file_name.to_str() else { return Err(DataError::NoText { path }) };
        let pictures = pictures(&path, &Path::new(part).join(name))?;
        found += pictures.len();
        if found > MAX_PICTURES {
            return Err(DataError::TooManyPictures { folder: outer, most: MAX_PICTURES });
        }
        classes.push(ClassFolder { name: name.to_owned(), folder: path, pictures });
    }
    Ok(classes)
}

fn pictures(folder: &Path, below: &Path) -> Result<Vec<PictureFile>, DataError> {
    let mut pictures = Vec::new();
    for entry in sorted(folder)? {
        let path = entry.path();
        let end = path.extension().and_then(|end| end.to_str()).map(str::to_lowercase);
        if !end.is_some_and(|end| ENDS.contains(&end.as_str())) {
            continue;
        }
        let found = fs::metadata(&path).map_err(|source| read_error(&path, source))?;
        if found.is_file() {
            pictures.push(PictureFile { path: below.join(entry.file_name()), stamp: Stamp::of(&found) });
        }
    }
    Ok(pictures)
}

fn sorted(folder: &Path) -> Result<Vec<DirEntry>, DataError> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = entries.map_err(|source| read_error(folder, source))?;
    entries.sort_by_key(DirEntry::file_name);
    Ok(entries)
}

fn read_error(path: &Path, source: std::io::Error) -> DataError {
    DataError::Read { path: path.to_owned(), source }
}
