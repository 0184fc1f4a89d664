//! The training loop of one rank: batches in, gradients averaged over the group while backward goes on, weights updated, every rank
//! in lockstep.
//!
//! Whatever all ranks must agree on in mid-run travels in the numbers that they sum anyway: rank r adds its useful seconds in a
//! slot of its own, and whoever was asked to stop adds 1 to the stop slot. The sum of step s is read during step s + 1, so it costs
//! no waiting; every rank reads the same sum at the same step, so all of them stop after the same one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_collective::{CollectiveError, Communicator, Completed, Statistics};
use lockstep_data::{Evaluation as EvaluationLoader, Loader, Order, Samples, Seat, StepShare};
use lockstep_launch::Progress;
use lockstep_nn::{Cpu, Device, Gradient, Replica, Sgd};

use crate::{
    efficiency::{Meter, Step},
    failure::Failure,
    gradients,
    journal::Evaluation,
    metrics::{Metrics, Phase},
    signals::Stop,
};

/// Bucket number of the numbers that are summed beside the gradients; no gradient bucket reaches it.
const NUMBERS: u32 = u32::MAX - 1;

/// Slots of a step's numbers: the summed loss, how many ranks were asked to stop, then each rank's useful seconds.
const LOSS: usize = 0;
const STOP: usize = 1;
const USEFUL: usize = 2;

/// A slice of the gradient arena, leased.
pub(crate) type Bucket = Gradient<<Cpu as Device>::HostView>;

/// What is summed over the ranks: a bucket of gradients, or numbers beside them.
pub(crate) enum Slice {
    Gradient(Bucket),
    Numbers(Vec<f32>),
}

impl AsMut<[f32]> for Slice {
    fn as_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Gradient(gradient) => gradient.as_mut(),
            Self::Numbers(numbers) => numbers,
        }
    }
}

/// What stays the same from the first step to the last.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub seed: u64,
    pub global_batch: u64,
    pub micro_batch: usize,
    pub total_steps: u64,
    pub steps_per_epoch: u64,
    pub optimiser: Sgd,
    pub rate: f32,
}

/// One step that every rank has done.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// Steps that are done, this one included.
    pub step: u64,
    /// Epochs that are done.
    pub epoch: u64,
    /// Mean training loss over the global batch, in nats.
    pub loss: f64,
    /// Wall seconds of the step.
    pub seconds: f64,
    /// Samples of the step over all ranks.
    pub samples: u64,
    /// Whether any rank was asked to stop.
    pub stop: bool,
}

/// One rank at work.
pub(crate) struct Rank {
    seat: Seat,
    rank: usize,
    world: usize,
    recipe: Recipe,
    held_out: Arc<Samples>,
    replica: Replica<Cpu>,
    communicator: Communicator<Slice>,
    loader: Loader,
    /// Steps that this rank has done.
    step: u64,
    /// A step whose numbers are still being summed.
    pending: Option<Pending>,
    /// Buffer for the numbers of the next step.
    spare: Vec<f32>,
    last_end: Instant,
    meter: Meter,
    metrics: Arc<Metrics>,
    stop: Stop,
    counted: Statistics,
}

struct Pending {
    step: u64,
    samples: u64,
    seconds: f64,
}

