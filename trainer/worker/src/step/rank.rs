//! The training loop of one rank. Batches come in, gradients are summed over the group during
//! backward, and weights are updated, on every rank in lockstep.
//!
//! All facts on which ranks must agree during a run travel in the
//! [`numbers`](crate::step::step_sync::numbers) of a step:
//!
//! - The loss and the samples of step s travel behind the last bucket of step s. A rank that has
//!   done the step knows its loss, even if the group breaks right after it.
//! - The other numbers of step s travel behind the last bucket of step s + 1, so they cost neither
//!   a message nor a wait. Every rank reads the same sum at the same step, so all ranks stop after
//!   the same step.
//! - The sum also shows that all ranks have done step s. Only then is the step committed and
//!   reported.
//!
//! Numbers travel alone after a step that no other follows at once, and in the steps by which a
//! group agrees how to sum. They always travel alone if gradients are rounded; the next step
//! computes meanwhile. Only the way of summing is agreed on apart from them, once, after a number
//! of steps that all count.

mod evaluation;
mod not_finite;
mod uncommitted;

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_collective::{Collectives, Handle, Statistics, Tag};
use lockstep_data::{Seat, Step};
use lockstep_elastic::{Activity, ActivityMonitor, Assignment};
use lockstep_launch::Progress;
use tracing::info;

use self::uncommitted::UncommittedStep;
pub(crate) use self::{evaluation::AgreedEvaluation, uncommitted::CommittedStep};
use crate::{
    communication::{Agreed, StepTimes, agree_anew},
    compute::{
        fingerprint::Fingerprint,
        payload::{Gradients, Payload},
        recipe::Recipe,
        training_state::TrainingState,
    },
    failure::Failure,
    lines::StepLine,
    membership::{
        catchup::send::CatchupSenders,
        session::{LIMITS, Session, UNACKNOWLEDGED},
    },
    progress::phase_clock::Phase,
    step::{
        bus_bandwidth::BusBandwidth,
        efficiency::Meter,
        gradient_noise::GradientNoise,
        step_sync::{
            checkpoint_flags::CheckpointFlags,
            numbers::{Told, slots},
        },
    },
    trainee::Trained,
};

/// A link may carry nothing for this time during steps, or for a number of mean steps if that is
/// longer.
const QUIET: Duration = Duration::from_secs(16);
const QUIET_STEPS: u32 = 8;
/// The same for the first step of a group, which may be slower than later ones. A broken link may
/// show in a step and again in the first step of the next group. Both together stay within the
/// minute after which a group is stuck.
const FIRST_QUIET: Duration = Duration::from_secs(24);

/// One rank of one generation at work.
pub(crate) struct Rank<'a> {
    pub state: &'a mut TrainingState,
    session: &'a Session<'a>,
    seat: Seat,
    rank: usize,
    world: usize,
    generation: u64,
    collectives: Box<dyn Collectives<Payload>>,
    /// The sums of the buckets of the step under way, in order.
    sums: VecDeque<Handle>,
    /// The sum of numbers that travel alone.
    alone: Option<Handle>,
    /// The newest steps that changed no weight.
    skipped_in_a_row: u32,
    catchup: CatchupSenders<'a>,
    /// The newest step, until all ranks are known to have done it.
    uncommitted: Option<UncommittedStep>,
    /// The numbers of that step until they are sent, then their sums.
    numbers: Vec<f32>,
    last_end: Instant,
    /// The time that this rank waited for numbers that travelled alone, since its last report of
    /// it.
    waited: Duration,
    meter: Meter,
    bus_bandwidth: BusBandwidth,
    noise: GradientNoise,
    /// As last measured.
    gradient_norm: Option<f64>,
    gradient_noise_scale: Option<f64>,
    counted: Statistics,
    /// The times of the first steps until all ranks agree by them how to sum, and the beginning of
    /// the newest step.
    step_times: Option<(StepTimes, Instant)>,
    /// The step after which all ranks agreed to save their state.
    saves_after: Option<u64>,
    /// The time that the checksum of the last saved state took.
    checking: Duration,
}

