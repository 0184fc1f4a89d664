//! What ranks tell each other of checkpoints: slots in a step's numbers, 1 from each rank that tells something.

/// What a rank tells of checkpoints in a step's numbers; of their sum, whether any rank did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// All are to copy their parts.
    pub asks: bool,
    /// Its part is not stored yet.
    pub writes: bool,
    /// Its part could not be stored.
    pub failed: bool,
}

impl Word {
    pub(crate) const SLOTS: usize = 3;

    pub(crate) fn put(self, slots: &mut [f32]) {
        let Self { asks, writes, failed } = self;
        slots.copy_from_slice(&[asks, writes, failed].map(|told| f32::from(u8::from(told))));
    }

    pub(crate) fn of_sum(slots: &[f32]) -> Self {
        Self { asks: slots[0] > 0.0, writes: slots[1] > 0.0, failed: slots[2] > 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_any_rank_tells_is_in_the_sum() {
        let words = [Word::default(), Word { writes: true, ..Word::default() }, Word { asks: true, ..Word::default() }];
        let mut sum = [0.0; Word::SLOTS];
        for word in words {
            let mut slots = [0.0; Word::SLOTS];
            word.put(&mut slots);
            sum.iter_mut().zip(slots).for_each(|(sum, slot)| *sum += slot);
        }
        assert_eq!(Word::of_sum(&sum), Word { asks: true, writes: true, failed: false });
    }
}
