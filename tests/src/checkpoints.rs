//! Checkpoints on a file system, as the trainer leaves them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Where the checkpoint of this step lies in a job's folder.
#[must_use]
pub fn place(job: &Path, step: u64) -> PathBuf {
    job.join(format!("checkpoints/step-{step:08}"))
}

/// The steps whose checkpoints lie in a job's folder.
#[must_use]
pub fn steps(job: &Path) -> Vec<u64> {
    let entries = fs::read_dir(job.join("checkpoints")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()).collect()
}

/// Leaves a checkpoint its files, with other bytes in them; others may share theirs with it, and keep them.
///
/// # Errors
/// There is no such folder, or it cannot be written.
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
