//! The state of one worker's training: its copy of the model, and the number of steps that it
//! holds. The worker keeps it from one generation to the next.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};

use lockstep_checkpoint::{Checkpoint, Destination, Layout, LoadRefusal};
use lockstep_collective::SharedArena;
use lockstep_data::{Batch, Loader, Samples, Seat, Step};
use lockstep_elastic::{ActivityMonitor, Digest, HeldState, Sampler};
use lockstep_launch::DamagedCheckpoint;
use lockstep_nn::{Cpu, Device, Network, Replica, StateDigest, StateTensor, StepResult};
use tracing::info;

use super::{
    baseline::measure_baseline,
    devices::{Devices, gathered::GatheredBucket},
    fingerprint::Fingerprint,
    gradients,
    recipe::Recipe,
};
use crate::{
    communication::{Baseline, KnownCosts},
    failure::Failure,
    lines::{Evaluation, EvaluationLine, StepLine},
    storage::{Storage, is_of_blocks, spelled},
};

/// The number of steps whose lines a worker remembers. It writes those that the reporting worker
/// did not write before it was lost.
const MAX_REMEMBERED: usize = 4096;
/// The number of evaluations whose lines a worker remembers.
const MAX_EVALUATED: usize = 64;

/// The state of one worker's training, whatever group the worker belongs to.
pub(crate) struct TrainingState {
    replica: Replica<Cpu>,
    devices: Devices,
    pub recipe: Recipe,
    /// The number of steps that the replica holds.
    pub step: u64,
    /// False in the middle of a copy, or while a checkpoint is being loaded.
    is_whole: bool,
    /// The step of the checkpoint that was read; 0 if there was none.
    read_step: u64,
    /// The newest checkpoint if it was damaged, and the step that the worker began with instead.
    passed_over: Option<(DamagedCheckpoint, u64)>,
    /// The speed of this worker by itself.
    pub baseline: Baseline,
    /// The newest plan of communication, as checkpoints keep it.
    pub communication: Option<String>,
    /// The costs of messages, as far as this worker took part in measuring them.
    pub known_costs: KnownCosts,
    /// True once all members were seen to share the storage.
    pub storage_is_checked: bool,
    remembered: VecDeque<StepLine>,
    evaluated: VecDeque<EvaluationLine>,
}

impl TrainingState {
    /// Takes the newest state in `storage`, or the seed's first weights, and measures this worker's
    /// speed by itself.
    pub(crate) fn new(
        network: Network,
        recipe: Recipe,
        storage: &Storage,
        train: &Samples,
        seat: Seat,
        devices: usize,
    ) -> Result<Self, Failure> {
        let make = || {
            let ready_order = network.table().ready_order();
            let mut replica =
                Replica::new(Cpu::new(), network.clone(), recipe.optimizer, recipe.micro_batch, ready_order)
                    .map_err(Failure::fatal)?;
            replica.clip_gradients(recipe.clip_norm);
            Ok(replica)
        };
        let mut replica = make()?;
        let further = Devices::new(devices - 1, make)?;
        let mut baseline = measure_baseline(&mut replica, train, seat, &recipe)?;
        baseline.samples_per_second = baseline.samples_per_second.map(|rate| rate * devices as f64);
        let mut state = Self {
            replica,
            devices: further,
            recipe,
            step: 0,
            is_whole: false,
            read_step: 0,
            passed_over: None,
            baseline,
            communication: None,
            known_costs: KnownCosts::default(),
            storage_is_checked: false,
            remembered: VecDeque::new(),
            evaluated: VecDeque::new(),
        };
        state.begin(storage)?;
        Ok(state)
    }

    /// Loads the newest state in `storage`. Without one, takes the seed's first weights.
    pub(crate) fn begin(&mut self, storage: &Storage) -> Result<(), Failure> {
        self.is_whole = false;
        let (loaded, damaged) = storage.load_newest(&mut Views { replica: &mut self.replica, lent: Vec::new() })?;
        (self.step, self.communication) = match loaded {
            Some(Checkpoint { path, position, communication, .. }) => {
                info!(step = position.step, path = %path.display(), "checkpoint loaded");
                (position.step, communication)
            }
            None => {
                self.replica.initialise(self.recipe.seed);
                (0, None)
            }
        };
        self.read_step = self.step;
        self.passed_over = damaged.map(|damaged| (damaged, self.step));
        self.forget_lines();
        self.is_whole = true;
        Ok(())
    }

    /// Returns the newest checkpoint if it is damaged and the worker began with `step` instead.
    pub(crate) fn passed_over_for(&self, step: u64) -> Option<&DamagedCheckpoint> {
        self.passed_over.as_ref().filter(|(_, began)| *began == step).map(|(damaged, _)| damaged)
    }

    /// Returns the step of the checkpoint that was read; 0 if there was none.
    pub(crate) const fn read_step(&self) -> u64 {
        self.read_step
    }

