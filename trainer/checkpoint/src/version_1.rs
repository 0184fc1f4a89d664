//! Version 1 of the format: two safetensors files, `weights.safetensors` and `optimizer.safetensors`, each with whole tensors. It is
//! read, and no longer written.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    OwnedTensor,
    manifest::{Entry, MANIFEST, Unusable, is_plain_name},
    medium::Medium,
    read::read_file,
    tensors,
};

/// The greatest object that is read.
pub const MAX_OBJECT_BYTES: u64 = 64 << 30;

/// A stored file and the parts of tensors in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Object {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) blake3: String,
    pub(crate) parts: Vec<Part>,
}

/// Elements `start..end` of a tensor: all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) tensor: String,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Object {
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { file, bytes, .. } = self;
        if !is_plain_name(file) || file == MANIFEST {
            return Err(format!("names the object `{file}`, which is no plain file name"));
        }
        if *bytes > MAX_OBJECT_BYTES {
            return Err(format!("gives {file} {bytes} bytes, at most {MAX_OBJECT_BYTES} are read"));
        }
        Ok(())
    }
}

/// The tensors that `entries` name.
pub(crate) fn read_objects(
    medium: &dyn Medium,
    folder: &Path,
    objects: &[Object],
    entries: &[Entry],
) -> Result<Vec<OwnedTensor>, Unusable> {
    let damaged = |reason: String| Err(Unusable::Damaged(reason));
    let mut found = BTreeMap::new();
    for object in objects {
        for (name, tensor) in read_object(medium, folder, object)? {
            if found.insert(name.clone(), tensor).is_some() {
                return damaged(format!("tensor {name} is stored twice"));
            }
        }
    }
    let mut tensors = Vec::new();
    for entry in entries {
        let name = &entry.name;
        let tensor = found.remove(name).ok_or_else(|| Unusable::Damaged(format!("tensor {name} is missing")))?;
        if tensor.shape != entry.shape || Some(tensor.values.len()) != entry.elements() {
            return damaged(format!("tensor {name} has shape {:?}, {MANIFEST} says {:?}", tensor.shape, entry.shape));
        }
        tensors.push(tensor);
    }
    match found.first_key_value() {
        None => Ok(tensors),
        Some((name, _)) => damaged(format!("tensor {name} is not in {MANIFEST}")),
    }
}

fn read_object(medium: &dyn Medium, folder: &Path, object: &Object) -> Result<BTreeMap<String, OwnedTensor>, Unusable> {
    let damaged = |reason: String| Err(Unusable::Damaged(reason));
    let Object { file, bytes: expected, blake3, parts } = object;
    let bytes = read_file(medium, &folder.join(file), |length| {
        if length == *expected {
            return Ok(());
        }
        Err(format!("{file} has {length} bytes, {MANIFEST} says {expected}"))
    })?;
    if blake3::hash(&bytes).to_hex().as_str() != blake3 {
        return damaged(format!("{file} does not have the digest that {MANIFEST} states"));
    }
    let tensors = tensors::from_bytes(&bytes).map_err(|problem| Unusable::Damaged(format!("{file}: {problem}")))?;
    for Part { tensor, start, end } in parts {
        let elements = tensors.get(tensor).map(|tensor| tensor.values.len());
        if (*start, Some(*end)) != (0, elements) {
            return damaged(format!(
                "{file} holds {elements:?} elements of {tensor}, {MANIFEST} says {start} to {end}"
            ));
        }
    }
    Ok(tensors)
}
