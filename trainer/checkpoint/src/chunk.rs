//! A chunk is the unit in which a state is stored and verified. A later checkpoint refers to an
//! unchanged chunk again. A chunk's file is named after its digest: equal bytes are one file, and
//! the name says what the file must hold.

use std::{fmt, io, ops::Range, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::file_operation::Contents;

/// The greatest length of a chunk that is read.
pub(crate) const MAX_CHUNK_BYTES: u64 = 64 << 20;
/// The greatest length of a chunk that is written. At this length a reader's buffer stays in the
/// cache, and one chunk is hashed while another is written.
pub(crate) const CHUNK_BYTES: u64 = 16 << 20;

const SUFFIX: &str = ".chunk";

/// A range of the arena that is stored as one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The first byte in the arena.
    pub start: u64,
    /// The number of bytes, at most 64 MiB.
    pub bytes: u64,
    /// The CRC-32C checksum of the bytes.
    pub crc32c: u32,
    /// The digest of the bytes. It names the file.
    pub digest: ChunkDigest,
}

/// The first 128 bits of BLAKE3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ChunkDigest([u8; 16]);

impl Chunk {
    /// Reads `contents` once and computes the checksums.
    pub(crate) fn of(start: u64, contents: &Contents<'_>) -> Self {
        let mut seen = ChunkHasher::from(start);
        let read: io::Result<()> = contents.each_block(|block| {
            seen.add(block);
            Ok(())
        });
        debug_assert!(read.is_ok(), "a computation does not fail");
        seen.chunk()
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.bytes)
    }

    /// Returns the name of its file in the folder of a checkpoint.
    pub(crate) fn file(&self) -> String {
        format!("{}{SUFFIX}", self.digest)
    }

    /// True if `name` is the name of a chunk's file.
    pub(crate) fn is_file(name: &str) -> bool {
        name.ends_with(SUFFIX)
    }

    /// Checks the length of the file of this chunk. Returns the problem.
    pub(crate) fn accept(&self, length: u64) -> Result<(), String> {
        match length == self.bytes {
            true => Ok(()),
            false => Err(format!("{} has {length} bytes, the manifest says {}", self.file(), self.bytes)),
        }
    }

    /// Compares the chunk that was found with this one. Returns the problem.
    pub(crate) fn check(&self, found: &Self) -> Result<(), &'static str> {
        if found.bytes != self.bytes {
            return Err("does not have the length that the manifest states");
        }
        if found.crc32c != self.crc32c {
            return Err("does not have the checksum that the manifest states");
        }
        if found.digest != self.digest {
            return Err("does not have the digest that the manifest states");
        }
        Ok(())
    }
}

/// Computes the checksums of a chunk block by block.
pub(crate) struct ChunkHasher {
    start: u64,
    bytes: u64,
    crc: crc_fast::Digest,
    hasher: blake3::Hasher,
}

impl ChunkHasher {
    /// Starts a chunk at this byte of the arena.
    pub(crate) fn from(start: u64) -> Self {
        Self { start, bytes: 0, crc: crc_fast::Digest::new(CRC32C), hasher: blake3::Hasher::new() }
    }

    /// Adds the next bytes.
    pub(crate) fn add(&mut self, block: &[u8]) {
        self.crc.update(block);
        self.hasher.update(block);
        self.bytes += block.len() as u64;
    }

    /// Ends the chunk.
    pub(crate) fn chunk(self) -> Chunk {
        let Self { start, bytes, crc, hasher } = self;
        Chunk { start, bytes, crc32c: crc.finalize() as u32, digest: ChunkDigest::of(&hasher) }
    }
}

const CRC32C: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;

impl ChunkDigest {
    fn of(hasher: &blake3::Hasher) -> Self {
        let mut short = [0; 16];
        short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(short)
    }
}

impl fmt::Display for ChunkDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for ChunkDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits: Option<Vec<u8>> =
            text.bytes().map(|byte| char::from(byte).to_digit(16).map(|digit| digit as u8)).collect();
        let lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
        match digits.filter(|digits| lower && digits.len() == 32) {
            None => Err(format!("`{text}` is no digest of 32 hexadecimal digits")),
            Some(digits) => {
                let mut bytes = [0; 16];
                bytes.iter_mut().zip(digits.chunks(2)).for_each(|(byte, digits)| *byte = digits[0] << 4 | digits[1]);
                Ok(Self(bytes))
            }
        }
    }
}

impl TryFrom<String> for ChunkDigest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ChunkDigest> for String {
    fn from(digest: ChunkDigest) -> Self {
        digest.to_string()
    }
}

/// Cuts `range` into ranges of at most `most` bytes.
pub(crate) fn cut(range: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(most as usize).map(move |start| start..start.saturating_add(most).min(end))
}