impl<'a> Rank<'a> {
    /// Takes the seat of a rank. All ranks begin with the state that `state` holds. `devices` are
    /// the seats of this rank's devices.
    #[allow(
        clippy::too_many_arguments,
        reason = "each part comes from another module; a struct would only rename them"
    )]
    pub(crate) fn new(
        state: &'a mut TrainingState,
        session: &'a Session<'a>,
        seat: Seat,
        devices: Vec<Seat>,
        group: &Assignment,
        collectives: Box<dyn Collectives<Payload>>,
        agreed: &Agreed,
    ) -> Result<Self, Failure> {
        let sees_own = devices.len() == 1;
        state.expect(devices)?;
        let recipe = &state.recipe;
        let (rank, world) = (collectives.rank(), collectives.world());
        let shares = shares(recipe.batches.global_batch(state.step), seat, world);
        if let Some(rate) = agreed.baseline {
            let longest = shares.iter().copied().fold(0.0, f64::max) * recipe.batches.largest() as f64;
            session.work().expect_step(Duration::try_from_secs_f64(longest / rate).unwrap_or_default());
        }
        let meter = Meter::new(shares, state.alone);
        let bus_bandwidth = BusBandwidth::new(state.gradient_count(), world);
        let times = agreed.is_open.then(|| StepTimes::of(agreed.plan.buckets().len(), agreed.measures));
        Ok(Self {
            state,
            session,
            seat,
            rank,
            world,
            generation: group.generation,
            collectives,
            sums: VecDeque::new(),
            alone: None,
            skipped_in_a_row: 0,
            catchup: CatchupSenders::new(session, group),
            uncommitted: None,
            numbers: vec![0.0; slots(world)],
            last_end: Instant::now(),
            waited: Duration::ZERO,
            meter,
            bus_bandwidth,
            noise: GradientNoise::new(sees_own),
            gradient_norm: None,
            gradient_noise_scale: None,
            counted: Statistics::default(),
            step_times: times.map(|times| (times, Instant::now())),
            saves_after: None,
            checking: Duration::ZERO,
        })
    }

    /// Returns the number of steps that this rank has done.
    pub(crate) fn step(&self) -> u64 {
        self.state.step
    }

    fn work(&self) -> &'a Arc<ActivityMonitor> {
        self.session.work()
    }

    /// Returns the recipe of the training.
    pub(crate) fn recipe(&self) -> &Recipe {
        &self.state.recipe
    }

    /// Expects steps from here on, none much longer than the others. A link that carries nothing
    /// for long is broken.
    pub(crate) fn expect_steps(&mut self) {
        let step = self.work().sample().longest_step();
        let quiet = QUIET.max(step * QUIET_STEPS).as_secs().next_power_of_two();
        let quiet = Duration::from_secs(quiet);
        self.collectives.set_silence_limits(quiet, quiet);
    }

    /// Expects the first step of a group, or the first one that it sums in another way.
    pub(crate) fn expect_first_step(&mut self) {
        let step = self.work().sample().longest_step();
        let quiet = FIRST_QUIET.max(step * QUIET_STEPS);
        self.collectives.set_silence_limits(quiet, quiet);
    }

    /// Expects work that may take any time. Little is sent meanwhile, and hosts acknowledge it at
    /// once.
    pub(crate) fn expect_anything(&mut self) {
        self.collectives.set_silence_limits(LIMITS.silence, UNACKNOWLEDGED);
    }

    /// Sums `values` over all ranks, and waits for them.
    pub(crate) fn sum(&mut self, values: &mut [f32]) -> Result<(), Failure> {
        let Self { session, collectives, state, .. } = self;
        let sum = || collectives.all_reduce_now(state.step, values);
        session.work().during(Activity::Waiting, sum).map(|_| ()).map_err(Failure::lost)
    }

    /// Does the next step and sends `checkpoint` in its numbers. Returns the step before it, which
    /// every rank has now done. `None` for the first step.
    pub(crate) fn advance(&mut self, checkpoint: CheckpointFlags) -> Result<Option<CommittedStep>, Failure> {
        let work = self.work();
        let Some(step) = self.state.next_step() else { return self.settle() };
        let share = self.seat.share(step.samples);
        let computing = Instant::now();
        self.begin_times(computing);
        self.noise.begin(step.index, self.state.loss_scale());
        let rides = self.uncommitted.as_ref().is_some_and(|uncommitted| uncommitted.rides);
        let carries = self.state.carries_numbers();
        if let Some(queued) = self.state.queued() {
            self.session.metrics.data_queue_depth.set(queued as f64);
        }
        let loading = self.backward(step, rides);
        let gradients = computing.elapsed().saturating_sub(loading);

        let (committed, summed) = if rides {
            let summed = self.wait_for_gradients()?;
            (self.commit()?, summed)
        } else {
            (self.settle()?, self.wait_for_gradients()?)
        };
        let is_sound = self.is_sound(step, &summed)?;
        self.catchup.put(self.state.step + 1, self.state);
        let updating = Instant::now();
        let own = if is_sound {
            self.state.apply()
        } else {
            self.state.leave_out();
            Trained { loss: f64::NAN, taken: summed.taken }
        };
        let update = updating.elapsed();
        let window = self.state.fingerprint()?;
        let whole = self.whole_to_be_saved();

        let useful = gradients + update;
        let seconds = self.last_end.elapsed().as_secs_f64();
        self.last_end = Instant::now();
        work.did_step(Duration::from_secs_f64(seconds));
        self.end_times();
        // While the first steps' sums are timed, numbers travel alone. Otherwise the time of a sum
        // would include the wait for slower ranks.
        let rides = carries && self.step_times.is_none();
        self.uncommitted = Some(self.note_step(step.samples, seconds, summed.trained, rides, [window, whole])?);
        let told = Told {
            halt: self.session.halt(),
            knows_newcomer: self.catchup.knows_another(),
            checkpoint,
            window,
            whole,
            square: self.noise.told((share.end - share.start) as f64 / step.samples as f64),
            useful,
            waited: mem::take(&mut self.waited),
            summing: self.collectives.statistics().busy.saturating_sub(self.counted.busy),
        };
        told.put(&mut self.numbers, self.rank, self.world);
        if !carries {
            own.put(&mut self.numbers);
        }
        if !rides {
            self.send_numbers();
        }
        self.count(share.end - share.start, seconds, useful, loading);
        Ok(committed)
    }

    /// Computes the gradients of a step, and submits each bucket as soon as it is ready. The last
    /// bucket carries the numbers of the step before if these ride. Returns how long it waited for
    /// samples.
    fn backward(&mut self, step: Step, rides: bool) -> Duration {
        let work = self.work();
        let Self { state, collectives, sums, numbers, world, noise, .. } = self;
        let (last, carries) = (state.bucket_count() - 1, state.carries_numbers());
        let submit = &mut |bucket: usize, mut gradient: Gradients| {
            noise.add_own(without_room(gradient.as_mut(), carries && bucket == last, *world));
            let gradient = if carries && bucket == last {
                gradient.carrying(if rides { mem::take(numbers) } else { vec![0.0; slots(*world)] })
            } else {
                gradient
            };
            let (tag, gradient) = (Tag { step: step.index, bucket: bucket as u32 }, Payload::Gradient(gradient));
            // A single bucket is ready last: nothing is left to compute during its sum.
            sums.push_back(if last == 0 {
                collectives.all_reduce_with_next(tag, gradient)
            } else {
                collectives.all_reduce(tag, gradient)
            });
        };
        state.gradients(step, work, submit)
    }

    /// Begins to time a step, while a group agrees how to sum.
    fn begin_times(&mut self, now: Instant) {
        let Some((times, begun)) = &mut self.step_times else { return };
        *begun = now;
        if times.measures() {
            self.collectives.measure();
        }
    }

    /// Ends the times of a step, and learns the measured costs after the last measurement.
    fn end_times(&mut self) {
        let Some((times, _)) = &mut self.step_times else { return };
        times.did_step();
        if !times.has_measured() {
            return;
        }
        let Some(costs) = self.collectives.costs() else { return };
        let (latency_us, gigabytes_per_second) = (costs.message * 1e6, 1e-9 / costs.wire_byte);
        info!(latency_us, gigabytes_per_second, "communication measured");
        self.state.known_costs.learn(costs);
    }

    /// Returns the fingerprint of the whole state if it is saved after the newest step: a
    /// checkpoint is made of the parts of all ranks.
    fn whole_to_be_saved(&mut self) -> Fingerprint {
        let TrainingState { step, recipe, .. } = &*self.state;
        if *step != recipe.total_steps && self.saves_after != Some(*step) {
            return Fingerprint::default();
        }
        let start = Instant::now();
        let whole = self.state.whole_fingerprint();
        self.checking = start.elapsed();
        self.session.metrics.phases.spend(Phase::Checkpoint, self.checking);
        whole
    }

    /// Returns how long training stood still for the checksum of the last saved state.
    pub(crate) const fn checking(&self) -> Duration {
        self.checking
    }

    /// Notes that all ranks stop after the newest step, for a change.
    pub(crate) fn end_catchup(&mut self) {
        self.catchup.end();
    }

    /// Begins to send the state to a newcomer, if all ranks agreed to do so after the newest step.
    pub(crate) fn begin_catchup(&mut self) {
        if self.catchup.begins_after(self.state.step) {
            self.catchup.begin(self.state);
            self.rest();
        }
    }

    /// Returns true if all ranks agree again how to sum, before the next step.
    pub(crate) fn has_timed_enough(&self) -> bool {
        self.step_times.as_ref().is_some_and(|(times, _)| times.is_enough())
    }

    /// Agrees with the other ranks how to sum from the next step on, by the times of the first
    /// steps.
    pub(crate) fn agree_anew(&mut self, before: &Agreed) -> Result<Agreed, Failure> {
        let Some((times, _)) = self.step_times.take() else { unreachable!("called once enough steps were timed") };
        let Self { state, collectives, session, .. } = self;
        let ready_order = state.ready_order();
        let agree =
            || agree_anew(&mut **collectives, state.step, times, before, &ready_order, state.known_costs.here());
        session.work().during(Activity::Waiting, agree).map_err(Failure::lost)
    }

    /// Excludes the time since the last step from the next one.
    pub(crate) fn rest(&mut self) {
        self.last_end = Instant::now();
        self.counted.exposed = self.collectives.statistics().exposed;
    }

    /// Returns the ranks for which the others wait step after step, with how many times longer than
    /// most they take.
    pub(crate) fn stragglers(&self) -> Vec<(usize, f64)> {
        self.meter.stragglers()
    }

    /// Returns the figures of the newest steps as a report.
    pub(crate) fn progress(&self, line: &StepLine) -> Progress {
        let efficiency = self.meter.efficiency();
        let speed = efficiency.map(|efficiency| efficiency.samples_per_second);
        let scaling = efficiency.and_then(|efficiency| efficiency.scaling);
        let Recipe { total_steps, batches, .. } = &self.state.recipe;
        let left = batches.samples_before(*total_steps).saturating_sub(batches.samples_before(line.step)) as f64;
        Progress {
            step: line.step,
            total_steps: *total_steps,
            epoch: line.epoch,
            world_size: self.world as u32,
            samples: batches.samples_before(line.step),
            loss: line.loss,
            learning_rate: Some(line.learning_rate.into()),
            loss_scale: Some(self.state.loss_scale().into()),
            gradient_norm: self.gradient_norm,
            gradient_noise_scale: self.gradient_noise_scale,
            alone_samples_per_second: self.state.alone.map(|alone| alone.samples_per_second),
            samples_per_second: speed,
            scaling_efficiency: scaling.map(|(efficiency, _)| efficiency),
            scaling_baseline: scaling.map(|(_, source)| source),
            model_flops_per_second: self.state.flops().zip(speed).map(|(flops, speed)| flops * speed),
            bus_bandwidth_bytes_per_second: self.bus_bandwidth.bytes_per_second(),
            load_balance: efficiency.map(|efficiency| efficiency.load_balance),
            communication_efficiency: efficiency.map(|efficiency| efficiency.communication),
            estimated_remaining_seconds: speed.filter(|speed| *speed > 0.0).map(|speed| left / speed),
            ..Progress::default()
        }
    }

    /// Counts the step that just ended, with its useful time and its waits for samples.
    fn count(&mut self, samples: u64, seconds: f64, useful: Duration, loading: Duration) {
        let (now, counted) = (self.collectives.statistics(), self.counted);
        let metrics = self.session.metrics;
        metrics.stepped(samples, seconds);
        metrics.phases.spend(Phase::Compute, useful);
        metrics.phases.spend(Phase::Data, loading);
        metrics.phases.wait(now.exposed.saturating_sub(counted.exposed));
        metrics.phases.end_period(Phase::Other, self.last_end);
        metrics.collective_seconds.inc_by(now.busy.saturating_sub(counted.busy).as_secs_f64());
        metrics.bytes_sent.inc_by(now.bytes_sent - counted.bytes_sent);
        metrics.bytes_through_memory.inc_by(now.bytes_through_memory - counted.bytes_through_memory);
        self.counted = now;
    }
}

/// Returns each rank's part of a step's samples. `seat` is the seat of any of them.
fn shares(samples: u64, seat: Seat, world: usize) -> Vec<f64> {
    let part = |rank: u32| {
        let share = seat.of(rank).share(samples);
        (share.end - share.start) as f64 / samples as f64
    };
    (0..world as u32).map(part).collect()
}

/// Returns a bucket's gradients. The last bucket may have room for numbers behind them.
fn without_room(bucket: &[f32], has_room: bool, world: usize) -> &[f32] {
    if has_room { &bucket[..bucket.len() - slots(world)] } else { bucket }
}
