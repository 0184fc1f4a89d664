use std::num::NonZeroU32;

use crate::{
    About, Checkpoint, CheckpointError, Folder, Position, Saved, TrainingIdentity,
    checkpoint_id::{CheckpointId, Leftover, Staged},
    load::Owner,
};

/// The result of pruning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The steps of the deleted checkpoints, newest first. It includes the newest step if a second
    /// checkpoint of that step was deleted.
    pub steps: Vec<u64>,
    /// The number of deleted unfinished saves.
    pub leftovers: usize,
}

impl Folder {
    /// Keeps this job's checkpoints of the newest `keep_last` steps, and the best one if the newest
    /// says by which metric. Deletes older ones, other
    /// checkpoints of the newest step, and unfinished saves.
    ///
    /// It first reads and verifies the newest checkpoint. If none is whole, no checkpoint is
    /// deleted. Older checkpoints with damaged manifests are deleted and do not count.
    ///
    /// It leaves alone: damaged checkpoints newer than the newest whole one, other jobs'
    /// checkpoints, and unfinished saves of later steps. It also leaves those of a later
    /// generation, which returned to an earlier step and may be about to delete the newest. No
    /// group may be saving meanwhile.
    ///
    /// # Errors
    /// See [`Folder::newest`]. If a deletion fails, everything else is still deleted, and the first
    /// error of the storage is returned.
    pub fn prune(&self, keep_last: NonZeroU32, expected: &TrainingIdentity) -> Result<Pruned, CheckpointError> {
        let ids = self.backend.ids()?;
        self.prune_after(&[], &ids, None, keep_last, expected)
    }

    /// Prunes for the group of this generation, which has just `saved` a checkpoint. Earlier groups
    /// may have saved later steps before the group returned to an earlier one. Those checkpoints
    /// would count as newer than this one, so they are deleted too. Checkpoints and saves of a
    /// later generation stay: that generation has abandoned this checkpoint.
    pub(crate) fn prune_saved(
        &self,
        saved: &Saved,
        generation: u64,
        keep_last: NonZeroU32,
        expected: &TrainingIdentity,
    ) -> Result<Pruned, CheckpointError> {
        let ids = self.backend.ids()?;
        let index = ids.iter().position(|id| self.path_of(*id) == saved.path);
        // A later group has deleted it. That group decides.
        let Some(index) = index else { return Ok(Pruned::default()) };
        let (later, ids) = ids.split_at(index);
        self.prune_after(later, ids, Some(generation), keep_last, expected)
    }

    /// Deletes all of `ids` but the newest, once one is known to be whole. Deletes those of `later`
    /// that were abandoned, as far as the saving generation may decide.
    fn prune_after(
        &self,
        later: &[CheckpointId],
        ids: &[CheckpointId],
        saving: Option<u64>,
        keep_last: NonZeroU32,
        expected: &TrainingIdentity,
    ) -> Result<Pruned, CheckpointError> {
        let mut pruned = Pruned::default();
        let newest = self.first_verified(ids, expected)?;
        if newest.is_some() {
            // The checkpoint was read, but a power failure could still lose its name after the
            // others are deleted.
            self.backend.sync_checkpoint_names()?;
        }
        let position = newest.as_ref().map(|(_, whole)| whole.position);
        let leftovers = self.backend.leftovers()?.into_iter();
        let stale: Vec<_> = leftovers.filter(|leftover| is_stale(leftover, position, saving)).collect();
        pruned.leftovers = stale.len();
        // A failed deletion must not keep the others.
        let mut deleted = stale.into_iter().map(|leftover| self.backend.discard(leftover)).fold(Ok(()), Result::and);
        if let Some((newest, Checkpoint { position, about, .. })) = newest {
            // A checkpoint of a later generation stays, even if its manifest is damaged.
            let is_later = |id: &CheckpointId| saving.is_some_and(|saving| id.generation > Some(saving));
            let older = ids.iter().copied().filter(|id| *id < newest && !is_later(id));
            let latest = saving.unwrap_or(position.generation);
            let owned: Vec<_> = older.map(|id| (id, self.owner(latest, id, expected))).collect();
            let ours = owned.iter().filter(|(_, owner)| *owner == Owner::This).map(|(id, _)| id.step);
            let mut kept: Vec<_> = ours.filter(|step| *step < newest.step).collect();
            kept.dedup();
            kept.truncate(keep_last.get() as usize - 1);
            let ours = owned.iter().filter(|(_, owner)| *owner == Owner::This).map(|(id, _)| *id);
            kept.extend(self.best_of(&about, newest, ours).map(|id| id.step));
            // Other checkpoints of a kept step are damaged or belong to older groups.
            let old = owned.iter().filter(|(id, owner)| *owner != Owner::Other && !kept.contains(&id.step));
            let is_abandoned = |id: &CheckpointId| {
                ids.first() == Some(&newest) && self.is_of_generation_before(position.generation, *id, expected)
            };
            for id in later.iter().copied().filter(is_abandoned).chain(old.map(|(id, _)| *id)) {
                match self.backend.delete(id) {
                    Ok(()) => pruned.steps.push(id.step),
                    failed => deleted = deleted.and(failed),
                }
            }
        }
        deleted.map(|()| pruned)
    }
}

impl Folder {
    /// Returns the best checkpoint by the newest one's metric, of the newest and the job's `older`
    /// ones. It is kept however old it is.
    fn best_of(
        &self,
        newest: &About,
        id: CheckpointId,
        older: impl Iterator<Item = CheckpointId>,
    ) -> Option<CheckpointId> {
        let metric = newest.best_by?;
        let evaluated = |id| (id, self.manifest_of(id).ok().and_then(|(manifest, ..)| manifest.about.evaluation));
        metric.best(std::iter::once((id, newest.evaluation)).chain(older.map(evaluated)))
    }
}

/// True if nobody can still be writing it: the newest checkpoint has the same or a later step, or a
/// later generation. An unfinished save of a generation after the saving one is never stale.
fn is_stale(leftover: &Leftover, newest: Option<Position>, saving: Option<u64>) -> bool {
    match (leftover.staged, newest) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(Staged { step, generation }), Some(newest)) => {
            let is_later = saving.is_some_and(|saving| generation > saving);
            !is_later && (step <= newest.step || generation < newest.generation)
        }
    }
}
