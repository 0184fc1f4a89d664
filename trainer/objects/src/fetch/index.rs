//! Which files of a cache are whole: a line of JSON for each.

use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    error::{FetchError, disk_error},
    names::check_name,
};

const INDEX: &str = "index.jsonl";
const NEW_INDEX: &str = "index.new";
const BLOCK: usize = 1 << 20;

/// A file that is whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Its path below the data set's folder.
    pub(super) name: String,
    /// What told it at its source from other versions.
    pub(super) version: String,
    pub(super) bytes: u64,
    /// Of the content, in hexadecimal.
    pub(super) blake3: String,
    /// When this machine wrote it, in nanoseconds since 1970.
    modified: u128,
}

impl Entry {
    /// Describes a file of this machine.
    pub(super) fn of(name: String, version: String, path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let (bytes, modified) = (metadata.len(), modified(&metadata)?);
        Ok(Self { name, version, bytes, blake3: blake3_of(path)?, modified })
    }

    /// Returns the entry if the file below `folder` is what it describes. The content is read only
    /// if length and time are others.
    pub(super) fn checked(self, folder: &Path) -> Option<Self> {
        let path = folder.join(&self.name);
        let found = fs::symlink_metadata(&path).ok().filter(Metadata::is_file)?;
        if found.len() != self.bytes {
            return None;
        }
        let modified = modified(&found).ok()?;
        if modified == self.modified {
            return Some(self);
        }
        let same = blake3_of(&path).is_ok_and(|found| found == self.blake3);
        same.then_some(Self { modified, ..self })
    }
}

fn modified(metadata: &Metadata) -> io::Result<u128> {
    Ok(metadata.modified()?.duration_since(UNIX_EPOCH).map(|since| since.as_nanos()).unwrap_or_default())
}

/// Returns the BLAKE3 checksum of a file, in hexadecimal.
fn blake3_of(path: &Path) -> io::Result<String> {
    let mut hash = blake3::Hasher::new();
    read_all(path, |block| _ = hash.update(block))?;
    Ok(hash.finalize().to_hex().to_string())
}

/// Returns the SHA-256 checksum of a file, in hexadecimal.
pub(super) fn sha256_of(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    read_all(path, |block| hash.update(block))?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn read_all(path: &Path, mut feed: impl FnMut(&[u8])) -> io::Result<()> {
    let (mut file, mut block) = (File::open(path)?, vec![0; BLOCK]);
    loop {
        match file.read(&mut block)? {
            0 => return Ok(()),
            count => feed(&block[..count]),
        }
    }
}

/// The index of a cache.
pub(super) struct Index {
    path: PathBuf,
    new: PathBuf,
}

impl Index {
    /// Returns the index of a folder and the entries that it has by now. A line that was cut is
    /// none.
    pub(super) fn read(folder: &Path) -> Result<(Self, BTreeMap<String, Entry>), FetchError> {
        let index = Self { path: folder.join(INDEX), new: folder.join(NEW_INDEX) };
        let text = match fs::read_to_string(&index.path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => String::new(),
            Err(error) => return Err(disk_error("reading", &index.path, &error)),
        };
        let entries = text.lines().filter_map(|line| serde_json::from_str::<Entry>(line).ok());
        let good = entries.filter(|entry| check_name(&entry.name).is_ok());
        Ok((index, good.map(|entry| (entry.name.clone(), entry)).collect()))
    }

    /// Replaces all entries.
    pub(super) fn replace(&mut self, entries: &[Entry]) -> Result<(), FetchError> {
        let replace = || -> io::Result<()> {
            let mut file = io::BufWriter::new(File::create(&self.new)?);
            entries.iter().try_for_each(|entry| file.write_all(&line(entry)?))?;
            file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
            fs::rename(&self.new, &self.path)
        };
        replace().map_err(|error| disk_error("writing", &self.path, &error))
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, entry: &Entry) -> Result<(), FetchError> {
        let add = || -> io::Result<()> {
            File::options().append(true).create(true).open(&self.path)?.write_all(&line(entry)?)
        };
        add().map_err(|error| disk_error("writing", &self.path, &error))
    }
}

fn line(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}
