//! Steps that one worker does by itself while the others wait. They show how fast it would train
//! the whole global batch alone.
//!
//! ```text
//! alone = Σ samples / Σ (gradients of these samples + rest)      over steps
//! rest  = update and check of the state
//! ```
//!
//! They are whole steps with samples from a loader, cut into micro-batches. Of a step that takes
//! long only a part is computed, a whole number of virtual shards; the time of all gradients is
//! extrapolated from it. Afterwards the worker is as before.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_data::{Seat, Step};
use lockstep_elastic::ActivityMonitor;

use crate::{compute::training_state::TrainingState, failure::Failure};

/// The group waits for about this time.
const ENOUGH: Duration = Duration::from_millis(400);
/// The number of steps for which this time should suffice. The first of several warms up.
const LEAST: u32 = 3;
const MOST: usize = 64;

/// Returns the samples per second of this worker by itself. `seats` returns those of the devices
/// of the first rank in a group of any size up to the number of `shards`.
pub(crate) fn rehearse(
    state: &mut TrainingState,
    shards: u32,
    seats: impl FnOnce(u32) -> Vec<Seat>,
    work: &Arc<ActivityMonitor>,
) -> Result<Option<f64>, Failure> {
    let batch = state.recipe.batches.global_batch(state.step) as f64;
    let whole = state.baseline.samples_per_second.map(|rate| batch / rate);
    let seats = seats(parts(whole.unwrap_or_default(), shards));
    state.expect(seats.clone())?;
    state.rehearse(|state| {
        let (begun, mut steps) = (Instant::now(), Vec::new());
        while let Some(next) = state.next_step()
            && (steps.is_empty() || (begun.elapsed() < ENOUGH && steps.len() < MOST))
        {
            steps.push(step(state, next, &seats, work)?);
        }
        Ok(throughput(&steps))
    })
}

/// A step of which a part was computed.
#[derive(Clone, Copy, Debug)]
struct PartialStep {
    /// The samples of the whole step.
    samples: u64,
    /// Those of the part.
    taken: u64,
    /// The seconds that its gradients took, with the waits for the loader.
    gradients: f64,
    /// The seconds of the update and the check.
    rest: f64,
}

/// Returns the number of parts of which one is computed, for a step that takes about so many
/// seconds. A part holds one of the `shards` at least.
fn parts(seconds: f64, shards: u32) -> u32 {
    let allowed = ENOUGH.as_secs_f64() / f64::from(LEAST);
    let mut parts = 1;
    while seconds / f64::from(parts) > allowed && parts <= shards / 2 {
        parts *= 2;
    }
    parts
}

fn step(
    state: &mut TrainingState,
    step: Step,
    seats: &[Seat],
    work: &Arc<ActivityMonitor>,
) -> Result<PartialStep, Failure> {
    let (begun, mut buckets) = (Instant::now(), Vec::new());
    state.gradients(step, work, &mut |_, bucket| buckets.push(bucket));
    for mut bucket in buckets {
        bucket.complete();
    }
    let gradients = begun.elapsed().as_secs_f64();
    state.apply();
    state.fingerprint()?;
    let rest = begun.elapsed().as_secs_f64() - gradients;
    let share = |seat: &Seat| {
        let share = seat.share(step.samples);
        share.end - share.start
    };
    Ok(PartialStep { samples: step.samples, taken: seats.iter().map(share).sum(), gradients, rest })
}

/// Returns the samples per second of whole steps. The first of several warms up.
fn throughput(steps: &[PartialStep]) -> Option<f64> {
    let warm = if steps.len() > 1 { &steps[1..] } else { steps };
    let seconds = |step: &PartialStep| {
        let PartialStep { samples, taken, gradients, rest } = *step;
        gradients * samples as f64 / taken as f64 + rest
    };
    let samples: u64 = warm.iter().map(|step| step.samples).sum();
    let rate = samples as f64 / warm.iter().map(seconds).sum::<f64>();
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        communication::Alone,
        step::efficiency::{Meter, Step},
    };

    /// A worker that needs 2 ms for a sample and 30 ms for an update.
    const SAMPLE: f64 = 2e-3;
    const UPDATE: f64 = 30e-3;

    /// Returns the estimate of that worker for steps of 512 samples, of each of which it does one
    /// of `parts`.
    fn estimate(parts: u64) -> f64 {
        let taken = 512 / parts;
        let step =
            |slow: f64| PartialStep { samples: 512, taken, gradients: taken as f64 * SAMPLE * slow, rest: UPDATE };
        throughput(&[step(3.0), step(1.04), step(0.96)]).expect("steps")
    }

    /// Returns the meter after 100 steps of such workers, each of which waits 20 ms for the others.
    fn meter(world: usize, alone: Option<Alone>) -> Meter {
        let share = 512.0 / world as f64 * SAMPLE + UPDATE;
        let wall = share + if world > 1 { 20e-3 } else { 0.0 };
        let mut meter = Meter::new(vec![1.0 / world as f64; world], alone);
        for _ in 0..100 {
            meter.record(Step { samples: 512, wall, useful: vec![share as f32; world] });
        }
        meter
    }

    #[test]
    fn the_efficiency_by_an_estimate_is_that_by_a_run_of_one_worker_within_10_percent() {
        let lone_run = meter(1, None).alone().expect("it trained long enough");
        for world in [2, 4, 8] {
            let reported =
                |alone| meter(world, Some(alone)).efficiency().and_then(|found| found.scaling).expect("known").0;
            let honest = reported(lone_run);
            for parts in [1, 2, 8, 64] {
                let estimated = reported(Alone::estimated(estimate(parts)));
                assert!((estimated / honest - 1.0).abs() < 0.1, "{world} workers: {estimated}, {honest} by a real run");
            }
        }
    }

    #[test]
    fn steps_that_take_long_are_computed_in_part() {
        assert_eq!([0.0, 0.001, 0.13].map(|seconds| parts(seconds, 64)), [1; 3]);
        assert_eq!([0.2, 0.5, 4.0].map(|seconds| parts(seconds, 64)), [2, 4, 32]);
        assert_eq!([1, 3, 8, 64, 100].map(|shards| parts(60.0, shards)), [1, 2, 8, 64, 64]);
    }

    #[test]
    fn a_step_may_take_so_long_that_it_is_the_only_one() {
        let step = PartialStep { samples: 64, taken: 1, gradients: 1.0, rest: 0.0 };
        assert_eq!((throughput(&[step]), throughput(&[])), (Some(1.0), None));
    }
}
