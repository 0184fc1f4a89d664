//! The global batch of each epoch, and with it the place of each step in the data.
//!
//! An epoch of N samples in batches of B has ⌈N / B⌉ steps. The last one may be short: no sample is
//! dropped. B changes only between two epochs, so that the place of a step follows from its number
//! and the schedule alone, whatever the number of ranks and wherever a run was resumed.
//!
//! Why a batch grows: Smith et al., "Don't Decay the Learning Rate, Increase the Batch Size" (arXiv
//! 1711.00489); Mikami et al., "Massively Distributed SGD" (arXiv 1811.05233).

use crate::{DataError, Step};

/// Most changes of the global batch in a run.
pub const MAX_BATCH_CHANGES: usize = 16;

/// The global batch over a run on a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    samples: u64,
    /// In the order of epochs; those that are not used begin never.
    spans: [Span; MAX_BATCH_CHANGES + 1],
}

/// Epochs with the same global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first_epoch: u64,
    first_step: u64,
    global_batch: u64,
}

impl Span {
    const UNUSED: Self = Self { first_epoch: u64::MAX, first_step: u64::MAX, global_batch: 1 };
}

impl Batches {
    /// The same global batch in every epoch of so many samples.
    ///
    /// # Panics
    /// When either is 0.
    #[must_use]
    pub fn constant(samples: u64, global_batch: u64) -> Self {
        assert!(samples > 0 && global_batch > 0, "batches of {global_batch} from {samples} samples");
        let mut spans = [Span::UNUSED; MAX_BATCH_CHANGES + 1];
        spans[0] = Span { first_epoch: 0, first_step: 0, global_batch };
        Self { samples, spans }
    }

    /// The same, with another global batch once so many epochs are done.
    ///
    /// # Panics
    /// When the last change is not before `epoch`, `global_batch` is 0, or there are more than
    /// [`MAX_BATCH_CHANGES`] changes.
    #[must_use]
    pub fn changed(mut self, epoch: u64, global_batch: u64) -> Self {
        let used = self.used().len();
        assert!(used <= MAX_BATCH_CHANGES, "more than {MAX_BATCH_CHANGES} changes of the global batch");
        assert!(epoch > self.spans[used - 1].first_epoch && global_batch > 0, "{global_batch} from epoch {epoch} on");
        self.spans[used] = Span { first_epoch: epoch, first_step: self.steps_before(epoch), global_batch };
        self
    }

    /// The samples of an epoch.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// The greatest global batch of the run.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.used().iter().map(|span| span.global_batch).max().unwrap_or_default()
    }

    /// The global batch of a step, counted from 0, as it is scheduled: the step may have fewer
    /// samples.
    #[must_use]
    pub fn global_batch(&self, step: u64) -> u64 {
        self.span_of_step(step).global_batch
    }

    /// Step `index`, counted from 0. With the number of steps that are done, the place at which the
    /// run goes on.
    #[must_use]
    pub fn step(&self, index: u64) -> Step {
        let Span { first_epoch, first_step, global_batch } = self.span_of_step(index);
        let (per_epoch, steps) = (self.steps_per_epoch(global_batch), index - first_step);
        let cursor = steps % per_epoch * global_batch;
        let samples = global_batch.min(self.samples - cursor);
        Step { index, epoch: first_epoch + steps / per_epoch, cursor, samples }
    }

    /// The epochs that are done after so many steps.
    #[must_use]
    pub fn epochs_done(&self, steps: u64) -> u64 {
        self.step(steps).epoch
    }

    /// True if an epoch, and not only a step, ends after so many steps.
    #[must_use]
    pub fn ends_epoch(&self, steps: u64) -> bool {
        steps > 0 && self.step(steps).cursor == 0
    }

    /// The steps before an epoch, counted from 0.
    #[must_use]
    pub fn steps_before(&self, epoch: u64) -> u64 {
        let Span { first_epoch, first_step, global_batch } = self.span_of_epoch(epoch);
        first_step.saturating_add((epoch - first_epoch).saturating_mul(self.steps_per_epoch(global_batch)))
    }

    /// The steps of so many epochs, which may be a fraction; rounded to the nearest step.
    #[must_use]
    pub fn steps_of(&self, epochs: f64) -> u64 {
        let whole = epochs as u64;
        let steps = self.steps_per_epoch(self.span_of_epoch(whole).global_batch);
        self.steps_before(whole) + ((epochs - whole as f64) * steps as f64).round() as u64
    }

    /// The samples that are taken by the first `steps` steps, over all epochs.
    #[must_use]
    pub fn samples_before(&self, steps: u64) -> u64 {
        let Step { epoch, cursor, .. } = self.step(steps);
        epoch.saturating_mul(self.samples).saturating_add(cursor)
    }

    /// The numbers of samples that a step may have.
    pub(crate) fn step_sizes(&self) -> impl Iterator<Item = u64> + '_ {
        let sizes = |span: &Span| [span.global_batch.min(self.samples), self.samples % span.global_batch];
        self.used().iter().flat_map(sizes).filter(|size| *size > 0)
    }

    const fn steps_per_epoch(&self, global_batch: u64) -> u64 {
        self.samples.div_ceil(global_batch)
    }

    fn used(&self) -> &[Span] {
        let used = self.spans.iter().take_while(|span| **span != Span::UNUSED).count();
        &self.spans[..used]
    }

    fn span_of_step(&self, step: u64) -> Span {
        self.last_of(|span| span.first_step <= step)
    }

    fn span_of_epoch(&self, epoch: u64) -> Span {
        self.last_of(|span| span.first_epoch <= epoch)
    }

    /// The last span that has begun; the first one always has.
    fn last_of(&self, has_begun: impl Fn(&Span) -> bool) -> Span {
        self.used().iter().rev().copied().find(has_begun).unwrap_or(self.spans[0])
    }
}

