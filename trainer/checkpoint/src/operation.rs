//! What changes the file system, as values: their order is what makes a checkpoint whole or absent, so that a test can end a process
//! before, in the middle of and after each of them, or perform them on a disk of its own.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, fadvise};

use crate::CheckpointError;

/// Bytes that are made and used at a time: they stay in a core's cache.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

#[derive(Clone, Debug)]
pub(crate) enum Operation<'a> {
    /// Makes a folder unless it is there.
    Create(PathBuf),
    /// Writes a file that is not there yet. The system begins to store its bytes; they are stored once it is synced.
    Write(PathBuf, Contents<'a>),
    /// Gives a file, the first, a second name.
    Link(PathBuf, PathBuf),
    /// Waits until the bytes of a file, or the names in a folder, are stored.
    Sync(PathBuf),
    /// Moves a file or folder, in one instant; onto a file replaces it.
    Rename(PathBuf, PathBuf),
    /// Deletes a file, or a folder with all that is in it, unless somebody else was faster.
    Remove(PathBuf),
}

impl Operation<'_> {
    /// What a caller is told where it fails.
    pub(crate) fn failed(&self, source: io::Error) -> CheckpointError {
        let (attempt, path) = match self {
            Operation::Create(path) => ("creating", path),
            Operation::Write(path, _) => ("writing", path),
            Operation::Link(_, to) => ("linking", to),
            Operation::Sync(path) => ("syncing", path),
            Operation::Rename(_, to) => ("renaming to", to),
            Operation::Remove(path) => ("deleting", path),
        };
        CheckpointError::of(attempt, path.clone(), source)
    }
}

/// What a file gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Contents<'a> {
    Bytes(&'a [u8]),
    /// Values one after another, little-endian.
    Values(&'a [&'a [f32]]),
}

impl Contents<'_> {
    /// All the bytes.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut all = Vec::new();
        let read: io::Result<()> = self.each_block(|block| {
            all.extend_from_slice(block);
            Ok(())
        });
        debug_assert!(read.is_ok(), "memory does not fail");
        all
    }

    /// All the bytes, in blocks.
    pub(crate) fn each_block(&self, mut act: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => bytes.chunks(BLOCK_BYTES).try_for_each(act),
            // In memory as they are in the file.
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

/// Performs operations and reads what they have made: the file system, or a test in which something goes wrong. A test that changes
/// nothing of how the file system is read leaves that as it is.
pub(crate) trait Perform: fmt::Debug + Send + Sync {
    fn perform(&self, operation: &Operation<'_>) -> Result<(), CheckpointError>;

    /// What a path leads to.
    fn look(&self, path: &Path) -> io::Result<Found> {
        let found = path.metadata()?;
        Ok(match (found.is_file(), found.is_dir()) {
            (true, _) => Found::File { bytes: found.len() },
            (_, true) => Found::Folder,
            (false, false) => Found::Other,
        })
    }

    /// The first `most` bytes of a file, or all that it has, in blocks of whole values but for the last.
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

    /// The names in a folder.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>)?;
        Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// A word that nobody else draws.
    fn draw(&self) -> String {
        drawn()
    }
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    File {
        bytes: u64,
    },
    Folder,
    /// A pipe, a device.
    Other,
}

/// A word that nobody else draws. It is random: members in containers share process ids.
pub(crate) fn drawn() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// The file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem;

impl Perform for FileSystem {
    fn perform(&self, operation: &Operation<'_>) -> Result<(), CheckpointError> {
        let performed = match operation {
            Operation::Create(path) => create(path),
            Operation::Write(path, contents) => write(path, contents),
            Operation::Link(from, to) => fs::hard_link(from, to),
            Operation::Sync(path) => sync(path),
            Operation::Rename(from, to) => fs::rename(from, to),
            Operation::Remove(path) => remove(path),
        };
        performed.map_err(|error| operation.failed(error))
    }
}

/// Waits until the bytes of a file, or the names in a folder, are stored.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Reads until the block is full or there is no more; gives how many bytes there were.
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
    // Linux begins to store what it may then forget; left alone it waits for the sync, and the storage is idle until then. A file system
    // that does not know this advice stores all the same.
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
