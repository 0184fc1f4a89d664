//! The settings of a training that stay the same from the first step to the last: batch, steps and
//! learning rate.

use lockstep_data::{Batches, check_global_batch};
use lockstep_launch::{BatchSizeChange, OnNonFinite, Training, optimization as spec};
use lockstep_nn::{Decay, Scaling, Schedule};

use crate::failure::Failure;

/// The settings of a training, from its seed to its learning rates.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub seed: u64,
    pub batches: Batches,
    pub micro_batch: usize,
    pub total_steps: u64,
    pub on_non_finite: OnNonFinite,
    pub schedule: Schedule,
    /// The peak of the schedule by the global batch, if it follows each change of that.
    rescaled: Option<Peak>,
}

/// The learning rate at the end of warm-up, by the global batch.
#[derive(Clone, Copy, Debug)]
struct Peak {
    base: f64,
    scaling: Scaling,
    base_batch: u64,
    highest: f64,
}

impl Peak {
    fn of(self, global_batch: u64) -> f64 {
        let Self { base, scaling, base_batch, highest } = self;
        scaling.scale(base, global_batch, base_batch).min(highest)
    }
}

impl Recipe {
    /// Returns the recipe of a training on so many samples. `last_step` ends a replay early.
    pub(crate) fn new(training: &Training, samples: u64, last_step: Option<u64>) -> Self {
        let batches = batches(training, samples);
        let peak = peak(&training.schedule, &training.optimizer);
        Self {
            seed: training.seed,
            batches,
            micro_batch: micro_batch(training),
            total_steps: last_step.unwrap_or(u64::MAX).min(batches.steps_before(training.epochs.into())),
            on_non_finite: training.on_non_finite,
            schedule: schedule(training, peak.of(training.global_batch_size.into()), &batches),
            rescaled: training.schedule.rescale.then_some(peak),
        }
    }

    /// Returns the learning rate of a step; steps count from 1.
    pub(crate) fn rate(&self, step: u64) -> f32 {
        let Self { schedule, rescaled, batches, .. } = self;
        match rescaled {
            Some(peak) => schedule.rate_below(peak.of(batches.global_batch(step.saturating_sub(1))), step),
            None => schedule.rate(step),
        }
    }
}

fn batches(training: &Training, samples: u64) -> Batches {
    let first = Batches::constant(samples, training.global_batch_size.into());
    let changed = |batches: Batches, change: &BatchSizeChange| {
        batches.changed(change.epoch.into(), change.global_batch_size.into())
    };
    training.batch_size_schedule.iter().fold(first, changed)
}

/// Checks that so many samples fill each global batch.
///
/// # Errors
/// Fatal: they do not. The error names the field.
pub(crate) fn check_batches(training: &Training, samples: u64) -> Result<(), Failure> {
    for (number, size) in training.batch_sizes().enumerate() {
        let field = match number.checked_sub(1) {
            None => "spec.training.globalBatchSize".to_owned(),
            Some(change) => format!("spec.training.batchSizeSchedule[{change}].globalBatchSize"),
        };
        check_global_batch(&field, samples, size.into()).map_err(Failure::fatal)?;
    }
    Ok(())
}

/// Returns the most samples that a device takes through the model at once. A share is never larger
/// than the global batch.
pub(crate) fn micro_batch(training: &Training) -> usize {
    training.micro_batch_size.min(training.largest_batch_size()) as usize
}

/// Returns the base rate, the scaling and the highest rate for a job that names none. Those of LARS
/// were measured on a network without norm layers: at batch 64 the base rate 8 was best and 16 was
/// lost, so the default is half of 8.
fn defaults(optimizer: &spec::Optimizer) -> (f32, spec::Scaling, f32) {
    const HIGHEST: f32 = 1000.0;
    match optimizer {
        spec::Optimizer::Sgd(_) | spec::Optimizer::Larc(_) => (0.02, spec::Scaling::None, HIGHEST),
        spec::Optimizer::Lars(_) => (4.0, spec::Scaling::SquareRoot, 64.0),
        spec::Optimizer::Lamb(_) => (0.01, spec::Scaling::None, HIGHEST),
        spec::Optimizer::Adamw(_) | spec::Optimizer::Rmsprop(_) => (0.001, spec::Scaling::None, HIGHEST),
    }
}

fn peak(named: &spec::LearningRateSchedule, optimizer: &spec::Optimizer) -> Peak {
    let (base, scaling, highest) = defaults(optimizer);
    Peak {
        base: named.base_learning_rate.unwrap_or(base).into(),
        scaling: match named.scaling.unwrap_or(scaling) {
            spec::Scaling::None => Scaling::None,
            spec::Scaling::Linear => Scaling::Linear,
            spec::Scaling::SquareRoot => Scaling::SquareRoot,
        },
        base_batch: named.base_batch_size.into(),
        highest: named.max_learning_rate.unwrap_or(highest).into(),
    }
}

