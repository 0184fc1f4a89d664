//! Trains LeNet-5 once for each line of standard input, `{"method", "batch", "peak", "seed",
//! "sweep"}`, and prints a line of JSON for each: `cargo xtask bench large-batch` calls it.
//! Arguments: the folder of MNIST's files, or `glyphs`.
//!
//! Five epochs, warm-up over the first, then a polynomial decay of power 2 to 0. A sweep trains on
//! all but the last samples and is judged on these; other runs train on everything and are judged
//! on the test samples.

use std::{io::BufRead as _, path::Path, sync::Arc, time::Instant};

use anyhow::{Context as _, ensure};
use lockstep_data::{Batches, Dataset, Evaluation, Loader, Order, Samples, Seat, glyphs, idx};
use lockstep_nn::{
    Cpu, Decay, Optimizer, Replica, Schedule, models,
    optimizers::{Biases, Lamb, Lars, Sgd},
};
use serde::{Deserialize, Serialize};

const EPOCHS: u64 = 5;
const CLASSES: usize = 10;
/// Training samples that judge a sweep, as a share of all.
const HELD_OUT: usize = 12;
const MICRO_BATCH: usize = 256;
/// Glyphs that are drawn if there is no MNIST, and the share that tests.
const GLYPHS: (usize, f64) = (24_000, 0.25);
/// A loss above this is beyond repair.
const LOST: f64 = 1e4;

#[derive(Deserialize)]
struct Run {
    method: Method,
    batch: u64,
    peak: f64,
    seed: u64,
    sweep: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Method {
    Sgd,
    SgdClipped,
    /// Trust on every tensor.
    Lars,
    /// MLPerf's form: biases take the raw rate.
    LarsMlperf,
    Lamb,
}

impl Method {
    fn optimizer(self) -> Optimizer {
        let (momentum, weight_decay) = (0.9, 5e-5);
        let lars =
            |biases| Optimizer::Lars(Lars { momentum, weight_decay, trust_coefficient: 0.001, epsilon: 0.0, biases });
        match self {
            Method::Sgd | Method::SgdClipped => Optimizer::Sgd(Sgd { momentum, weight_decay, nesterov: false }),
            Method::Lars => lars(Biases::Trust),
            Method::LarsMlperf => lars(Biases::Skip),
            Method::Lamb => Optimizer::Lamb(Lamb { betas: [0.9, 0.999], weight_decay: 0.01, epsilon: 1e-6 }),
        }
    }

    fn clip_norm(self) -> Option<f32> {
        matches!(self, Method::SgdClipped).then_some(1.0)
    }
}

#[derive(Serialize)]
struct Outcome {
    /// Share of the samples that are classified right.
    accuracy: f64,
    /// Mean loss of the last epoch's steps; none if the run diverged.
    loss: Option<f64>,
    /// True if the loss was not finite, or stayed at that of guessing after it had been thrown off.
    dead: bool,
    steps: u64,
    seconds: f64,
}

fn main() -> anyhow::Result<()> {
    let source = std::env::args().nth(1).context("the folder of MNIST's files, or `glyphs`")?;
    let dataset = match source.as_str() {
        "glyphs" => glyphs::draw(GLYPHS.0, 0, GLYPHS.1),
        folder => idx::read(Path::new(folder), 0.1, Some(CLASSES))?,
    };
    ensure!(!dataset.evaluation.is_empty(), "{source} has no test samples");
    let (all, tests) = (Arc::new(dataset.train.clone()), dataset.evaluation.clone());
    let swept = swept(&dataset);
    let (fit, judges) = (Arc::new(swept.train), swept.evaluation);
    for line in std::io::stdin().lock().lines() {
        let run: Run = serde_json::from_str(&line?).context("a line of standard input")?;
        let outcome = if run.sweep { train(&run, &fit, &judges) } else { train(&run, &all, &tests) }?;
        println!("{}", serde_json::to_string(&outcome)?);
    }
    Ok(())
}

/// The training samples, the last of them held out.
fn swept(dataset: &Dataset) -> Dataset {
    let all = &dataset.train;
    let kept = all.len() - all.len() / HELD_OUT;
    let part = |pixels: &[u8], labels: &[u32]| Samples::new(all.shape(), CLASSES, pixels.to_vec(), labels.to_vec());
    let (first, last) = all.pixels().split_at(kept * all.shape().bytes());
    let (first_labels, last_labels) = all.labels().split_at(kept);
    Dataset { train: part(first, first_labels), evaluation: part(last, last_labels) }
}

fn train(run: &Run, samples: &Arc<Samples>, judges: &Samples) -> anyhow::Result<Outcome> {
    let begun = Instant::now();
    let batches = Batches::constant(samples.len() as u64, run.batch);
    let (per_epoch, steps) = (batches.steps_before(1), batches.steps_before(EPOCHS));
    let decay = Decay::Polynomial { power: 2.0, end: 0.0 };
    let schedule = Schedule { peak: run.peak, warmup_steps: per_epoch, total_steps: steps, decay };
    let micro_batch = MICRO_BATCH.min(run.batch as usize);
    let network = models::lenet5();
    let buckets = network.table().ready_order();
    let mut replica = Replica::new(Cpu::new(), network, run.method.optimizer(), micro_batch, buckets)?;
    replica.clip_gradients(run.method.clip_norm());
    replica.initialise(run.seed);
    let order = Order {
        seed: run.seed,
        batches,
        micro_batch,
        seat: Seat::new(0, 1, 1),
        first_step: 0,
        steps,
        whole_shards: false,
    };
    let mut loader = Loader::start(Arc::clone(samples), order)?;
    let mut losses = Vec::with_capacity(steps as usize);
    while let Some(share) = loader.next_step() {
        replica.begin_step();
        let scale = 1.0 / share.samples as f32;
        let mut left = share.micro_batches;
        while let Some(batch) = loader.next_batch() {
            left -= 1;
            replica.micro_batch(&batch.images, &batch.labels, scale, left == 0, &mut |_, _| {});
        }
        let step = share.step.index + 1;
        replica.update(step, schedule.rate(step));
        losses.push(replica.finish_step().loss_sum / share.samples as f64);
        if losses.last().is_none_or(|loss| loss.is_nan() || *loss >= LOST) {
            break;
        }
    }
    let mut correct = 0;
    let mut evaluation = Evaluation::new(judges, 0..judges.len() as u64, micro_batch);
    while let Some(batch) = evaluation.next_batch() {
        correct += replica.evaluate(&batch.images, &batch.labels).correct;
    }
    let last_epoch = losses.get(losses.len().saturating_sub(per_epoch as usize)..).unwrap_or_default();
    let loss = last_epoch.iter().sum::<f64>() / last_epoch.len() as f64;
    let was_thrown_off = losses.iter().any(|loss| *loss > 2.5);
    Ok(Outcome {
        accuracy: correct as f64 / judges.len() as f64,
        loss: loss.is_finite().then_some(loss),
        dead: !loss.is_finite() || (losses.len() as u64) < steps || (was_thrown_off && loss > 2.25),
        steps,
        seconds: begun.elapsed().as_secs_f64(),
    })
}
