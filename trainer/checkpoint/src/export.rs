use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::{CheckpointError, Folder, Tensor, files::Files, medium::Medium, operation::Contents, tensors};

impl Folder {
    /// Writes `tensors` as a safetensors file of this name, replacing one that is there in one instant; gives its path. The same
    /// tensors and metadata give the same bytes.
    ///
    /// # Errors
    /// [`CheckpointError::Tensors`], or any error of the storage; a file that was there is untouched then.
    ///
    /// # Panics
    /// When a tensor has another number of values than its shape says.
    pub fn export_model(
        &self,
        name: &str,
        tensors: &[Tensor<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<PathBuf, CheckpointError> {
        let path = self.path().join(name);
        export(&*self.medium, &path, tensors, metadata)?;
        Ok(path)
    }
}

/// As [`Folder::export_model`], to any path of the file system.
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub fn export_model(
    path: &Path,
    tensors: &[Tensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(), CheckpointError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    fs::create_dir_all(&folder).map_err(|source| CheckpointError::of("creating", folder.clone(), source))?;
    let name = path.file_name().unwrap_or_default();
    export(&Files::at(folder.clone()), &folder.join(name), tensors, metadata)
}

fn export(
    medium: &dyn Medium,
    path: &Path,
    tensors: &[Tensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(), CheckpointError> {
    let bytes = tensors::to_bytes(tensors, metadata)
        .map_err(|problem| CheckpointError::Tensors { path: path.to_owned(), problem })?;
    medium.store(path, Contents::Bytes(&bytes))
}
