//! The real MNIST, if it is at hand.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use crate::root;

/// The variable that names the folder of the MNIST files.
pub const VARIABLE: &str = "LOCKSTEP_MNIST";
/// The folder that is used if the variable is not set, from the root of the repository.
const BESIDE: &str = "../shared/data/mnist";
const TEST_PREFIX: &str = "t10k-";

/// Returns the folder of the MNIST files, if there is one.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    let beside = || Some(root().join(BESIDE)).filter(|folder| folder.is_dir());
    env::var_os(VARIABLE).map(PathBuf::from).or_else(beside)
}

/// Returns the pair of test files in `folder`, 10,000 images and their labels; every file of a
/// folder without test files.
///
/// The 60,000 training images would make each test that trains whole epochs six times as long.
///
/// # Errors
/// The folder cannot be listed, or holds no file.
pub fn small_part(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("listing the MNIST folder {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    let of_test = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEST_PREFIX));
    if files.iter().any(of_test) {
        files.retain(of_test);
    }
    if files.is_empty() {
        bail!("the MNIST folder {} holds no files", folder.display());
    }
    Ok(files)
}
