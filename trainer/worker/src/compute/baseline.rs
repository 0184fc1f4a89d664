//! The speed of a rank's forward and backward passes, measured before it joins the others. The
//! first plan of sums follows from it.

use std::{sync::Arc, time::Instant};

use lockstep_data::{Batches, Seat};
use lockstep_elastic::ActivityMonitor;

use super::recipe::Recipe;
use crate::{
    communication::Baseline,
    failure::Failure,
    trainee::{Shares, Trainee},
};

/// Steps that are measured; the first half warms up.
const STEPS: u64 = 6;

/// Does a few steps, each of as many samples as a round of the rank's devices takes, and drops the
/// results. The trainee keeps a bucket for each range of its ready order. `seats` are those of the
/// rank's devices.
pub(crate) fn measure_baseline(
    trainee: &mut dyn Trainee,
    seats: &[Seat],
    recipe: &Recipe,
) -> Result<Baseline, Failure> {
    let ready_order = trainee.ready_order();
    let mut baseline = Baseline { samples_per_second: None, ready: vec![0.0; ready_order.len()] };
    let parts = seats.iter().flat_map(|seat| seat.parts(recipe.batches.largest()));
    let longest = parts.map(|part| part.end - part.start).max().unwrap_or_default();
    let (devices, training) = (seats.len() as u32, trainee.samples().training);
    let global_batch = longest.min(recipe.micro_batch as u64) * u64::from(devices);
    if global_batch == 0 || global_batch > training {
        return Ok(baseline);
    }
    trainee.set_buckets(&ready_order)?;
    let batches = Batches::constant(training, global_batch);
    let seats = (0..devices).map(|device| Seat::new(device, devices, devices)).collect();
    trainee.expect(Shares { seed: recipe.seed, batches, seats, first_step: 0, steps: STEPS })?;
    let (work, mut fastest) = (Arc::<ActivityMonitor>::default(), 0.0);
    let mut ready = Vec::with_capacity(baseline.ready.len());
    for index in 0..STEPS {
        let step = batches.step(index);
        ready.clear();
        let start = Instant::now();
        let waited = trainee.gradients(step, &work, &mut |_, mut bucket| {
            bucket.complete();
            ready.push(start.elapsed().as_secs_f64());
        });
        let (waited, seconds) = (waited.as_secs_f64(), start.elapsed().as_secs_f64());
        trainee.abandon_step();
        let rate = step.samples as f64 / (seconds - waited);
        if rate > fastest {
            fastest = rate;
            baseline.ready = ready.iter().map(|seconds| f64::max(seconds - waited, 0.0)).collect();
        }
    }
    baseline.samples_per_second = Some(fastest);
    Ok(baseline)
}
