//! The manifest of a checkpoint: JSON whose last field is the blake3 digest of all bytes before that field, so that it
//! vouches for itself as it does for the other files.

use std::io;

use serde::{Deserialize, Serialize};

use crate::{Identity, Position, Tensor};

/// Version of the layout that this program writes, and the newest that it reads. Every version ends in the digest.
pub const FORMAT_VERSION: u64 = 1;
/// The greatest manifest that is read.
pub const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// The greatest object that is read.
pub const MAX_OBJECT_BYTES: u64 = 64 << 30;

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const WEIGHTS: &str = "weights.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";

const DIGEST_BEFORE: &str = ",\n  \"digest\": \"";
const DIGEST_AFTER: &str = "\"\n}\n";
const DIGEST_HEX: usize = 64;
const F32: &str = "F32";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format_version: u64,
    /// The program that wrote it, for people.
    pub(crate) writer: String,
    pub(crate) time: String,
    pub(crate) identity: Identity,
    pub(crate) position: Position,
    pub(crate) state_digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) communication: Option<String>,
    pub(crate) tensors: Vec<Entry>,
    pub(crate) objects: Vec<Object>,
}

/// A logical tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Weight,
    Slot,
}

/// A stored file and the parts of tensors in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Object {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) blake3: String,
    pub(crate) parts: Vec<Part>,
}

/// Elements `start..end` of a tensor; this version stores each tensor whole in one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) tensor: String,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The part of any version's manifest that says whether the rest is understood.
#[derive(Deserialize)]
struct Version {
    format_version: u64,
}

/// A manifest that is of no use.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// Damaged, or not one of ours.
    Damaged(String),
    /// Whole, but of this newer version.
    Newer(u64),
    /// The storage does not give it; what it is remains unknown.
    Unread(io::Error),
}

impl Entry {
    pub(crate) fn of(tensor: &Tensor<'_>, role: Role) -> Self {
        Self { name: tensor.name.to_owned(), role, shape: tensor.shape.to_vec(), dtype: F32.to_owned() }
    }

    /// Number of elements; `None` where no memory could hold them.
    pub(crate) fn elements(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1_usize, |product, length| product.checked_mul(*length));
        elements.filter(|elements| elements.checked_mul(4).is_some())
    }
}

impl Object {
    pub(crate) fn of(file: &str, bytes: &[u8], tensors: &[Tensor<'_>]) -> Self {
        let part = |tensor: &Tensor<'_>| Part { tensor: tensor.name.to_owned(), start: 0, end: tensor.values.len() };
        Self {
            file: file.to_owned(),
            bytes: bytes.len() as u64,
            blake3: blake3::hash(bytes).to_hex().to_string(),
            parts: tensors.iter().map(part).collect(),
        }
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
        let Version { format_version } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format_version > FORMAT_VERSION {
            return Err(Unusable::Newer(format_version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        manifest.check().map_err(|problem| damaged(&problem))?;
        Ok(manifest)
    }

    /// What the digest cannot tell: a manifest may be whole and still ask for files elsewhere or for absurd sizes.
    fn check(&self) -> Result<(), String> {
        for object in &self.objects {
            if !is_plain_name(&object.file) || object.file == MANIFEST {
                return Err(format!("names the object `{}`, which is no plain file name", object.file));
            }
            if object.bytes > MAX_OBJECT_BYTES {
                return Err(format!(
                    "gives {} {} bytes, at most {MAX_OBJECT_BYTES} are read",
                    object.file, object.bytes
                ));
            }
        }
        for Entry { name, dtype, .. } in &self.tensors {
            if dtype != F32 {
                return Err(format!("gives tensor {name} the dtype {dtype}, only {F32} is read"));
            }
        }
        Ok(())
    }
}

/// Letters, digits, `-`, `_` and `.`, not starting with a dot: a name in this folder and nowhere else.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=255).contains(&name.len()) && !name.starts_with('.') && name.chars().all(plain)
}
