use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    CheckpointError, Tensor,
    folder::temporary_in,
    operation::{Contents, FileSystem, Operation, Perform},
    tensors,
};

/// Writes `tensors` as a safetensors file at `path`, replacing what is there in one instant. The same tensors and metadata
/// give the same bytes.
///
/// # Errors
/// [`CheckpointError::Tensors`], or any error of the storage; what was at `path` is untouched then.
///
/// # Panics
/// When a tensor has another number of values than its shape says.
pub fn export_model(
    path: &Path,
    tensors: &[Tensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(), CheckpointError> {
    let bytes = tensors::to_bytes(tensors, metadata)
        .map_err(|problem| CheckpointError::Tensors { path: path.to_owned(), problem })?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    fs::create_dir_all(&folder).map_err(|source| CheckpointError::of("creating", folder.clone(), source))?;
    let temporary = temporary_in(&folder, "model");
    let done = [
        Operation::Write(temporary.clone(), Contents::Bytes(&bytes)),
        Operation::Sync(temporary.clone()),
        Operation::Rename(temporary.clone(), path.to_owned()),
        Operation::Sync(folder),
    ]
    .iter()
    .try_for_each(|operation| FileSystem.perform(operation));
    if done.is_err() {
        // What is left of it is in nobody's way; the error that matters is the one at hand.
        let _ = fs::remove_file(temporary);
    }
    done
}
