//! The loss of a step and the samples that it took, as numbers that travel behind the step's
//! gradients.

use std::ops::Range;

use lockstep_data::Tally;

use crate::trainee::Trained;

/// The slot into which a trainee writes its loss, behind its gradients.
const LOSS: usize = 0;
const TAKEN: Range<usize> = 1..1 + Tally::SLOTS;

impl Trained {
    /// The number of slots that [`Self::put`] fills. They are the first of a step's numbers.
    pub(crate) const SLOTS: usize = TAKEN.end;

    /// Takes the loss from the slots behind a worker's gradients.
    pub(crate) fn of_slots(slots: &[f32], taken: Tally) -> Self {
        Self { loss: f64::from(slots[LOSS]), taken }
    }

    /// Writes one rank's values into its slots of `numbers`.
    pub(crate) fn put(self, numbers: &mut [f32]) {
        numbers[LOSS] = self.loss as f32;
        numbers[TAKEN].copy_from_slice(&self.taken.slots());
    }

    /// Reads the values of all ranks from their added numbers.
    pub(crate) fn of_sums(numbers: &[f32]) -> Self {
        Self { loss: f64::from(numbers[LOSS]), taken: Tally::of_sums(&numbers[TAKEN]) }
    }
}
