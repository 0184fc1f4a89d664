//! The training loop of one rank: batches in, gradients averaged over the group while backward goes on, weights updated, every rank
//! in lockstep.
//!
//! Whatever all ranks must agree on in mid-run travels in the [`numbers`](crate::step::step_sync::slots) of a step, which they sum anyway.
//! What was trained on in step s goes behind the step's own last bucket of gradients: whoever has done the step knows its loss, also where
//! the group breaks right after it. What is told of step s once it is done goes behind that of step s + 1, so it costs neither a message nor
//! waiting; every rank reads the same sum at the same step, so all of them stop after the same one. It also tells that all ranks have done
//! step s: only then does anything of it leave the group. After a step that no other follows at once it is summed by itself, and so it is
//! during the steps by which a group agrees how to sum; beside gradients that travel rounded all numbers are, while the next step computes.
//! Only how to sum is agreed on beside it, once, after a number of steps that all count.

mod pending;

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_collective::{Communicator, Statistics};
use lockstep_data::{Evaluation as EvaluationLoader, Loader, Order, Samples, Seat, StepShare, Tally};
use lockstep_elastic::{Activity, ActivityMonitor, Assignment};
use lockstep_launch::Progress;
use lockstep_nn::{Cpu, Device, Gradient, Sgd};
use tracing::info;

use self::pending::{Done, Pending};
use crate::{
    communication::{Agreed, Seen, agree_anew},
    compute::devices::Gathered,
    compute::fingerprint::Fingerprint,
    compute::gradients,
    compute::training_state::Trainee,
    failure::Failure,
    membership::catchup::send::Feeds,
    membership::session::{LIMITS, Member, UNACKNOWLEDGED},
    progress::metrics::Phase,
    progress::metrics_log::{Evaluation, StepLine},
    step::efficiency::Meter,
    step::step_sync::checkpoint_flags::Word,
    step::step_sync::slots::{Told, Trained, slots},
};

/// How long a line between ranks may carry nothing while steps are done, or so many mean steps where that is longer.
const QUIET: Duration = Duration::from_secs(16);
const QUIET_STEPS: u32 = 8;
/// The same for the first step of a group, which may be slower than later ones. A line that swallows what it is given may be found out in
/// a step and then in the next group's first one: together within the minute after which a group is wedged.
const FIRST_QUIET: Duration = Duration::from_secs(24);

/// A slice of the gradient arena, leased.
pub(crate) type Bucket = Gradient<<Cpu as Device>::HostView>;

/// What is summed over the ranks: a bucket of gradients, or numbers beside them.
pub(crate) enum Slice {
    Gradient(Gathered),
    Numbers(Vec<f32>),
}

impl AsMut<[f32]> for Slice {
    fn as_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Gradient(gathered) => gathered.whole(),
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

/// One rank of one generation at work.
pub(crate) struct Rank<'a> {
    pub trainee: &'a mut Trainee,
    member: &'a Member<'a>,
    seat: Seat,
    rank: usize,
    world: usize,
    generation: u64,
    held_out: Arc<Samples>,
    communicator: Communicator<Slice>,
    /// One for each device.
    loaders: Vec<Loader>,
    feeds: Feeds<'a>,
    /// A step that not all are known to have done.
    pending: Option<Pending>,
    /// Those numbers until they are handed over, then their sums.
    numbers: Vec<f32>,
    last_end: Instant,
    /// For numbers that were summed by themselves, since that was told last.
    waited: Duration,
    meter: Meter,
    counted: Statistics,
    /// What the first steps take, until all agree by it how to sum; and when the gradients of the newest one were begun.
    seen: Option<(Seen, Instant)>,
    /// After which step before the last all ranks save their state, as far as they agreed.
    saves_after: Option<u64>,
    /// What the checksum of the whole state took that was saved last.
    checking: Duration,
}

