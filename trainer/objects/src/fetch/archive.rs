//! Unpacks tar archives, plain or gzip, that others made.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write as _},
    path::Path,
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};

use super::{
    error::{FetchError, disk_error},
    index::Entry,
    limits::MAX_FILES,
    names::check_name,
};

const BLOCK: usize = 256 << 10;

/// The kind of an archive, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArchiveKind {
    Tar,
    TarGz,
}

impl ArchiveKind {
    /// Returns the kind that a name ends with.
    pub(super) fn of(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        if name.ends_with(".tar") {
            Some(Self::Tar)
        } else if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            Some(Self::TarGz)
        } else {
            None
        }
    }

    pub(super) fn is_compressed(self) -> bool {
        self == Self::TarGz
    }
}

/// Unpacks the files of an archive into a folder. The disk limits their bytes. Links and names that
/// lead out of the folder are refused.
pub(super) fn unpack(
    archive: &Path,
    kind: ArchiveKind,
    folder: &Path,
    version: &str,
) -> Result<Vec<Entry>, FetchError> {
    let file = File::open(archive).map_err(|error| disk_error("reading", archive, &error))?;
    let reader = BufReader::with_capacity(BLOCK, file);
    match kind {
        ArchiveKind::Tar => unpack_from(reader, archive, folder, version),
        ArchiveKind::TarGz => unpack_from(MultiGzDecoder::new(reader), archive, folder, version),
    }
}

fn unpack_from(reader: impl Read, archive: &Path, folder: &Path, version: &str) -> Result<Vec<Entry>, FetchError> {
    let refuse = |why: String| FetchError::lasting(format!("{}: {why}; make another archive", archive.display()));
    let damaged = |error: io::Error| refuse(format!("it is a damaged archive ({error})"));
    let mut entries = Vec::new();
    let mut unpacker = Archive::new(reader);
    for entry in unpacker.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let path = entry.path_bytes().into_owned();
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::Directory | EntryType::XGlobalHeader => continue,
            _ => {
                let shown = String::from_utf8_lossy(&path).into_owned();
                return Err(refuse(format!("{shown:?} is a link or a device; accepted are files and folders")));
            }
        }
        let Ok(name) = String::from_utf8(path) else { return Err(refuse("a name in it is not UTF-8".to_owned())) };
        let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
        check_name(&name).map_err(refuse)?;
        if entries.len() == MAX_FILES {
            return Err(refuse(format!("it holds more than {MAX_FILES} files")));
        }
        write_file(&mut entry, folder, &name, &damaged)?;
        let path = folder.join(&name);
        let described = Entry::of(name, version.to_owned(), &path);
        entries.push(described.map_err(|error| disk_error("reading", &path, &error))?);
    }
    Ok(entries)
}

fn write_file(
    from: &mut impl Read,
    folder: &Path,
    name: &str,
    damaged: &impl Fn(io::Error) -> FetchError,
) -> Result<(), FetchError> {
    let path = folder.join(name);
    let failed = |error: io::Error| disk_error("unpacking", &path, &error);
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    let mut file = File::create(&path).map_err(failed)?;
    let mut block = vec![0; BLOCK];
    loop {
        match from.read(&mut block).map_err(damaged)? {
            0 => return Ok(()),
            count => file.write_all(&block[..count]).map_err(failed)?,
        }
    }
}
