use std::num::NonZeroU32;

use crate::{
    Checkpoint, CheckpointError, Folder, Identity, Position, Saved,
    load::Owner,
    slot::{Leftover, Slot, Staged},
};

/// What was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Steps of the checkpoints, newest first; the newest one's own step where another one of it was deleted.
    pub steps: Vec<u64>,
    /// Number of leftovers of saves that never ended.
    pub leftovers: usize,
}

impl Folder {
    /// Keeps this job's checkpoints of the newest `keep_last` steps and removes the older ones, all others of the newest one's step among
    /// them, and what torn saves left. Reads and verifies the newest first: without one that is whole, no checkpoint is deleted. Older ones
    /// whose manifests are damaged are not counted, and removed. Damaged ones that are newer than it, other jobs' ones, and saves of later
    /// steps that may be under way stay; so do those of a later generation than its own, which has gone back behind it and may be about to
    /// delete it. No group may be saving.
    ///
    /// # Errors
    /// As of [`Folder::newest`]; where something cannot be deleted the first error of the storage, after all else was.
    pub fn prune(&self, keep_last: NonZeroU32, expected: &Identity) -> Result<Pruned, CheckpointError> {
        let slots = self.medium.slots()?;
        self.prune_after(&[], &slots, None, keep_last, expected)
    }

    /// As [`Folder::prune`], for the group of this generation, which has just `saved` a checkpoint. Where groups before it had come further
    /// it went back behind their checkpoints: those would pass for newer than this one, and are deleted too. What a later generation has
    /// saved, or is saving, stays: that one takes this checkpoint for given up.
    pub(crate) fn prune_saved(
        &self,
        saved: &Saved,
        generation: u64,
        keep_last: NonZeroU32,
        expected: &Identity,
    ) -> Result<Pruned, CheckpointError> {
        let slots = self.medium.slots()?;
        let place = slots.iter().position(|slot| self.place(*slot) == saved.path);
        // A group after this one has deleted it, and has the say.
        let Some(place) = place else { return Ok(Pruned::default()) };
        let (later, slots) = slots.split_at(place);
        self.prune_after(later, slots, Some(generation), keep_last, expected)
    }

    /// Deletes of `slots` all but the newest, once one is known to be whole, and of those `later` what was given up for it, as far as the
    /// generation that saves may.
    fn prune_after(
        &self,
        later: &[Slot],
        slots: &[Slot],
        saving: Option<u64>,
        keep_last: NonZeroU32,
        expected: &Identity,
    ) -> Result<Pruned, CheckpointError> {
        let mut pruned = Pruned::default();
        let newest = self.first_verified(slots, expected)?;
        if newest.is_some() {
            // It was read, but a power failure could yet take its name, and what is deleted would be all there was.
            self.medium.sync_slots()?;
        }
        let position = newest.as_ref().map(|(_, whole)| whole.position);
        let leftovers = self.medium.leftovers()?.into_iter();
        let stale: Vec<_> = leftovers.filter(|leftover| is_stale(leftover, position, saving)).collect();
        pruned.leftovers = stale.len();
        // One that cannot be deleted is no reason to keep the others.
        let mut deleted = stale.into_iter().map(|leftover| self.medium.discard(leftover)).fold(Ok(()), Result::and);
        if let Some((newest, Checkpoint { position, .. })) = newest {
            // What a later generation has saved stays, whatever its manifest holds.
            let is_later = |slot: &Slot| saving.is_some_and(|saving| slot.generation > Some(saving));
            let older = slots.iter().copied().filter(|slot| *slot < newest && !is_later(slot));
            let latest = saving.unwrap_or(position.generation);
            let owned: Vec<_> = older.map(|slot| (slot, self.owner(latest, slot, expected))).collect();
            let ours = owned.iter().filter(|(_, owner)| *owner == Owner::This).map(|(slot, _)| slot.step);
            let mut kept: Vec<_> = ours.filter(|step| *step < newest.step).collect();
            kept.dedup();
            kept.truncate(keep_last.get() as usize - 1);
            // Others of its step are damaged, or what older groups have left.
            let old = owned.iter().filter(|(slot, owner)| *owner != Owner::Other && !kept.contains(&slot.step));
            let is_given_up = |slot: &Slot| {
                slots.first() == Some(&newest) && self.is_of_generation_before(position.generation, *slot, expected)
            };
            for slot in later.iter().copied().filter(is_given_up).chain(old.map(|(slot, _)| *slot)) {
                match self.medium.delete(slot) {
                    Ok(()) => pruned.steps.push(slot.step),
                    failed => deleted = deleted.and(failed),
                }
            }
        }
        deleted.map(|()| pruned)
    }
}

/// Whether nobody can be writing it: the newest checkpoint is of that step or a later one, or of a later generation, and no generation
/// after the one that saves began it.
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
