//! Fetches a data set from an object store or a web server into a folder of this machine.
//!
//! Each place has a folder of its own in the cache: `files` is the data set, `arriving` holds what
//! is under way, `index.jsonl` names each file that is whole, and `lock` lets one process of the
//! machine fetch at a time. A file is whole or absent: it gets its name once its length and its
//! checksum are right. A download that was cut goes on where it ended, also in another process.

mod archive;
mod download;
mod error;
mod index;
mod limits;
mod names;
mod progress;
mod remote_file;
mod source;
mod sums;
mod web;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use lockstep_launch::DataUri;
use tokio::runtime::Builder;
use tracing::{info, warn};

pub use self::error::FetchError;
use self::{
    archive::{ArchiveKind, unpack},
    download::Downloads,
    error::disk_error,
    index::{Entry, Index},
    remote_file::RemoteFile,
    source::Source,
};
use crate::{Limits, environment};

const FILES: &str = "files";
const ARRIVING: &str = "arriving";
const UNPACKING: &str = "unpacking";
const LOCK: &str = "lock";
/// Letters of a place's folder that come from its URI, for people.
const NAME_LETTERS: usize = 60;

/// What becomes of an archive that a URI names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TarFile {
    /// Its files are the data set.
    Unpacked,
    /// It is a file of the data set, unless it is compressed.
    Kept,
}

/// A data set on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Holds the files.
    pub folder: PathBuf,
    /// A digest of the names and the contents of all files.
    pub digest: [u8; 32],
}

/// Fetches what the cache lacks of a place, with endpoint and credentials from this process's
/// environment. The log says how far it is.
///
/// # Errors
/// The place cannot be read, or the cache cannot be written. The error says what to do.
pub fn fetch(place: &DataUri, tar: TarFile, cache: &Path) -> Result<Fetched, FetchError> {
    fetch_with(place, tar, cache, &environment(), Limits::default())
}

/// As [`fetch`], with these variables and limits.
///
/// # Errors
/// As [`fetch`].
pub fn fetch_with(
    place: &DataUri,
    tar: TarFile,
    cache: &Path,
    variables: &[(String, String)],
    limits: Limits,
) -> Result<Fetched, FetchError> {
    let source = Source::open(place, variables)?;
    let archive = ArchiveKind::of(&place.to_string()).filter(|kind| tar == TarFile::Unpacked || kind.is_compressed());
    let store = Store::open(cache, place, archive)?;
    let _lock = store.lock()?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| FetchError::passing(format!("starting the runtime that fetches: {error}")))?;
    let downloads = Downloads { source: &source, limits, arriving: store.folder.join(ARRIVING) };
    let listed = runtime.block_on(downloads.list())?;
    let entries = match archive {
        None => store
            .complete(listed, |missing, index| runtime.block_on(downloads.fetch_all(missing, &store.files(), index)))?,
        Some(kind) => store.unpacked(&listed, kind, |file| runtime.block_on(downloads.fetch_one(file)))?,
    };
    let digest = digest(&entries);
    let folder = if archive.is_some() { inner(store.files()) } else { store.files() };
    Ok(Fetched { folder, digest })
}

/// The folder of one place in the cache.
struct Store {
    folder: PathBuf,
}

impl Store {
    fn open(cache: &Path, place: &DataUri, archive: Option<ArchiveKind>) -> Result<Self, FetchError> {
        let place = place.to_string();
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        let shown: String = place.chars().map(plain).take(NAME_LETTERS).collect();
        let key = blake3::hash(format!("{place} {archive:?}").as_bytes());
        let folder = cache.join(format!("{shown}-{}", &key.to_hex()[..16]));
        for made in [&folder, &folder.join(FILES), &folder.join(ARRIVING)] {
            fs::create_dir_all(made).map_err(|error| disk_error("making", made, &error))?;
        }
        Ok(Self { folder })
    }

    fn files(&self) -> PathBuf {
        self.folder.join(FILES)
    }

