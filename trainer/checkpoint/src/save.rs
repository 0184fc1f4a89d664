use std::{num::NonZeroU32, sync::atomic::AtomicBool};

use crate::{CheckpointError, Facts, Folder, Layout, Saved, Shard, Snapshot};

impl Folder {
    /// Stores a snapshot as the checkpoint of its step; when this returns, it survives a power failure. It is what one writer does who
    /// has the whole state: [writes](Folder::write_shard) all of it and [commits](Folder::commit) it.
    ///
    /// A whole checkpoint of the same job and step is kept as it is and returned; a new one is saved beside one that is damaged or an older
    /// generation's.
    ///
    /// # Errors
    /// [`CheckpointError::Foreign`] and [`CheckpointError::UnknownFormat`] where another job's checkpoint has the place, and
    /// any error of the storage; the checkpoints before are untouched then.
    ///
    /// # Panics
    /// When a tensor has another number of values than its shape says.
    pub fn save(&self, snapshot: &Snapshot<'_>) -> Result<Saved, CheckpointError> {
        let Snapshot { identity, position, state_digest, time, communication, weights, slots } = *snapshot;
        let tensors = || weights.iter().chain(slots);
        for tensor in tensors() {
            let (name, shape, values) = (tensor.name, tensor.shape, tensor.values.len());
            assert_eq!(shape.iter().product::<usize>(), values, "values of {name} with shape {shape:?}");
        }
        let layout = Layout::of_tensors(weights, slots)?;
        let facts = Facts {
            identity: identity.clone(),
            position,
            state_digest: state_digest.to_owned(),
            time: time.to_owned(),
            communication: communication.map(str::to_owned),
        };
        let values: Vec<_> = tensors().map(|tensor| tensor.values).collect();
        let shard = Shard { position, layout: &layout, writer: 0, writers: NonZeroU32::MIN, values: &values };
        self.save_alone(&facts, &shard, &Default::default())
    }

    /// Writes a shard that is the whole state and commits it.
    pub(crate) fn save_alone(
        &self,
        facts: &Facts,
        shard: &Shard<'_>,
        cancelled: &AtomicBool,
    ) -> Result<Saved, CheckpointError> {
        if let Some(kept) = self.kept(facts)? {
            return Ok(kept);
        }
        let receipt = self.write_shard_until(shard, cancelled);
        let saved = receipt.and_then(|receipt| self.commit(facts, shard.layout, &[receipt]));
        if saved.is_err() {
            // What is left of it is in nobody's way; the error that matters is the one at hand.
            let _ = self.abandon(facts.position);
        }
        saved
    }
}
