//! Checkpoints on a file system, as the trainer leaves them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Returns the folder of the checkpoint of this step in a job's folder.
#[must_use]
pub fn folder_of(job: &Path, step: u64) -> PathBuf {
    job.join(format!("checkpoints/step-{step:08}"))
}

/// Returns the steps whose checkpoints lie in a job's folder.
#[must_use]
pub fn steps(job: &Path) -> Vec<u64> {
    let entries = fs::read_dir(job.join("checkpoints")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()).collect()
}

/// Overwrites the files of a checkpoint with other bytes. Files that it shares with other
/// checkpoints stay intact in those.
///
/// # Errors
/// The folder does not exist or cannot be written.
pub fn damage(checkpoint: &Path) -> io::Result<()> {
    for entry in fs::read_dir(checkpoint)? {
        let file = entry?.path();
        if file.extension().is_some_and(|end| end == "chunk") {
            fs::remove_file(&file)?;
            fs::write(&file, "torn")?;
        }
    }
    Ok(())
}
