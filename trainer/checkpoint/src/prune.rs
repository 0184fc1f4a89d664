use std::num::NonZeroU32;

use crate::{
    CheckpointError, Folder, Identity, Position,
    slot::{Leftover, Staged},
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
    /// them, and what torn saves left. Reads and verifies the newest first: without one that is whole, no checkpoint is deleted. Damaged ones that are newer than
    /// it, other jobs' ones, and saves of later steps that may be under way stay. To be called by the one member that commits.
    ///
    /// # Errors
    /// As of [`Folder::newest`]; [`CheckpointError::Storage`] where something cannot be deleted.
    pub fn prune(&self, keep_last: NonZeroU32, expected: &Identity) -> Result<Pruned, CheckpointError> {
        let mut pruned = Pruned::default();
        let newest = self.newest_verified(expected)?;
        if newest.is_some() {
            // It was read, but a power failure could yet take its name, and what is deleted would be all there was.
            self.medium.sync_slots()?;
        }
        let leftovers = self.medium.leftovers()?.into_iter();
        let stale: Vec<_> =
            leftovers.filter(|leftover| is_stale(leftover, newest.map(|(_, position)| position))).collect();
        pruned.leftovers = stale.len();
        stale.into_iter().try_for_each(|leftover| self.medium.discard(leftover))?;
        if let Some((newest, _)) = newest {
            let slots = self.medium.slots()?.into_iter();
            let own: Vec<_> = slots.filter(|slot| *slot < newest && !self.is_foreign(*slot, expected)).collect();
            let mut kept: Vec<_> = own.iter().map(|slot| slot.step).filter(|step| *step < newest.step).collect();
            kept.dedup();
            kept.truncate(keep_last.get() as usize - 1);
            // Others of its step are damaged, or what older groups have left.
            for slot in own.into_iter().filter(|slot| !kept.contains(&slot.step)) {
                self.medium.delete(slot)?;
                pruned.steps.push(slot.step);
            }
        }
        Ok(pruned)
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