    /// Waits until no other process fetches the same. Dropping the file ends the lock.
    fn lock(&self) -> Result<File, FetchError> {
        let path = self.folder.join(LOCK);
        let locked = || -> io::Result<File> {
            let file = File::create(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    info!(folder = %self.folder.display(), "another process of this machine fetches the data set");
                    file.lock()?;
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            Ok(file)
        };
        locked().map_err(|error| disk_error("locking", &path, &error))
    }

    /// Fetches the listed files that are not here as they are there, and removes all others.
    fn complete(
        &self,
        listed: Vec<RemoteFile>,
        fetch: impl FnOnce(Vec<RemoteFile>, &mut Index) -> Result<Vec<Entry>, FetchError>,
    ) -> Result<Vec<Entry>, FetchError> {
        let (mut index, mut known) = Index::read(&self.folder)?;
        let (mut kept, mut missing) = (Vec::new(), Vec::new());
        for file in listed {
            let entry = known.remove(&file.name);
            match entry.and_then(|entry| still_whole(entry, &file.version(), &self.files())) {
                Some(entry) => kept.push(entry),
                None => missing.push(file),
            }
        }
        let wanted: BTreeSet<&str> =
            kept.iter().map(|entry| &*entry.name).chain(missing.iter().map(|file| &*file.name)).collect();
        remove_others(&self.files(), &wanted)?;
        index.replace(&kept)?;
        if missing.is_empty() {
            info!(files = kept.len(), folder = %self.folder.display(), "the data set is in the cache");
        } else {
            kept.extend(fetch(missing, &mut index)?);
        }
        Ok(kept)
    }

    /// Fetches an archive and unpacks it, unless its files are here already.
    fn unpacked(
        &self,
        listed: &[RemoteFile],
        kind: ArchiveKind,
        fetch: impl FnOnce(&RemoteFile) -> Result<PathBuf, FetchError>,
    ) -> Result<Vec<Entry>, FetchError> {
        let [file] = listed else {
            return Err(FetchError::lasting("an archive is one file; set spec.dataset.uri to it".to_owned()));
        };
        let (mut index, known) = Index::read(&self.folder)?;
        let version = file.version();
        let count = known.len();
        let whole: Vec<Entry> =
            known.into_values().filter_map(|entry| still_whole(entry, &version, &self.files())).collect();
        if count > 0 && whole.len() == count {
            info!(files = count, folder = %self.folder.display(), "the data set is in the cache");
            return Ok(whole);
        }
        let archive = fetch(file)?;
        let unpacking = self.folder.join(UNPACKING);
        empty(&unpacking)?;
        let entries = unpack(&archive, kind, &unpacking, &version)?;
        index.replace(&[])?;
        empty(&self.files())?;
        fs::rename(&unpacking, self.files()).map_err(|error| disk_error("moving", &unpacking, &error))?;
        index.replace(&entries)?;
        fs::remove_file(&archive).map_err(|error| disk_error("removing", &archive, &error))?;
        info!(files = entries.len(), "the archive is unpacked");
        Ok(entries)
    }
}

/// Returns the entry of a file that is here as it was fetched, and has this version there.
fn still_whole(entry: Entry, version: &str, files: &Path) -> Option<Entry> {
    if entry.version != version {
        info!(file = entry.name, "the file changed at its source");
        return None;
    }
    let name = entry.name.clone();
    let found = entry.checked(files);
    if found.is_none() {
        warn!(file = name, "the cached file is not what was fetched; it is fetched again");
    }
    found
}

/// Removes the files below `folder` that are not `wanted`, and folders without a file.
fn remove_others(folder: &Path, wanted: &BTreeSet<&str>) -> Result<(), FetchError> {
    fn visit(folder: &Path, below: &str, wanted: &BTreeSet<&str>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().map(|name| format!("{below}{name}"));
            if entry.file_type()?.is_dir() {
                match &name {
                    Some(name) => visit(&entry.path(), &format!("{name}/"), wanted)?,
                    None => fs::remove_dir_all(entry.path())?,
                }
                // It may hold something that is wanted.
                let _ = fs::remove_dir(entry.path());
            } else if !name.is_some_and(|name| wanted.contains(&*name)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
    visit(folder, "", wanted).map_err(|error| disk_error("cleaning", folder, &error))
}

/// Makes a folder that is empty.
fn empty(folder: &Path) -> Result<(), FetchError> {
    let emptied = match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(folder),
    };
    emptied.map_err(|error| disk_error("emptying", folder, &error))
}

/// Returns the only folder in `folder` if there is nothing beside it: many archives have one.
fn inner(folder: PathBuf) -> PathBuf {
    let mut found = fs::read_dir(&folder).into_iter().flatten().flatten();
    match (found.next(), found.next()) {
        (Some(only), None) if only.file_name() != "train" && only.path().is_dir() => only.path(),
        _ => folder,
    }
}

fn digest(entries: &[Entry]) -> [u8; 32] {
    let sorted: BTreeMap<&str, &Entry> = entries.iter().map(|entry| (&*entry.name, entry)).collect();
    let mut hash = blake3::Hasher::new_derive_key("lockstep fetched data set v1");
    for (name, entry) in sorted {
        hash.update(name.as_bytes()).update(&[0]).update(entry.blake3.as_bytes());
    }
    *hash.finalize().as_bytes()
}

#[cfg(test)]
mod tests;
