use std::num::NonZeroU32;

use crate::{
    CheckpointError, Folder, Identity, Position,
    folder::{Leftover, Staged},
    operation::Operation,
};

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
    /// it, other jobs' ones, and saves of later steps that may be under way stay. To be called by the one member that commits.
    ///
    /// # Errors
    /// As of [`Folder::newest`]; [`CheckpointError::Storage`] where something cannot be deleted.
    pub fn prune(&self, keep_last: NonZeroU32, expected: &Identity) -> Result<Pruned, CheckpointError> {
        let mut pruned = Pruned::default();
        let newest = self.newest_position(expected)?;
        let stale: Vec<_> = self.leftovers()?.into_iter().filter(|leftover| is_stale(leftover, newest)).collect();
        pruned.leftovers = stale.len();
        stale.into_iter().try_for_each(|leftover| self.discard(leftover))?;
        if let Some(newest) = newest {
            let older = self.steps()?.into_iter().filter(|step| *step < newest.step);
            for step in older.skip(keep_last.get() as usize - 1).filter(|step| !self.is_foreign(*step, expected)) {
                self.delete(step)?;
                pruned.steps.push(step);
            }
        }
        Ok(pruned)
    }

    /// Renames a checkpoint first: half of one must not look like a whole one.
    fn delete(&self, step: u64) -> Result<(), CheckpointError> {
        let aside = self.temporary(&format!("deleted-{step}"));
        self.perform(&Operation::Rename(self.step(step), aside.clone()))?;
        self.perform(&Operation::Sync(self.checkpoints()))?;
        self.perform(&Operation::Remove(aside))
    }
}

/// Whether nobody can be writing it: the newest checkpoint is of that step or a later one, or of a later generation.
fn is_stale(leftover: &Leftover, newest: Option<Position>) -> bool {
    match (leftover.staged, newest) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(Staged { step, generation }), Some(newest)) => step <= newest.step || generation < newest.generation,
    }
}
