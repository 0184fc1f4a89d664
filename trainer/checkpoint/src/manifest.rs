//! The manifest of a checkpoint. It is JSON. Its last field is the blake3 digest of all bytes
//! before that field, so that the manifest proves itself as it proves the other files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    About, Layout, Position, TrainingIdentity,
    chunk::{Chunk, MAX_CHUNK_BYTES},
    format::{FORMAT_VERSION, MANIFEST},
    layout::VALUE_BYTES,
    read_error::ReadError,
    tensor_entry::{F32, TensorEntry},
};

/// The greatest length of a manifest that is read.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 16 << 20;

const DIGEST_BEFORE: &str = ",\n  \"digest\": \"";
const DIGEST_AFTER: &str = "\"\n}\n";
const DIGEST_HEX: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format_version: u64,
    /// The oldest version of this program's format that can read the manifest.
    pub(crate) readable_from: u64,
    /// The program that wrote the checkpoint, for people.
    pub(crate) writer: String,
    pub(crate) time: String,
    pub(crate) identity: TrainingIdentity,
    pub(crate) position: Position,
    pub(crate) state_digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) communication: Option<String>,
    #[serde(default, skip_serializing_if = "About::is_empty")]
    pub(crate) about: About,
    pub(crate) tensors: Vec<TensorEntry>,
    /// The chunks of the arena, in order.
    pub(crate) chunks: Vec<Chunk>,
}

/// The fields that every version has. They decide if this program reads the rest.
#[derive(Deserialize)]
struct Version {
    format_version: u64,
    #[serde(default)]
    readable_from: Option<u64>,
}

impl Manifest {
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        let body = json.strip_suffix("\n}").ok_or("no object")?;
        let digest = blake3::hash(body.as_bytes()).to_hex();
        Ok(format!("{body}{DIGEST_BEFORE}{digest}{DIGEST_AFTER}").into_bytes())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, ReadError> {
        let damaged = |problem: &str| ReadError::Damaged(format!("{MANIFEST} {problem}"));
        let end = bytes.strip_suffix(DIGEST_AFTER.as_bytes()).ok_or_else(|| damaged("has no end"))?;
        let (rest, digest) = end.split_last_chunk::<DIGEST_HEX>().ok_or_else(|| damaged("has no digest"))?;
        let body = rest.strip_suffix(DIGEST_BEFORE.as_bytes()).ok_or_else(|| damaged("has no digest"))?;
        if blake3::hash(body).to_hex().as_bytes() != digest {
            return Err(damaged("does not have the digest that it states"));
        }
        let unreadable = |error: serde_json::Error| damaged(&format!("cannot be read: {error}"));
        let Version { format_version, readable_from } = serde_json::from_slice(bytes).map_err(unreadable)?;
        // Version 1 had no `readable_from`.
        let is_newer = readable_from.is_some_and(|oldest| oldest > FORMAT_VERSION);
        if is_newer || format_version < FORMAT_VERSION {
            return Err(ReadError::UnknownFormat(format_version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        manifest.check().map_err(|problem| damaged(&problem))?;
        Ok(manifest)
    }

    /// Checks the fields. A manifest with a correct digest could still name files elsewhere or
    /// absurd sizes.
    fn check(&self) -> Result<(), String> {
        for TensorEntry { name, dtype, .. } in &self.tensors {
            if dtype != F32 {
                return Err(format!("gives tensor {name} the dtype {dtype}, only {F32} is read"));
            }
        }
        let layout = Layout::of(self.tensors.clone())?;
        check_cover(&self.chunks, layout.bytes())
    }

    /// Returns the total length of the files that the manifest names. Each file counts once.
    pub(crate) fn stored_bytes(&self) -> u64 {
        files(&self.chunks).values().sum()
    }
}

/// Returns the files of these chunks and their lengths.
pub(crate) fn files(chunks: &[Chunk]) -> BTreeMap<String, u64> {
    chunks.iter().map(|chunk| (chunk.file(), chunk.bytes)).collect()
}

/// Checks that the chunks cover an arena of `bytes` without gap or overlap.
pub(crate) fn check_cover(chunks: &[Chunk], bytes: u64) -> Result<(), String> {
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