/// Refuses a global batch that the samples cannot fill even once. `field` is where it was given.
///
/// # Errors
/// [`DataError::SmallerThanBatch`].
pub fn check_global_batch(field: &str, len: u64, global_batch: u64) -> Result<(), DataError> {
    if len < global_batch {
        return Err(DataError::SmallerThanBatch { field: field.to_owned(), global_batch, samples: len });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(batches: &Batches, steps: u64) -> Vec<(u64, u64, u64)> {
        let place = |index| batches.step(index);
        (0..steps).map(place).map(|step| (step.epoch, step.cursor, step.samples)).collect()
    }

    #[test]
    fn a_batch_grows_between_two_epochs() {
        let batches = Batches::constant(10, 4).changed(1, 6).changed(3, 10);
        let expected =
            [(0, 0, 4), (0, 4, 4), (0, 8, 2), (1, 0, 6), (1, 6, 4), (2, 0, 6), (2, 6, 4), (3, 0, 10), (4, 0, 10)];
        assert_eq!(places(&batches, 9), expected);
        assert_eq!((0..=5).map(|epoch| batches.steps_before(epoch)).collect::<Vec<_>>(), [0, 3, 5, 7, 8, 9]);
        assert_eq!((1..=9).filter(|steps| batches.ends_epoch(*steps)).collect::<Vec<_>>(), [3, 5, 7, 8, 9]);
        assert_eq!([0, 2, 3, 6, 7].map(|step| batches.global_batch(step)), [4, 4, 6, 6, 10]);
        assert_eq!(batches.largest(), 10);
    }

    #[test]
    fn a_batch_may_shrink_too() {
        let batches = Batches::constant(12, 12).changed(2, 5);
        assert_eq!(places(&batches, 5), [(0, 0, 12), (1, 0, 12), (2, 0, 5), (2, 5, 5), (2, 10, 2)]);
        assert_eq!(batches.largest(), 12);
    }

    #[test]
    fn epochs_become_the_steps_that_they_have_by_the_batch_of_each() {
        let batches = Batches::constant(100, 10).changed(2, 50);
        assert_eq!([0.0, 0.5, 1.26, 2.0, 2.5, 4.0].map(|epochs| batches.steps_of(epochs)), [0, 5, 13, 20, 21, 24]);
    }

    #[test]
    fn a_batch_greater_than_the_data_set_is_refused_with_both_numbers() {
        assert!(check_global_batch("spec.training.globalBatchSize", 64, 64).is_ok());
        let error = check_global_batch("spec.training.globalBatchSize", 63, 64).expect_err("one short").to_string();
        assert!(error.contains("globalBatchSize is 64") && error.contains("1 to 63"), "{error}");
    }

    prop_compose! {
        fn schedules()(
            len in 1_u64..5000, first in 1_u64..800, changes in prop::collection::vec((1_u64..4, 1_u64..800), 0..5)
        ) -> Batches {
            let mut epoch = 0;
            changes.into_iter().fold(Batches::constant(len, first), |batches, (epochs, global_batch)| {
                epoch += epochs;
                batches.changed(epoch, global_batch)
            })
        }
    }

    proptest! {
        #[test]
        fn the_steps_of_every_epoch_take_each_sample_once(batches in schedules()) {
            let mut index = 0;
            for epoch in 0..16 {
                prop_assert_eq!(batches.steps_before(epoch), index);
                let mut cursor = 0;
                while cursor < batches.samples() {
                    let step = batches.step(index);
                    prop_assert_eq!((step.index, step.epoch, step.cursor), (index, epoch, cursor));
                    prop_assert!((1..=batches.global_batch(index)).contains(&step.samples));
                    prop_assert_eq!(batches.samples_before(index), epoch * batches.samples() + cursor);
                    cursor += step.samples;
                    index += 1;
                    prop_assert_eq!(batches.ends_epoch(index), cursor == batches.samples());
                }
                prop_assert_eq!(cursor, batches.samples());
            }
        }
    }
}
