//! The changes of the file system, as values. Their order makes a checkpoint whole or absent. A
//! test can end the process before, within or after each of them, or perform them on a simulated
//! disk.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, fadvise};

use crate::CheckpointError;

/// The number of bytes that are made and used at a time. They stay in a core's cache.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

#[derive(Clone, Debug)]
pub(crate) enum FileOperation<'a> {
    /// Makes a folder unless it exists.
    Create(PathBuf),
    /// Writes a new file. The system begins to store its bytes. Only a sync makes them durable.
    Write(PathBuf, Contents<'a>),
    /// Gives the first file a second name.
    Link(PathBuf, PathBuf),
    /// Waits until the bytes of a file, or the names in a folder, are stored.
    Sync(PathBuf),
    /// Moves a file or folder in one instant. Replaces a file at the new path.
    Rename(PathBuf, PathBuf),
    /// Deletes a file, or a folder with its content. Succeeds if it is already gone.
    Remove(PathBuf),
}

impl FileOperation<'_> {
    /// Returns the error of this operation.
    pub(crate) fn failed(&self, source: io::Error) -> CheckpointError {
        let (action, path) = match self {
            FileOperation::Create(path) => ("creating", path),
            FileOperation::Write(path, _) => ("writing", path),
            FileOperation::Link(_, to) => ("linking", to),
            FileOperation::Sync(path) => ("syncing", path),
            FileOperation::Rename(_, to) => ("renaming to", to),
            FileOperation::Remove(path) => ("deleting", path),
        };
        CheckpointError::of(action, path.clone(), source)
    }
}

/// The content of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Contents<'a> {
    Bytes(&'a [u8]),
    /// A sequence of values, little-endian.
    Values(&'a [&'a [f32]]),
}

impl Contents<'_> {
    /// Returns all bytes.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut all = Vec::new();
        let read: io::Result<()> = self.each_block(|block| {
            all.extend_from_slice(block);
            Ok(())
        });
        debug_assert!(read.is_ok(), "memory does not fail");
        all
    }

    /// Calls `act` with all bytes, in blocks.
    pub(crate) fn each_block(&self, mut act: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => bytes.chunks(BLOCK_BYTES).try_for_each(act),
            // The bytes of the file are the bytes in memory.
            Self::Values(parts) if cfg!(target_endian = "little") => {
                parts.iter().flat_map(|part| bytemuck::cast_slice(part).chunks(BLOCK_BYTES)).try_for_each(act)
            }
            Self::Values(parts) => {
                let blocks = parts.iter().flat_map(|part| part.chunks(BLOCK_BYTES / size_of::<f32>()));
                blocks
                    .map(|block| block.iter().flat_map(|value| value.to_le_bytes()).collect())
                    .try_for_each(|block: Vec<u8>| act(&block))
            }
        }
    }
}

/// Performs operations and reads their results. The file system implements it, and so do tests that
/// inject faults. The default methods read the real file system.
pub(crate) trait Perform: fmt::Debug + Send + Sync {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError>;

    /// Returns the kind of thing at a path.
    fn look(&self, path: &Path) -> io::Result<PathKind> {
        let found = path.metadata()?;
        Ok(match (found.is_file(), found.is_dir()) {
            (true, _) => PathKind::File { bytes: found.len() },
            (_, true) => PathKind::Folder,
            (false, false) => PathKind::Other,
        })
    }

    /// Reads at most the first `most` bytes of a file in blocks. All blocks but the last hold whole
    /// values.
    fn read(&self, path: &Path, most: u64, act: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut file = File::open(path)?.take(most);
        let mut block = vec![0; BLOCK_BYTES];
        loop {
            match fill(&mut block, &mut file)? {
                0 => return Ok(()),
                filled => act(&block[..filled]),
            }
        }
    }

    /// Returns the names in a folder.
    fn file_names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>)?;
        Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Draws a unique word.
    fn unique_word(&self) -> String {
        unique_word()
    }
}

/// The kind of thing at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathKind {
    File {
        bytes: u64,
    },
    Folder,
    /// For example a pipe or a device.
    Other,
}

/// Draws a unique word. It is random because members in containers share process ids.
pub(crate) fn unique_word() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// The real file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem;

impl Perform for FileSystem {
    fn perform(&self, operation: &FileOperation<'_>) -> Result<(), CheckpointError> {
        let performed = match operation {
            FileOperation::Create(path) => create(path),
            FileOperation::Write(path, contents) => write(path, contents),
            FileOperation::Link(from, to) => fs::hard_link(from, to),
            FileOperation::Sync(path) => sync(path),
            FileOperation::Rename(from, to) => fs::rename(from, to),
            FileOperation::Remove(path) => remove(path),
        };
        performed.map_err(|error| operation.failed(error))
    }
}

/// Waits until the bytes of a file, or the names in a folder, are stored.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Reads until the block is full or the file ends. Returns the number of bytes.
fn fill(block: &mut [u8], file: &mut impl Read) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match file.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn create(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

fn write(path: &Path, contents: &Contents<'_>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    contents.each_block(|block| file.write_all(block))?;
    // Linux now begins to store the file. Otherwise it would wait for the sync and leave the
    // storage idle. A file system that ignores this advice stores the file at the sync.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = path.symlink_metadata().and_then(|found| match found.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    });
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
