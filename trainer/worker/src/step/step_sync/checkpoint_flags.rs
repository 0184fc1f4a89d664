//! The flags of checkpoints in a step's numbers. Each has a slot, into which a rank writes 1 if it
//! sets the flag.

/// The flags that a rank sets. In the sum of all ranks, a flag is true if any rank set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckpointFlags {
    /// All ranks must copy their parts.
    pub asks: bool,
    /// The rank's part is not stored yet.
    pub writes: bool,
    /// The rank's part could not be stored.
    pub failed: bool,
}

impl CheckpointFlags {
    pub(super) const SLOTS: usize = 3;

    pub(super) fn put(self, slots: &mut [f32]) {
        let Self { asks, writes, failed } = self;
        slots.copy_from_slice(&[asks, writes, failed].map(|flag| f32::from(u8::from(flag))));
    }

    pub(super) fn of_sum(slots: &[f32]) -> Self {
        Self { asks: slots[0] > 0.0, writes: slots[1] > 0.0, failed: slots[2] > 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_any_rank_sets_is_set_in_the_sum() {
        let flags = [
            CheckpointFlags::default(),
            CheckpointFlags { writes: true, ..CheckpointFlags::default() },
            CheckpointFlags { asks: true, ..CheckpointFlags::default() },
        ];
        let mut sum = [0.0; CheckpointFlags::SLOTS];
        for flags in flags {
            let mut slots = [0.0; CheckpointFlags::SLOTS];
            flags.put(&mut slots);
            sum.iter_mut().zip(slots).for_each(|(sum, slot)| *sum += slot);
        }
        assert_eq!(CheckpointFlags::of_sum(&sum), CheckpointFlags { asks: true, writes: true, failed: false });
    }
}
