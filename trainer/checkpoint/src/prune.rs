use std::{fs, num::NonZeroU32, path::PathBuf};

use crate::{CheckpointError, Folder, Identity, operation::sync_folder};

/// What was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Steps of the checkpoints, newest first.
    pub steps: Vec<u64>,
    /// Number of leftovers of saves that never ended.
    pub leftovers: usize,
}

impl Folder {
    /// Keeps the newest `keep_last` checkpoints of this job and removes the older ones and what torn saves left. Reads and
    /// verifies the newest first: without one that is whole, no checkpoint is deleted. Damaged ones that are newer than
    /// it, and other jobs' ones, stay. To be called by the one member that saves, between saves.
    ///
    /// # Errors
    /// As of [`Folder::newest`]; [`CheckpointError::Storage`] where something cannot be deleted.
    pub fn prune(&self, keep_last: NonZeroU32, expected: &Identity) -> Result<Pruned, CheckpointError> {
        let mut pruned = Pruned::default();
        if let Some(newest) = self.newest(expected)?.checkpoint {
            let older = self.steps()?.into_iter().filter(|step| *step < newest.position.step);
            for step in older.skip(keep_last.get() as usize - 1).filter(|step| !self.is_foreign(*step, expected)) {
                self.set_aside(step)?;
                pruned.steps.push(step);
            }
        }
        let leftovers = self.leftovers()?;
        pruned.leftovers = leftovers.len() - pruned.steps.len();
        leftovers.into_iter().try_for_each(remove)?;
        Ok(pruned)
    }

    /// Renames a checkpoint first: half of one must not look like a whole one.
    fn set_aside(&self, step: u64) -> Result<(), CheckpointError> {
        let (path, aside) = (self.step(step), self.temporary(&format!("deleted-{step}")));
        let renamed = fs::rename(&path, aside).and_then(|()| sync_folder(&self.checkpoints()));
        renamed.map_err(|source| CheckpointError::of("deleting", path, source))
    }
}

fn remove(path: PathBuf) -> Result<(), CheckpointError> {
    let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    removed.map_err(|source| CheckpointError::of("deleting", path, source))
}
