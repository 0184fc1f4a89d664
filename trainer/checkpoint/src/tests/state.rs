use std::{num::NonZeroU32, ops::Deref, sync::Arc};

use crate::{
    About, Checkpoint, CheckpointError, CheckpointPart, Facts, Folder, Layout, Newest, OwnedTensor, PartReceipt,
    Position, Skipped, Snapshot, Snapshotter, Taken, Tensor, Tensors, TrainingIdentity,
};

/// The number of values in a block. A small state then has many blocks.
pub(super) const BLOCK_VALUES: usize = 2;

/// A state whose every value follows from the step, so that a reader can recognise it.
pub(super) struct SampleState {
    pub(super) identity: TrainingIdentity,
    pub(super) position: Position,
    pub(super) digest: String,
    pub(super) about: About,
    pub(super) tensors: [OwnedTensor; 4],
}

impl SampleState {
    pub(super) fn at(step: u64) -> Self {
        let tensor = |name: &str, shape: &[usize], salt: u32| {
            let bits = |i: usize| (step as u32).wrapping_mul(0x9E37_79B9).wrapping_add(i as u32 * 0x0101 + salt);
            let values = (0..shape.iter().product()).map(|i| f32::from_bits(bits(i))).collect();
            OwnedTensor { name: name.to_owned(), shape: shape.to_vec(), values }
        };
        // A bit pattern of "not a number" must survive too.
        let odd = vec![f32::from_bits(0x7fc1_2345), -0.0];
        Self {
            identity: TrainingIdentity { model: "lenet5-1f".into(), workload_digest: "ab12".into() },
            position: Position { step, epoch: step / 10, cursor: step % 10 * 64, seed: 7, generation: 1 },
            digest: format!("digest-{step}"),
            about: About { description: Some("a model".to_owned()), ..About::default() },
            tensors: [
                tensor("conv1.weight", &[2, 1, 3, 3], 1),
                tensor("conv1.bias", &[2], 2),
                OwnedTensor { name: "momentum.conv1.weight".into(), shape: vec![2], values: odd },
                tensor("momentum.conv1.bias", &[], 4),
            ],
        }
    }

    pub(super) fn with_snapshot<R>(&self, act: impl FnOnce(&Snapshot<'_>) -> R) -> R {
        let borrowed: Vec<_> = self
            .tensors
            .iter()
            .map(|tensor| Tensor { name: &tensor.name, shape: &tensor.shape, values: &tensor.values })
            .collect();
        act(&Snapshot {
            identity: &self.identity,
            position: self.position,
            state_digest: &self.digest,
            communication: Some("a plan"),
            about: Some(&self.about),
            time: "2026-11-21T12:00:00Z",
            weights: &borrowed[..2],
            slots: &borrowed[2..],
        })
    }

    pub(super) fn layout(&self) -> Layout {
        let layout = self.with_snapshot(|snapshot| Layout::of_tensors(snapshot.weights, snapshot.slots));
        let mut layout = layout.expect("tensors fit");
        layout.block_values = BLOCK_VALUES;
        layout
    }

    /// Returns all values in the order of the arena.
    pub(super) fn values(&self) -> Vec<f32> {
        self.tensors.iter().flat_map(|tensor| tensor.values.iter().copied()).collect()
    }

    pub(super) fn facts(&self) -> Facts {
        self.with_snapshot(|snapshot| Facts {
            identity: snapshot.identity.clone(),
            position: snapshot.position,
            state_digest: snapshot.state_digest.to_owned(),
            time: snapshot.time.to_owned(),
            communication: snapshot.communication.map(str::to_owned),
            about: self.about.clone(),
        })
    }

    /// Takes one writer's part. Its digest names the first value and the number of values.
    pub(super) fn take(&self, snapshotter: &mut Snapshotter, writer: u32, writers: NonZeroU32) -> Taken {
        let part = CheckpointPart { position: self.position, layout: Arc::new(self.layout()), writer, writers };
        snapshotter.take(
            &part,
            |values| format!("{:?} {}", values.first().map(|value| value.to_bits()), values.len()),
            |piece, values| values.copy_from_slice(&self.tensors[piece.tensor].values[piece.values]),
        )
    }

    /// Commits the parts of so many writers.
    pub(super) fn commit(&self, snapshotter: &mut Snapshotter, writers: NonZeroU32) {
        let (facts, layout, values) = (self.facts(), Arc::new(self.layout()), self.values());
        let part = |writer| layout.values_of(&layout.part(writer, writers));
        let expected: Vec<_> = (0..writers.get())
            .map(part)
            .map(|range| format!("{:?} {}", values[range.clone()].first().map(|value| value.to_bits()), range.len()))
            .collect();
        snapshotter.commit(self.position, &layout, writers, move |digests| {
            assert_eq!(digests, expected);
            Ok(facts)
        });
    }

    /// Writes one writer's part.
    pub(super) fn write(
        &self,
        folder: &Folder,
        writer: u32,
        writers: NonZeroU32,
    ) -> Result<PartReceipt, CheckpointError> {
        let part = CheckpointPart { position: self.position, layout: Arc::new(self.layout()), writer, writers };
        folder.write_part(&part, &[&self.values()[part.values()]])
    }

    /// True if `checkpoint` holds this state, bit for bit.
    pub(super) fn is(&self, loaded: &Whole) -> bool {
        let Checkpoint { position, state_digest, communication, about, .. } = &loaded.checkpoint;
        let Tensors { weights, slots } = &loaded.tensors;
        (*position, state_digest, communication.as_deref()) == (self.position, &self.digest, Some("a plan"))
            && *about == self.about
            && bits(weights) == bits(&self.tensors[..2])
            && bits(slots) == bits(&self.tensors[2..])
    }
}

fn bits(tensors: &[OwnedTensor]) -> Vec<(&str, &[usize], Vec<u32>)> {
    let of = |tensor: &OwnedTensor| tensor.values.iter().map(|value| value.to_bits()).collect();
    tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice(), of(tensor))).collect()
}

/// A checkpoint and its tensors.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) checkpoint: Checkpoint,
    pub(super) tensors: Tensors,
}

impl Deref for Whole {
    type Target = Checkpoint;

    fn deref(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

/// The newest whole checkpoint, and those that were skipped.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) checkpoint: Option<Whole>,
    pub(super) skipped: Vec<Skipped>,
}

/// Loads the newest checkpoint into memory of its own.
pub(super) fn load(folder: &Folder, identity: &TrainingIdentity) -> Result<Loaded, CheckpointError> {
    let mut tensors = Tensors::default();
    let Newest { checkpoint, skipped } = folder.newest(identity, &mut tensors)?;
    Ok(Loaded { checkpoint: checkpoint.map(|checkpoint| Whole { checkpoint, tensors }), skipped })
}
