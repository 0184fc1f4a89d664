use std::{num::NonZeroU32, sync::Arc};

use crate::{CheckpointError, CheckpointPart, Facts, Folder, Layout, Saved, Snapshot};

impl Folder {
    /// Saves a snapshot as the checkpoint of its step. On return it survives a power failure. The
    /// caller is the only writer: it [writes](Folder::write_part) the whole state and
    /// [commits](Folder::commit) it.
    ///
    /// A whole checkpoint of the same job and step is kept and returned. The new checkpoint lies
    /// beside one that is damaged or of an older generation.
    ///
    /// # Errors
    /// [`CheckpointError::Foreign`] and [`CheckpointError::UnknownFormat`] if another job's
    /// checkpoint has the name, and any error of the storage. Earlier checkpoints are untouched
    /// then.
    ///
    /// # Panics
    /// If the number of values of a tensor does not fit its shape.
    pub fn save(&self, snapshot: &Snapshot<'_>) -> Result<Saved, CheckpointError> {
        let Snapshot { identity, position, state_digest, time, communication, about, weights, slots } = *snapshot;
        let tensors = || weights.iter().chain(slots);
        for tensor in tensors() {
            let (name, shape, values) = (tensor.name, tensor.shape, tensor.values.len());
            assert_eq!(shape.iter().product::<usize>(), values, "values of {name} with shape {shape:?}");
        }
        let layout = Arc::new(Layout::of_tensors(weights, slots)?);
        let facts = Facts {
            identity: identity.clone(),
            position,
            state_digest: state_digest.to_owned(),
            time: time.to_owned(),
            communication: communication.map(str::to_owned),
            about: about.cloned().unwrap_or_default(),
        };
        let values: Vec<_> = tensors().map(|tensor| tensor.values).collect();
        let part = CheckpointPart { position, layout, writer: 0, writers: NonZeroU32::MIN };
        if let Some(kept) = self.kept(&facts)? {
            return Ok(kept);
        }
        let receipt = self.write_part(&part, &values);
        let saved = receipt.and_then(|receipt| self.commit(&facts, &part.layout, &[receipt]));
        if saved.is_err() {
            // The error at hand matters more, and what is left disturbs nobody.
            let _ = self.abandon(position);
        }
        saved
    }
}
