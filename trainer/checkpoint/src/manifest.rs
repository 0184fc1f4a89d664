//! The manifest of a checkpoint: JSON whose last field is the blake3 digest of all bytes before that field, so that it
//! vouches for itself as it does for the other files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CheckpointError, Identity, Layout, MAX_CHUNK_BYTES, Position, chunk::Chunk, layout::VALUE_BYTES};

/// The version of the format that this program writes and reads. Every version ends in the digest.
pub const FORMAT_VERSION: u64 = 2;
/// The greatest manifest that is read.
pub const MAX_MANIFEST_BYTES: u64 = 16 << 20;

pub(crate) const MANIFEST: &str = "manifest.json";

const DIGEST_BEFORE: &str = ",\n  \"digest\": \"";
const DIGEST_AFTER: &str = "\"\n}\n";
const DIGEST_HEX: usize = 64;
const F32: &str = "F32";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format_version: u64,
    /// The oldest version whose programs read it.
    pub(crate) readable_from: u64,
    /// The program that wrote it, for people.
    pub(crate) writer: String,
    pub(crate) time: String,
    pub(crate) identity: Identity,
    pub(crate) position: Position,
    pub(crate) state_digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) communication: Option<String>,
    pub(crate) tensors: Vec<Entry>,
    /// The chunks of the arena, one after another.
    pub(crate) chunks: Vec<Chunk>,
}

/// A logical tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Weight,
    Slot,
}

/// The part of any version's manifest that says whether the rest is understood.
#[derive(Deserialize)]
struct Version {
    format_version: u64,
    #[serde(default)]
    readable_from: Option<u64>,
}

/// A manifest that is of no use.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// Damaged, or not one of ours.
    Damaged(String),
    /// Whole, but of a version that this program does not know.
    UnknownFormat(u64),
    /// The storage does not give it; what it is remains unknown.
    Unread(Box<CheckpointError>),
}

impl Entry {
    pub(crate) fn of(name: &str, shape: &[usize], role: Role) -> Self {
        Self { name: name.to_owned(), role, shape: shape.to_vec(), dtype: F32.to_owned() }
    }

    /// Number of elements; `None` where no memory could hold them.
    pub(crate) fn elements(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1_usize, |product, length| product.checked_mul(*length));
        elements.filter(|elements| elements.checked_mul(4).is_some())
    }
}

impl Manifest {
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        let body = json.strip_suffix("\n}").ok_or("no object")?;
        let digest = blake3::hash(body.as_bytes()).to_hex();
        Ok(format!("{body}{DIGEST_BEFORE}{digest}{DIGEST_AFTER}").into_bytes())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Unusable> {
        let damaged = |problem: &str| Unusable::Damaged(format!("{MANIFEST} {problem}"));
        let end = bytes.strip_suffix(DIGEST_AFTER.as_bytes()).ok_or_else(|| damaged("has no end"))?;
        let (rest, digest) = end.split_last_chunk::<DIGEST_HEX>().ok_or_else(|| damaged("has no digest"))?;
        let body = rest.strip_suffix(DIGEST_BEFORE.as_bytes()).ok_or_else(|| damaged("has no digest"))?;
        if blake3::hash(body).to_hex().as_bytes() != digest {
            return Err(damaged("does not have the digest that it states"));
        }
        let unreadable = |error: serde_json::Error| damaged(&format!("cannot be read: {error}"));
        let Version { format_version, readable_from } = serde_json::from_slice(bytes).map_err(unreadable)?;
        // Version 1 did not say which programs read it.
        let is_newer = readable_from.is_some_and(|oldest| oldest > FORMAT_VERSION);
        if is_newer || format_version < FORMAT_VERSION {
            return Err(Unusable::UnknownFormat(format_version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        manifest.check().map_err(|problem| damaged(&problem))?;
        Ok(manifest)
    }

    /// What the digest cannot tell: a manifest may be whole and still ask for files elsewhere or for absurd sizes.
    fn check(&self) -> Result<(), String> {
        for Entry { name, dtype, .. } in &self.tensors {
            if dtype != F32 {
                return Err(format!("gives tensor {name} the dtype {dtype}, only {F32} is read"));
            }
        }
        let layout = Layout::of(self.tensors.clone())?;
        tile(&self.chunks, layout.bytes())
    }

    /// Bytes of the files that it names, each counted once.
    pub(crate) fn stored_bytes(&self) -> u64 {
        files(&self.chunks).values().sum()
    }
}

/// The files of chunks, with their lengths.
pub(crate) fn files(chunks: &[Chunk]) -> BTreeMap<String, u64> {
    chunks.iter().map(|chunk| (chunk.file(), chunk.bytes)).collect()
}

/// Whether chunks are the whole arena of `bytes`, one after another.
pub(crate) fn tile(chunks: &[Chunk], bytes: u64) -> Result<(), String> {
    let mut end = 0;
    for chunk in chunks {
        let Chunk { start, bytes: length, .. } = *chunk;
        if start != end {
            return Err(format!("has a chunk from byte {start} where byte {end} is next"));
        }
        if !(1..=MAX_CHUNK_BYTES).contains(&length) || !length.is_multiple_of(VALUE_BYTES) {
            return Err(format!(
                "has a chunk of {length} bytes; one has whole values, at most {MAX_CHUNK_BYTES} bytes"
            ));
        }
        end = chunk.range().end;
    }
    if end != bytes {
        return Err(format!("has chunks of {end} bytes for tensors of {bytes}"));
    }
    Ok(())
}

/// Letters, digits, `-`, `_` and `.`, not starting with a dot: a name in this folder and nowhere else.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=255).contains(&name.len()) && !name.starts_with('.') && name.chars().all(plain)
}