impl<'a> Rank<'a> {
    /// Takes its seat; the trainee holds the state that all begin with.
    #[allow(
        clippy::too_many_arguments,
        reason = "each part is made by another module; a struct would only rename them"
    )]
    pub(crate) fn new(
        trainee: &'a mut Trainee,
        member: &'a Member<'a>,
        seat: Seat,
        devices: impl Iterator<Item = Seat>,
        group: &Assignment,
        train: Arc<Samples>,
        held_out: Arc<Samples>,
        communicator: Communicator<Slice>,
        agreed: &Agreed,
    ) -> Result<Self, Failure> {
        let recipe = &trainee.recipe;
        let order = |seat| Order {
            seed: recipe.seed,
            global_batch: recipe.global_batch,
            micro_batch: recipe.micro_batch,
            seat,
            first_step: trainee.step,
            steps: recipe.total_steps.saturating_sub(trainee.step),
        };
        let (rank, world) = (communicator.rank(), communicator.world());
        let shares = shares(recipe.global_batch, seat, world);
        if let Some(rate) = agreed.baseline {
            member.metrics.baseline.set(rate);
            let longest = shares.iter().copied().fold(0.0, f64::max) * recipe.global_batch as f64;
            member.membership.work().expect_step(Duration::try_from_secs_f64(longest / rate).unwrap_or_default());
        }
        let meter = Meter::new(shares, agreed.baseline);
        Ok(Self {
            loaders: devices
                .map(|seat| Loader::start(Arc::clone(&train), order(seat)).map_err(Failure::retry))
                .collect::<Result<_, _>>()?,
            trainee,
            member,
            seat,
            rank,
            world,
            generation: group.generation,
            held_out,
            communicator,
            feeds: Feeds::new(member, group),
            pending: None,
            numbers: vec![0.0; slots(world)],
            last_end: Instant::now(),
            waited: Duration::ZERO,
            meter,
            counted: Statistics::default(),
            seen: agreed.is_open.then(|| (Seen::of(agreed.plan.buckets().len(), agreed.measures), Instant::now())),
            saves_after: None,
            checking: Duration::ZERO,
        })
    }

    /// Steps that this rank has done.
    pub(crate) fn step(&self) -> u64 {
        self.trainee.step
    }

    fn work(&self) -> &'a Arc<ActivityMonitor> {
        self.member.membership.work()
    }

    pub(crate) fn recipe(&self) -> &Recipe {
        &self.trainee.recipe
    }

    /// Steps follow from here on, of which none takes much longer than the others: a line that carries nothing for so long is broken.
    pub(crate) fn expect_steps(&mut self) {
        let step = self.work().sample().longest_step();
        let quiet = QUIET.max(step * QUIET_STEPS).as_secs().next_power_of_two();
        let quiet = Duration::from_secs(quiet);
        self.communicator.set_silence_limits(quiet, quiet);
    }

    /// The first step of a group follows, or the first that it sums in another way.
    pub(crate) fn expect_first_step(&mut self) {
        let step = self.work().sample().longest_step();
        let quiet = FIRST_QUIET.max(step * QUIET_STEPS);
        self.communicator.set_silence_limits(quiet, quiet);
    }

    /// What follows may take any time. What is sent is little: systems acknowledge it at once.
    pub(crate) fn expect_anything(&mut self) {
        self.communicator.set_silence_limits(LIMITS.silence, UNACKNOWLEDGED);
    }

    /// Sums `values` over all ranks, waiting for them.
    pub(crate) fn sum(&mut self, values: &mut [f32]) -> Result<(), Failure> {
        let Self { member, communicator, trainee, .. } = self;
        let sum = || communicator.all_reduce_now(trainee.step, values);
        member.membership.work().during(Activity::Waiting, sum).map(|_| ()).map_err(Failure::lost)
    }

    /// Does the next step, telling `word` in its numbers. Gives the step before it, which by now every rank has done; `None` at first.
    pub(crate) fn advance(&mut self, word: Word) -> Result<Option<Done>, Failure> {
        let work = self.work();
        let waiting = Instant::now();
        let next = || self.loaders.iter_mut().map(Loader::next_step).collect::<Option<Vec<_>>>();
        let shares = work.during(Activity::Storing, next).unwrap_or_default();
        let mine = shares.iter().map(|share| share.samples).sum();
        let Some(StepShare { step, .. }) = shares.into_iter().next() else { return self.settle() };
        let data = waiting.elapsed();
        let computing = Instant::now();
        if let Some((seen, begun)) = &mut self.seen {
            *begun = computing;
            if seen.measures() {
                self.communicator.measure();
            }
        }
        let rides = self.pending.as_ref().is_some_and(|pending| pending.rides);
        let Self { trainee, communicator, loaders, numbers, world, .. } = self;
        let Trainee { replica, devices, .. } = &mut **trainee;
        let (last, carries) = (replica.buckets().len() - 1, replica.beside() > 0);
        let submit = &mut |bucket: usize, gradient: Gathered| {
            let gradient = if carries && bucket == last {
                gradient.carrying(if rides { mem::take(numbers) } else { vec![0.0; slots(*world)] })
            } else {
                gradient
            };
            let (bucket, gradient) = (bucket as u32, Slice::Gradient(gradient));
            // Nothing is left to compute beside it.
            if last == 0 {
                communicator.defer(step.index, bucket, gradient);
            } else {
                communicator.submit(step.index, bucket, gradient);
            }
        };
        let loading = if self.seat.is_aligned() {
            let [loader] = &mut loaders[..] else { unreachable!("no canonical tree over devices") };
            let alone = &mut |bucket, gradient, taken| submit(bucket, Gathered::alone(gradient, taken));
            gradients::of_parts(replica, loader, step, self.seat, work, alone)
        } else {
            devices.gradients(replica, loaders, step, work, submit)
        };
        let gradients = computing.elapsed().saturating_sub(loading);

        let (done, trained) = if rides {
            let trained = self.gather()?;
            (self.conclude()?, trained)
        } else {
            (self.settle()?, self.gather()?)
        };
        self.feeds.put(self.trainee.step + 1, self.trainee);
        let updating = Instant::now();
        let result = self.trainee.apply();
        let update = updating.elapsed();
        let window = self.trainee.fingerprint()?;
        let whole = self.whole_to_be_saved();

        let useful = gradients + update;
        let seconds = self.last_end.elapsed().as_secs_f64();
        self.last_end = Instant::now();
        work.did_step(Duration::from_secs_f64(seconds));
        if let Some((seen, _)) = &mut self.seen {
            seen.did_step();
            if seen.has_measured() {
                self.learn_costs();
            }
        }
        // What the first steps' sums take is not to be mistaken for what ranks wait for each other: numbers by themselves come between.
        let rides = carries && self.seen.is_none();
        self.pending = Some(self.take_down(step.samples, seconds, trained, rides, [window, whole])?);
        let told = Told {
            halt: self.member.halt(),
            knows_newcomer: self.feeds.knows_another(),
            word,
            window,
            whole,
            useful,
            waited: mem::take(&mut self.waited),
        };
        told.put(&mut self.numbers, self.rank, self.world);
        if !carries {
            let mut taken = Tally::default();
            self.loaders.iter().for_each(|loader| taken += loader.taken());
            Trained { loss: result.loss_sum, taken }.put(&mut self.numbers);
        }
        if !rides {
            self.send_numbers();
        }
        self.count(mine, seconds, useful.as_secs_f64(), (data + loading).as_secs_f64());
        Ok(done)
    }

    /// What was measured beside the first steps; nothing is pending.
    fn learn_costs(&mut self) {
        let Some(costs) = self.communicator.costs() else { return };
        let (latency_us, gigabytes_per_second) = (costs.message * 1e6, 1e-9 / costs.wire_byte);
        info!(latency_us, gigabytes_per_second, "communication measured");
        self.trainee.learn(costs);
    }

    /// What the whole state looks like, where it is saved after the step that was done last: a checkpoint is made of all ranks' parts.
    fn whole_to_be_saved(&mut self) -> Fingerprint {
        let Trainee { step, replica, recipe, .. } = &mut *self.trainee;
        if *step != recipe.total_steps && self.saves_after != Some(*step) {
            return Fingerprint::default();
        }
        let start = Instant::now();
        let whole = Fingerprint::of(replica.checksum());
        self.checking = start.elapsed();
        self.member.metrics.spent(Phase::Checkpoint, self.checking.as_secs_f64());
        whole
    }

    /// How long training stood still for the checksum of the state that is saved.
    pub(crate) const fn checking(&self) -> Duration {
        self.checking
    }

    /// All ranks stop after the step that was done last, for a change.
    pub(crate) fn end_feeds(&mut self) {
        self.feeds.end();
    }

    /// Begins to hand the state to a newcomer, where all agreed to do so after the step that was done last.
    pub(crate) fn feed_newcomer(&mut self) {
        if self.feeds.begins_after(self.trainee.step) {
            self.feeds.begin(self.trainee);
            self.rest();
        }
    }

    /// Whether all ranks agree anew after the step that was done last, before the next.
    pub(crate) fn has_seen_enough(&self) -> bool {
        self.seen.as_ref().is_some_and(|(seen, _)| seen.is_enough())
    }

    /// Agrees with the other ranks how to sum from the next step on, by what the first ones took.
    pub(crate) fn agree_anew(&mut self, before: &Agreed) -> Result<Agreed, Failure> {
        let Some((seen, _)) = self.seen.take() else { unreachable!("asked for once enough was seen") };
        let Self { trainee, communicator, member, .. } = self;
        let ready_order = trainee.replica.table().ready_order();
        let agree = || agree_anew(communicator, trainee.step, seen, before, &ready_order, trainee.costs());
        member.membership.work().during(Activity::Waiting, agree).map_err(Failure::lost)
    }

    /// Loss and accuracy on the held-out samples, each rank on its share. `None` when none are held out.
    pub(crate) fn evaluate(&mut self) -> Result<Option<Evaluation>, Failure> {
        let start = Instant::now();
        let mut parts = Vec::new();
        for part in self.seat.parts(self.held_out.len() as u64) {
            let (mut loss, mut correct, mut count) = (0.0, 0, 0);
            let mut loader = EvaluationLoader::new(&self.held_out, part, self.trainee.recipe.micro_batch);
            while let Some(batch) = self.work().during(Activity::Storing, || loader.next_batch()) {
                let result = self.trainee.replica.evaluate(&batch.images, &batch.labels);
                loss += result.loss_sum;
                correct += result.correct;
                count += batch.len();
            }
            parts.push([loss as f32, correct as f32, count as f32]);
        }
        let mut sums = added_in_pairs(parts);
        self.sum(&mut sums)?;
        let [loss, correct, count] = sums.map(f64::from);
        self.member.metrics.spent(Phase::Other, start.elapsed().as_secs_f64());
        self.rest();
        Ok((count > 0.0).then(|| Evaluation { loss: loss / count, accuracy: correct / count }))
    }

    /// What was done since the last step is not part of the next one.
    pub(crate) fn rest(&mut self) {
        self.last_end = Instant::now();
        self.counted.exposed = self.communicator.statistics().exposed;
    }

    /// Ranks that the others wait for step after step, with how many times as long as most they take.
    pub(crate) fn stragglers(&self) -> Vec<(usize, f64)> {
        self.meter.stragglers()
    }

    /// The figures of the newest steps as a report.
    pub(crate) fn progress(&self, line: &StepLine) -> Progress {
        let efficiency = self.meter.efficiency();
        let speed = efficiency.map(|efficiency| efficiency.samples_per_second);
        let Recipe { total_steps, global_batch, .. } = self.trainee.recipe;
        let left = (total_steps - line.step) as f64 * global_batch as f64;
        Progress {
            step: line.step,
            total_steps,
            epoch: line.epoch,
            world_size: self.world as u32,
            loss: line.loss,
            samples_per_second: speed,
            scaling_efficiency: efficiency.and_then(|efficiency| efficiency.scaling),
            load_balance: efficiency.map(|efficiency| efficiency.load_balance),
            communication_efficiency: efficiency.map(|efficiency| efficiency.communication),
            estimated_remaining_seconds: speed.filter(|speed| *speed > 0.0).map(|speed| left / speed),
            ..Progress::default()
        }
    }

    fn count(&mut self, samples: u64, seconds: f64, useful: f64, data: f64) {
        let statistics = self.communicator.statistics();
        let since = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64();
        let exposed = since(statistics.exposed, self.counted.exposed);
        let metrics = self.member.metrics;
        metrics.steps.inc();
        metrics.samples.inc_by(samples);
        metrics.step_duration.observe(seconds);
        metrics.learning_rate.set(f64::from(self.trainee.recipe.rate));
        metrics.spent(Phase::Compute, useful);
        metrics.spent(Phase::Data, data);
        metrics.spent(Phase::ExposedCommunication, exposed);
        metrics.spent(Phase::Other, seconds - useful - data - exposed);
        metrics.collective_seconds.inc_by(since(statistics.busy, self.counted.busy));
        metrics.collective_bytes.inc_by(statistics.bytes_sent - self.counted.bytes_sent);
        self.counted = statistics;
    }
}

/// Each rank's part of a step's samples, seated as `seat` is.
fn shares(samples: u64, seat: Seat, world: usize) -> Vec<f64> {
    let part = |rank: u32| {
        let share = seat.of(rank).share(samples);
        (share.end - share.start) as f64 / samples as f64
    };
    (0..world as u32).map(part).collect()
}

/// The sum of 2ᵏ parts as a binary tree over them forms it.
fn added_in_pairs(mut parts: Vec<[f32; 3]>) -> [f32; 3] {
    while parts.len() > 1 {
        let add = |pair: &[[f32; 3]]| std::array::from_fn(|index| pair.iter().map(|part| part[index]).sum());
        parts = parts.chunks(2).map(add).collect();
    }
    parts.first().copied().unwrap_or_default()
}
