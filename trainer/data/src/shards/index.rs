//! The places of the samples in an archive.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use tar::Archive;

use crate::{DataError, imagefolder::MAX_PICTURES, stamp::Stamp};

/// Ends of the names of pictures, and of labels.
const PICTURES: [&str; 3] = ["jpg", "jpeg", "png"];
const LABEL: &str = "cls";
/// The most bytes of a label.
const MAX_LABEL_BYTES: u64 = 32;
/// The most bytes of a name.
const MAX_NAME_BYTES: usize = 4096;

/// A sample in an archive.
pub(super) struct Member {
    /// Its name up to the first dot, with its folders.
    pub(super) key: String,
    /// Where its picture begins in the archive, and its bytes.
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) label: u64,
}

/// What was found of the sample that is being read.
#[derive(Default)]
struct Open {
    key: String,
    picture: Option<(u64, u64)>,
    label: Option<u64>,
}

/// Lists the samples of an archive, as it is now. Only headers and labels are read.
///
/// # Errors
/// The archive is damaged, or a sample lacks its picture or its label.
pub(super) fn members(path: &Path) -> Result<(Stamp, Vec<Member>), DataError> {
    let damaged = |source: io::Error| match source.kind() {
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            DataError::DamagedArchive { path: path.to_owned(), source }
        }
        _ => DataError::Read { path: path.to_owned(), source },
    };
    let file = File::open(path).map_err(damaged)?;
    let stamp = Stamp::of(&file.metadata().map_err(damaged)?);
    let stored = stamp.bytes;
    let mut archive = Archive::new(BufReader::new(file));
    let (mut found, mut open) = (Vec::new(), Open::default());
    for entry in archive.entries_with_seek().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path_bytes().into_owned();
        let Some((key, end)) = parts(&name) else { continue };
        if key != open.key {
            found.extend(std::mem::take(&mut open).closed(path)?);
            open.key = key;
        }
        let (start, bytes) = (entry.raw_file_position(), entry.size());
        if start.saturating_add(bytes) > stored {
            return Err(damaged(io::ErrorKind::UnexpectedEof.into()));
        }
        if PICTURES.contains(&end.as_str()) {
            open.picture = Some((start, bytes));
        } else if end == LABEL {
            let mut text = String::new();
            entry.by_ref().take(MAX_LABEL_BYTES).read_to_string(&mut text).map_err(damaged)?;
            let Ok(label) = text.trim().parse() else {
                let most = crate::MAX_CLASSES - 1;
                return Err(DataError::MemberLabel { path: path.to_owned(), key: open.key, found: text, most });
            };
            open.label = Some(label);
        }
        if found.len() > MAX_PICTURES {
            return Err(DataError::TooManyPictures { folder: path.to_owned(), most: MAX_PICTURES });
        }
    }
    found.extend(open.closed(path)?);
    Ok((stamp, found))
}

impl Open {
    fn closed(self, path: &Path) -> Result<Option<Member>, DataError> {
        let missing = |key: String, missing| Err(DataError::HalfMember { path: path.to_owned(), key, missing });
        match self {
            Self { picture: None, label: None, .. } => Ok(None),
            Self { key, picture: Some((start, bytes)), label: Some(label) } => {
                Ok(Some(Member { key, start, bytes, label }))
            }
            Self { key, picture: None, .. } => missing(key, "jpg, .jpeg or .png"),
            Self { key, label: None, .. } => missing(key, "cls"),
        }
    }
}

/// The name up to the first dot of its last part, and the end after the last dot, in lower case.
/// `None` if it has no dot or is hidden.
fn parts(name: &[u8]) -> Option<(String, String)> {
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= MAX_NAME_BYTES)?;
    let file = name.rsplit('/').next()?;
    let stem = file.split('.').next().filter(|stem| !stem.is_empty())?;
    let end = file.rsplit_once('.')?.1.to_lowercase();
    let key = &name[..name.len() - file.len() + stem.len()];
    Some((key.to_owned(), end))
}
