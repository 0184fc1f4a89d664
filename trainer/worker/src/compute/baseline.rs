//! What one rank does by itself, measured before it works with others.

use std::time::Instant;

use lockstep_data::{Evaluation as EvaluationLoader, Samples, Seat};
use lockstep_nn::{Cpu, Replica};

use crate::{failure::Failure, step::rank::Recipe};

/// Steps that are measured; the first half warms up.
const STEPS: u32 = 6;

/// The fastest step of one rank without communication.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Baseline {
    /// `None` where the rank has no micro-batch's worth of samples.
    pub samples_per_second: Option<f64>,
    /// When the gradients of each range of the table's ready order were complete, in seconds after the beginning of the step.
    pub ready: Vec<f64>,
}

impl Baseline {
    /// Does a few steps on the rank's first samples, whose results are dropped. Leaves the replica with a bucket for each range.
    pub(crate) fn measure(
        replica: &mut Replica<Cpu>,
        train: &Samples,
        seat: Seat,
        recipe: &Recipe,
    ) -> Result<Self, Failure> {
        let ready_order = replica.table().ready_order();
        let mut baseline = Self { samples_per_second: None, ready: vec![0.0; ready_order.len()] };
        let mut loader = EvaluationLoader::new(train, seat.share(train.len() as u64), recipe.micro_batch);
        let longest = seat.parts(recipe.global_batch).map(|part| part.end - part.start).max().unwrap_or_default();
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
}