    /// Returns true unless a copy, or the loading of a checkpoint, was interrupted.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Describes the state for the coordinator.
    pub(crate) fn held(&mut self) -> HeldState {
        let digest = if self.step == 0 { Digest::NONE } else { self.digest() };
        let Recipe { seed, batches, .. } = &self.recipe;
        let Step { epoch, cursor, .. } = batches.step(self.step);
        HeldState { step: self.step, digest, sampler: Sampler { seed: *seed, epoch, cursor } }
    }

    /// Abandons the step under way. Nothing of it may be lent out any more.
    pub(crate) fn abandon_step(&mut self) {
        self.replica.abandon_step();
        self.devices.abandon_step();
    }

    /// Keeps the gradients, and `beside` elements behind them, in `arena`, which the ranks of this
    /// generation share. Without an arena this worker keeps them in memory of its own. A worker
    /// that was left behind in an older generation can only write into the arena of that
    /// generation.
    pub(crate) fn put_gradients(&mut self, arena: Option<SharedArena>, beside: usize) {
        match arena {
            Some(arena) => self.replica.set_gradient_memory(arena),
            None => self.replica.own_gradient_memory(beside),
        }
        self.devices.tell_losses(beside > 0);
    }

    /// Replaces the state by the one that a group holds after `step`.
    pub(crate) fn take_over(&mut self, step: u64, values: &[f32]) {
        self.replica.write_state(values);
        self.step = step;
        self.forget_lines();
    }

    /// Replaces the state by a copied one, which must be `expected`. The state is of no use if this
    /// fails.
    pub(crate) fn take_over_copy(&mut self, expected: HeldState, values: &[f32]) -> Result<(), Failure> {
        self.is_whole = false;
        self.take_over(expected.step, values);
        let found = self.held();
        if found != expected {
            let (step, found, expected) = (expected.step, found.digest, expected.digest);
            return Err(Failure::broken(format!(
                "the copied state of step {step} has digest {found:.12}, the group agreed on {expected:.12}"
            )));
        }
        self.is_whole = true;
        Ok(())
    }

    /// Copies the state of the first device to all others.
    pub(crate) fn share_with_devices(&mut self) {
        self.devices.take_over(&mut self.replica);
    }

    /// Forgets the lines of earlier steps: they may not belong to the present state.
    fn forget_lines(&mut self) {
        self.remembered.clear();
        self.evaluated.clear();
    }

    /// Computes the gradients of this worker's share of a step, and hands its buckets over. Returns
    /// how long the first device waited for samples.
    ///
    /// # Panics
    /// If the thread of a device has panicked.
    pub(crate) fn gradients(
        &mut self,
        loaders: &mut Vec<Loader>,
        step: Step,
        seat: Seat,
        work: &Arc<ActivityMonitor>,
        submit: &mut dyn FnMut(usize, GatheredBucket),
    ) -> Duration {
        if seat.is_aligned() {
            let [loader] = &mut loaders[..] else { unreachable!("no canonical tree over devices") };
            let alone = &mut |bucket, gradient, taken| submit(bucket, GatheredBucket::alone(gradient, taken));
            gradients::of_parts(&mut self.replica, loader, step, seat, self.recipe.seed, work, alone)
        } else {
            self.devices.gradients(&mut self.replica, loaders, step, self.recipe.seed, work, submit)
        }
    }

    /// Repeats the next step of a group with the gradients that the group summed. Only the first
    /// device does it: the others copy its state once this worker is a member.
    pub(crate) fn repeat_step(&mut self, gradients: &[f32]) {
        self.replica.take_gradients(gradients);
        self.replica.update(self.step + 1, self.recipe.rate(self.step + 1));
        self.replica.finish_step();
        self.step += 1;
    }

    /// Applies the summed gradients of the next step on all devices. The step is then done.
    pub(crate) fn apply(&mut self) -> StepResult {
        let result = self.devices.update(&mut self.replica, self.step + 1, self.recipe.rate(self.step + 1));
        self.step += 1;
        result
    }

    /// Returns the summed loss, the correct answers and the number of samples of a held-out batch.
    pub(crate) fn evaluate(&mut self, batch: &Batch) -> (f64, f64, f64) {
        let result = self.replica.evaluate(&batch.images, &batch.labels);
        (result.loss_sum, result.correct as f64, batch.len() as f64)
    }

    /// Returns the fingerprint of a window of the state after the newest step. It must be equal on
    /// all devices.
    pub(crate) fn fingerprint(&mut self) -> Result<Fingerprint, Failure> {
        let checksum = self.replica.window_checksum(self.step);
        if let Some(device) = self.devices.other_than(checksum, self.step) {
            let step = self.step;
            return Err(Failure::diverged(format_args!(
                "after step {step} device {device} of a worker does not hold the weights of its device 0"
            )));
        }
        Ok(Fingerprint::of(checksum))
    }