impl Rank {
    /// Takes its seat before step `base_step`; `replica` holds the weights after it. `baseline` is the speed of one rank by itself, in
    /// samples a second.
    #[allow(
        clippy::too_many_arguments,
        reason = "each part is made by another module; a struct would only rename them"
    )]
    pub(crate) fn new(
        seat: Seat,
        recipe: Recipe,
        train: Arc<Samples>,
        held_out: Arc<Samples>,
        replica: Replica<Cpu>,
        communicator: Communicator<Slice>,
        baseline: Option<f64>,
        base_step: u64,
        metrics: Arc<Metrics>,
        stop: Stop,
    ) -> Result<Self, Failure> {
        let order = Order {
            seed: recipe.seed,
            global_batch: recipe.global_batch,
            micro_batch: recipe.micro_batch,
            seat,
            first_step: base_step,
            steps: recipe.total_steps.saturating_sub(base_step),
        };
        let (rank, world) = (communicator.rank(), communicator.world());
        if let Some(rate) = baseline {
            metrics.baseline.set(rate);
        }
        Ok(Self {
            seat,
            rank,
            world,
            recipe,
            loader: Loader::start(train, order).map_err(Failure::retry)?,
            held_out,
            replica,
            communicator,
            step: base_step,
            pending: None,
            spare: Vec::new(),
            last_end: Instant::now(),
            meter: Meter::new(world, baseline),
            metrics,
            stop,
            counted: Statistics::default(),
        })
    }

    /// Steps that this rank has done.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    pub(crate) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Sums `values` over all ranks, waiting for them.
    pub(crate) fn sum(&mut self, values: &mut [f32]) -> Result<(), Failure> {
        self.communicator.all_reduce_now(self.step, values).map(|_| ()).map_err(|error| lost(&error))
    }

    /// Does the next step. Gives the step before it, which by now every rank has done; `None` at first.
    pub(crate) fn advance(&mut self) -> Result<Option<Done>, Failure> {
        let waiting = Instant::now();
        let Some(StepShare { step, samples: mine, .. }) = self.loader.next_step() else { return self.settle() };
        let data = waiting.elapsed();
        let Self { replica, communicator, loader, .. } = self;
        let only = replica.buckets().len() == 1;
        let submit = &mut |bucket: usize, gradient: Bucket| {
            let (bucket, gradient) = (bucket as u32, Slice::Gradient(gradient));
            // Nothing is left to compute beside it.
            if only {
                communicator.defer(step.index, bucket, gradient);
            } else {
                communicator.submit(step.index, bucket, gradient);
            }
        };
        let computing = Instant::now();
        let loading = if self.seat.is_aligned() {
            gradients::of_parts(replica, loader, step, self.seat, submit)
        } else {
            gradients::of_share(replica, loader, step, submit)
        };
        let gradients = computing.elapsed().saturating_sub(loading);

        let done = self.settle()?;
        self.gather()?;
        let updating = Instant::now();
        self.replica.update(&self.recipe.optimiser, self.recipe.rate);
        let result = self.replica.finish_step();
        let update = updating.elapsed();

        self.step += 1;
        let useful = (gradients + update).as_secs_f64();
        let seconds = self.last_end.elapsed().as_secs_f64();
        self.last_end = Instant::now();
        self.pending = Some(Pending { step: self.step, samples: step.samples, seconds });
        let mut numbers = std::mem::take(&mut self.spare);
        numbers.clear();
        numbers.resize(USEFUL + self.world, 0.0);
        numbers[LOSS] = result.loss_sum as f32;
        numbers[STOP] = f32::from(u8::from(self.stop.wanted()));
        numbers[USEFUL + self.rank] = useful as f32;
        let numbers = Slice::Numbers(numbers);
        // With one bucket they go with it; with more, the thread that sums those is there for them too.
        if self.replica.buckets().len() == 1 {
            self.communicator.defer(step.index, NUMBERS, numbers);
        } else {
            self.communicator.submit(step.index, NUMBERS, numbers);
        }
        self.count(mine, seconds, useful, (data + loading).as_secs_f64());
        Ok(done)
    }

    /// Waits for the numbers of the last step. After it nothing is pending.
    pub(crate) fn settle(&mut self) -> Result<Option<Done>, Failure> {
        let Some(Pending { step, samples, seconds }) = self.pending.take() else { return Ok(None) };
        let Completed { memory, .. } = self.communicator.wait().map_err(|failed| lost(&failed.error))?;
        let Slice::Numbers(numbers) = memory else {
            unreachable!("operations come back in the order of submission: numbers before the next step's gradients")
        };
        let done = Done {
            step,
            epoch: step / self.recipe.steps_per_epoch,
            loss: f64::from(numbers[LOSS]) / samples as f64,
            seconds,
            samples,
            stop: numbers[STOP] > 0.0,
        };
        self.meter.record(Step { samples, wall: seconds, useful: numbers[USEFUL..].to_vec() });
        self.spare = numbers;
        if !done.loss.is_finite() {
            return Err(Failure::fatal(format!(
                "the training loss became {} at step {step}: lower spec.training.schedule.baseLearningRate ({})",
                done.loss, self.recipe.rate
            )));
        }
        Ok(Some(done))
    }

    /// Waits for the gradients of this step and gives them back to the replica.
    fn gather(&mut self) -> Result<(), Failure> {
        for completed in self.communicator.wait_all() {
            drop(completed.map_err(|failed| lost(&failed.error))?);
        }
        Ok(())
    }

    /// Loss and accuracy on the held-out samples, each rank on its share. `None` when none are held out.
    pub(crate) fn evaluate(&mut self) -> Result<Option<Evaluation>, Failure> {
        let start = Instant::now();
        let mut parts = Vec::new();
        for part in self.seat.parts(self.held_out.len() as u64) {
            let (mut loss, mut correct, mut count) = (0.0, 0, 0);
            let mut loader = EvaluationLoader::new(&self.held_out, part, self.recipe.micro_batch);
            while let Some(batch) = loader.next_batch() {
                let result = self.replica.evaluate(&batch.images, &batch.labels);
                loss += result.loss_sum;
                correct += result.correct;
                count += batch.len();
            }
            parts.push([loss as f32, correct as f32, count as f32]);
        }
        let mut sums = added_in_pairs(parts);
        self.sum(&mut sums)?;
        let [loss, correct, count] = sums.map(f64::from);
        self.metrics.spent(Phase::Other, start.elapsed().as_secs_f64());
        self.rest();
        Ok((count > 0.0).then(|| Evaluation { loss: loss / count, accuracy: correct / count }))
    }

    /// What was done since the last step is not part of the next one.
    pub(crate) fn rest(&mut self) {
        self.last_end = Instant::now();
        self.counted.exposed = self.communicator.statistics().exposed;
    }

    /// The figures of the newest steps as a report.
    pub(crate) fn progress(&self, done: &Done) -> Progress {
        let efficiency = self.meter.efficiency();
        let speed = efficiency.map(|efficiency| efficiency.samples_per_second);
        let left = (self.recipe.total_steps - done.step) as f64 * self.recipe.global_batch as f64;
        Progress {
            step: done.step,
            total_steps: self.recipe.total_steps,
            epoch: done.epoch,
            world_size: self.world as u32,
            loss: Some(done.loss),
            samples_per_second: speed,
            scaling_efficiency: efficiency.and_then(|efficiency| efficiency.scaling),
            load_balance: efficiency.map(|efficiency| efficiency.load_balance),
            communication_efficiency: efficiency.map(|efficiency| efficiency.communication),
            estimated_remaining_seconds: speed.filter(|speed| *speed > 0.0).map(|speed| left / speed),
            ..Progress::default()
        }
    }

    /// Weights and velocities for a checkpoint are read here, between two steps.
    pub(crate) fn replica_mut(&mut self) -> &mut Replica<Cpu> {
        &mut self.replica
    }

    fn count(&mut self, samples: u64, seconds: f64, useful: f64, data: f64) {
        let statistics = self.communicator.statistics();
        let since = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64();
        let exposed = since(statistics.exposed, self.counted.exposed);
        self.metrics.steps.inc();
        self.metrics.samples.inc_by(samples);
        self.metrics.step_duration.observe(seconds);
        self.metrics.learning_rate.set(f64::from(self.recipe.rate));
        self.metrics.spent(Phase::Compute, useful);
        self.metrics.spent(Phase::Data, data);
        self.metrics.spent(Phase::ExposedCommunication, exposed);
        self.metrics.spent(Phase::Other, seconds - useful - data - exposed);
        self.metrics.collective_seconds.inc_by(since(statistics.busy, self.counted.busy));
        self.metrics.collective_bytes.inc_by(statistics.bytes_sent - self.counted.bytes_sent);
        self.counted = statistics;
    }
}

/// The sum of 2ᵏ parts as a binary tree over them forms it.
fn added_in_pairs(mut parts: Vec<[f32; 3]>) -> [f32; 3] {
    while parts.len() > 1 {
        let add = |pair: &[[f32; 3]]| std::array::from_fn(|index| pair.iter().map(|part| part[index]).sum());
        parts = parts.chunks(2).map(add).collect();
    }
    parts.first().copied().unwrap_or_default()
}

/// The group cannot go on without the rank that the error names; the job can, from its checkpoint.
fn lost(error: &CollectiveError) -> Failure {
    Failure::retry(error)
}