/// Returns the schedule of the rate. Warm-up and the drops of step decay are given in epochs, which
/// have fewer steps once the batch has grown.
fn schedule(training: &Training, peak: f64, batches: &Batches) -> Schedule {
    let named = &training.schedule;
    let total_steps = batches.steps_before(training.epochs.into());
    let end = named.end_learning_rate;
    Schedule {
        peak,
        warmup_steps: batches.steps_of(named.warmup_epochs).min(total_steps),
        total_steps,
        decay: match named.decay {
            spec::Decay::Constant => Decay::Constant,
            spec::Decay::Step => Decay::Steps {
                at: named.decay_epochs.iter().map(|epochs| batches.steps_of(*epochs)).collect(),
                factor: named.decay_factor,
            },
            spec::Decay::Cosine => Decay::Cosine { end },
            spec::Decay::Polynomial => Decay::Polynomial { power: named.decay_power, end },
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn recipe(training: serde_json::Value) -> Recipe {
        Recipe::new(&serde_json::from_value(training).expect("a training"), 60_000, None)
    }

    #[test]
    fn lars_scales_its_rate_with_the_root_of_the_batch_up_to_64() {
        let peak = |batch| recipe(json!({"globalBatchSize": batch, "optimizer": {"lars": {}}})).schedule.peak;
        assert_eq!([64, 1024, 65_536].map(peak), [4.0, 16.0, 64.0]);
    }

    #[test]
    fn a_job_that_names_nothing_trains_with_a_constant_rate() {
        let recipe = recipe(json!({}));
        assert_eq!((recipe.rate(1), recipe.rate(recipe.total_steps)), (0.02, 0.02));
    }

    #[test]
    fn epochs_become_steps() {
        let schedule = json!({
            "baseLearningRate": 0.1, "scaling": "linear", "baseBatchSize": 256, "warmupEpochs": 0.5, "decay": "step",
            "decayEpochs": [2, 4],
        });
        let recipe = recipe(json!({"globalBatchSize": 1024, "epochs": 5, "schedule": schedule}));
        let decay = Decay::Steps { at: vec![118, 236], factor: 0.1 };
        assert_eq!(recipe.schedule, Schedule { peak: 0.4_f32.into(), warmup_steps: 30, total_steps: 295, decay });
    }

    /// A recipe of batches of 1,000 and, after 2 epochs, of 4,000: 60 steps, then 15.
    fn changing(schedule: serde_json::Value) -> Recipe {
        recipe(json!({
            "globalBatchSize": 1000, "epochs": 4, "schedule": schedule,
            "batchSizeSchedule": [{"epoch": 2, "globalBatchSize": 4000}],
        }))
    }

    #[test]
    fn a_larger_batch_makes_fewer_steps_of_an_epoch() {
        let recipe = changing(json!({"warmupEpochs": 2.2, "decay": "step", "decayEpochs": [3]}));
        let decay = Decay::Steps { at: vec![135], factor: 0.1 };
        assert_eq!((recipe.total_steps, recipe.schedule.warmup_steps), (150, 123));
        assert_eq!(recipe.schedule.decay, decay);
    }

    #[test]
    fn the_rate_follows_the_first_batch_unless_it_is_to_be_rescaled() {
        let rates = |schedule| {
            let recipe = changing(schedule);
            [1, 120, 121, 150].map(|step| recipe.rate(step))
        };
        let linear = |rescale: bool| {
            json!({
                "baseLearningRate": 0.1, "baseBatchSize": 1000, "scaling": "linear", "maxLearningRate": 0.3,
                "rescale": rescale,
            })
        };
        assert_eq!(rates(linear(false)), [0.1; 4]);
        assert_eq!(rates(linear(true)), [0.1, 0.1, 0.3, 0.3], "limited by the highest rate");
    }

    #[test]
    fn a_micro_batch_may_be_as_large_as_the_largest_batch() {
        let sizes = json!({
            "globalBatchSize": 32, "microBatchSize": 512, "batchSizeSchedule": [{"epoch": 1, "globalBatchSize": 128}],
        });
        assert_eq!(recipe(sizes).micro_batch, 128);
    }

    #[test]
    fn a_replay_that_ends_early_has_the_rates_of_the_whole_run() {
        let training = serde_json::from_value(json!({"epochs": 5, "schedule": {"decay": "cosine"}})).expect("valid");
        let [whole, part] = [None, Some(100)].map(|last_step| Recipe::new(&training, 60_000, last_step));
        assert_eq!((part.total_steps, part.rate(100)), (100, whole.rate(100)));
    }
}