    /// Returns the fingerprint of the whole state.
    pub(crate) fn whole_fingerprint(&mut self) -> Fingerprint {
        Fingerprint::of(self.replica.checksum())
    }

    /// Hands over these buckets from the next step on.
    pub(crate) fn set_buckets(&mut self, buckets: &[Range<usize>]) -> Result<(), Failure> {
        self.replica.set_buckets(buckets.to_vec()).map_err(Failure::fatal)?;
        self.devices.set_buckets(buckets)
    }

    /// Remembers the line of the newest step, in case the reporting worker is lost before it writes
    /// it.
    pub(crate) fn remember(&mut self, line: StepLine) {
        if self.remembered.len() == MAX_REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(line);
    }

    /// Remembers the evaluation of the present state.
    pub(crate) fn remember_evaluation(&mut self, evaluation: Evaluation) {
        if self.evaluated.len() == MAX_EVALUATED {
            self.evaluated.pop_front();
        }
        let epoch = self.recipe.batches.epochs_done(self.step);
        self.evaluated.push_back(EvaluationLine { step: self.step, epoch, evaluation });
    }

    /// Returns the lines of the newest evaluations, oldest first.
    pub(crate) fn evaluations(&self) -> &VecDeque<EvaluationLine> {
        &self.evaluated
    }

    /// Returns the lines of the newest steps, oldest first.
    pub(crate) fn remembered(&self) -> &VecDeque<StepLine> {
        &self.remembered
    }
}

/// Sizes and parts of the state, for those who send or store it.
impl TrainingState {
    /// Returns the number of values in the state.
    pub(crate) fn state_elements(&self) -> usize {
        self.replica.state_elements()
    }

    /// Copies the values `part` of the state to `values`.
    pub(crate) fn copy_state(&mut self, part: Range<usize>, values: &mut [f32]) {
        self.replica.copy_state(part, values);
    }

    /// Returns the number of gradients.
    pub(crate) fn gradient_elements(&self) -> usize {
        self.replica.table().elements()
    }

    /// Copies the gradients `part` to `values`.
    pub(crate) fn copy_gradients(&mut self, part: Range<usize>, values: &mut [f32]) {
        self.replica.copy_gradients(part, values);
    }

    /// Returns the ranges of the gradient arena in the order in which backward completes them.
    pub(crate) fn ready_order(&self) -> Vec<Range<usize>> {
        self.replica.table().ready_order()
    }

    /// Returns the number of buckets of a step.
    pub(crate) fn bucket_count(&self) -> usize {
        self.replica.buckets().len()
    }

    /// Returns true if the last bucket has room for numbers behind its gradients.
    pub(crate) fn carries_numbers(&self) -> bool {
        self.replica.beside() > 0
    }

    /// Returns the place of each tensor in a checkpoint.
    pub(crate) fn layout(&self, storage: &Storage) -> Result<Layout, Failure> {
        let shapes = self.replica.tensor_shapes();
        let (weights, slots) = shapes.split_at(self.replica.table().parameters().len());
        let borrowed = |tensors| <[(String, Vec<usize>)]>::iter(tensors).map(|(name, shape)| (&name[..], &shape[..]));
        Layout::new(borrowed(weights), borrowed(slots)).map_err(|error| storage.refused(&error))
    }

    /// Copies the values `part` of a tensor to `values`.
    pub(crate) fn copy_tensor(&mut self, name: &str, part: Range<usize>, values: &mut [f32]) {
        self.replica.copy_tensor(name, part, values);
    }

    /// Returns the trained weights.
    pub(crate) fn weights(&mut self) -> Vec<StateTensor> {
        self.replica.weights()
    }

    /// Returns the digest of the whole state.
    pub(crate) fn digest(&mut self) -> Digest {
        Digest::from_bytes(self.replica.digest())
    }

    /// Returns the digest of a state to which no block was added yet.
    pub(crate) fn begin_digest(&self) -> StateDigest {
        self.replica.begin_digest()
    }
}

/// The memory of a replica's state, into which a checkpoint is read.
struct Views<'a> {
    replica: &'a mut Replica<Cpu>,
    lent: Vec<<Cpu as Device>::HostView>,
}

impl Destination for Views<'_> {
    fn buffers(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal> {
        // A checkpoint that turned out to be damaged may still hold views.
        self.lent.clear();
        self.lent =
            self.replica.state_views(layout.tensors()).map_err(|error| LoadRefusal::Misfit(error.to_string()))?;
        Ok(self.lent.iter_mut().map(AsMut::as_mut).collect())
    }

    fn accept(&mut self, state_digest: &str) -> Result<(), String> {
        self.lent.clear();
        let digest = spelled(self.replica.digest());
        if is_of_blocks(state_digest) && digest != state_digest {
            return Err(format!("its state has digest {digest}, its manifest says {state_digest}"));
        }
        Ok(())
    }
}
