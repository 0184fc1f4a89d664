//! The speed of one rank without communication, measured before it joins the others.

use std::time::Instant;

use lockstep_data::{Evaluation as EvaluationLoader, Samples, Seat};
use lockstep_nn::{Cpu, Replica};

use super::recipe::Recipe;
use crate::{communication::Baseline, failure::Failure};

/// Steps that are measured; the first half warms up.
const STEPS: u32 = 6;

/// Does a few steps on the rank's first samples, and drops the results. The replica keeps a bucket
/// for each range of its ready order.
pub(crate) fn measure_baseline(
    replica: &mut Replica<Cpu>,
    train: &Samples,
    seat: Seat,
    recipe: &Recipe,
) -> Result<Baseline, Failure> {
    let ready_order = replica.table().ready_order();
    let mut baseline = Baseline { samples_per_second: None, ready: vec![0.0; ready_order.len()] };
    let mut loader = EvaluationLoader::new(train, seat.share(train.len() as u64), recipe.micro_batch);
    let longest = seat.parts(recipe.batches.largest()).map(|part| part.end - part.start).max().unwrap_or_default();
    let wanted = usize::try_from(longest).unwrap_or(usize::MAX).min(recipe.micro_batch);
    let Some(batch) = loader.next_batch().filter(|batch| wanted > 0 && batch.len() >= wanted) else {
        return Ok(baseline);
    };
    let pixels = batch.images.len() / batch.len();
    let (images, labels) = (&batch.images[..wanted * pixels], &batch.labels[..wanted]);
    replica.set_buckets(ready_order).map_err(Failure::fatal)?;
    let (mut fastest, mut ready) = (f64::INFINITY, Vec::with_capacity(baseline.ready.len()));
    for _ in 0..STEPS {
        ready.clear();
        let start = Instant::now();
        replica.begin_step();
        replica.micro_batch(images, labels, 1.0, true, &mut |_, gradient| {
            drop(gradient);
            ready.push(start.elapsed().as_secs_f64());
        });
        replica.finish_step();
        let seconds = start.elapsed().as_secs_f64();
        if seconds < fastest {
            fastest = seconds;
            baseline.ready.clone_from(&ready);
        }
    }
    baseline.samples_per_second = Some(wanted as f64 / fastest);
    Ok(baseline)
}
