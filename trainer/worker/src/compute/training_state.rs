//! The state of one worker's training: its copy of the model, and the number of steps that it
//! holds. The worker keeps it from one generation to the next.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};

use lockstep_checkpoint::{Checkpoint, Destination, Layout, LoadRefusal, OwnedTensor};
use lockstep_collective::SharedArena;
use lockstep_data::{Seat, Step};
use lockstep_elastic::{ActivityMonitor, Digest, HeldState, Sampler};
use lockstep_launch::DamagedCheckpoint;
use lockstep_nn::StateDigest;
use tracing::info;

use super::{
    baseline::measure_baseline,
    fingerprint::Fingerprint,
    payload::Gradients,
    recipe::Recipe,
    state_digest::{begin_digest, whole_digest},
};
use crate::{
    communication::{Alone, Baseline, KnownCosts},
    failure::Failure,
    lines::{Evaluation, EvaluationLine, StepLine},
    storage::{Storage, is_of_blocks, spelled},
    trainee::{Evaluated, Lent, Shares, StateRange, Trained, Trainee},
};

/// The number of steps whose lines a worker remembers. It writes those that the reporting worker
/// did not write before it was lost.
const MAX_REMEMBERED: usize = 4096;
/// The number of evaluations whose lines a worker remembers.
const MAX_EVALUATED: usize = 64;

/// Values that are looked at before it is asked if one was not finite.
const CHUNK: usize = 4096;

/// Returns true if no value is infinite or not a number.
pub(crate) fn all_finite(values: &[f32]) -> bool {
    // Without an early exit inside a chunk, one instruction compares many values.
    let finite = |chunk: &[f32]| chunk.iter().fold(true, |all, value| all & value.is_finite());
    values.chunks(CHUNK).all(finite)
}

/// The state of one worker's training, whatever group the worker belongs to.
pub(crate) struct TrainingState {
    trainee: Box<dyn Trainee>,
    /// The tensors of its state.
    tensors: Vec<StateRange>,
    pub recipe: Recipe,
    /// The number of steps that the trainee holds.
    pub step: u64,
    /// The number of buckets of a step.
    buckets: usize,
    /// True if the last bucket has room for numbers behind its gradients.
    carries_numbers: bool,
    /// False in the middle of a copy, or while a checkpoint is being loaded.
    is_whole: bool,
    /// The step of the checkpoint that was read; 0 if there was none.
    read_step: u64,
    /// The newest checkpoint if it was damaged, and the step that the worker began with instead.
    passed_over: Option<(DamagedCheckpoint, u64)>,
    /// The speed of this worker's forward and backward passes.
    pub baseline: Baseline,
    /// The throughput of one worker that trains by itself, as far as the groups of this worker know
    /// it.
    pub alone: Option<Alone>,
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
    /// speed by itself. `seats` are those of its devices in the first group.
    pub(crate) fn new(
        mut trainee: Box<dyn Trainee>,
        recipe: Recipe,
        storage: &Storage,
        seats: &[Seat],
    ) -> Result<Self, Failure> {
        let baseline = measure_baseline(&mut *trainee, seats, &recipe)?;
        let mut state = Self {
            tensors: trainee.tensors(),
            trainee,
            recipe,
            step: 0,
            buckets: baseline.ready.len(),
            carries_numbers: false,
            is_whole: false,
            read_step: 0,
            passed_over: None,
            baseline,
            alone: None,
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
        let (loaded, damaged) = storage.load_newest(&mut Views { state: self, lent: Vec::new() })?;
        (self.step, self.communication) = match loaded {
            Some(Checkpoint { path, position, communication, .. }) => {
                info!(step = position.step, path = %path.display(), "checkpoint loaded");
                (position.step, communication)
            }
            None => {
                self.trainee.initialise(self.recipe.seed)?;
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
        self.trainee.abandon_step();
    }

    /// Keeps the gradients, and `beside` elements behind them, in `arena`, which the ranks of this
    /// generation share. Without an arena this worker keeps them in memory of its own. A worker
    /// that was left behind in an older generation can only write into the arena of that
    /// generation.
    pub(crate) fn put_gradients(&mut self, arena: Option<SharedArena>, beside: usize) {
        match arena {
            Some(arena) => self.trainee.set_gradient_memory(Lent::new(arena)),
            None => self.trainee.own_gradient_memory(beside),
        }
        self.carries_numbers = beside > 0;
    }

    /// Replaces the state by the one that a group holds after `step`.
    pub(crate) fn take_over(&mut self, step: u64, values: &[f32]) {
        self.trainee.write_state(values);
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

    /// Forgets the lines of earlier steps: they may not belong to the present state.
    fn forget_lines(&mut self) {
        self.remembered.clear();
        self.evaluated.clear();
    }

    /// Gets ready for the steps of a group. `seats` are those of this worker's devices.
    pub(crate) fn expect(&mut self, seats: Vec<Seat>) -> Result<(), Failure> {
        let Recipe { seed, batches, total_steps, .. } = self.recipe;
        let (first_step, steps) = (self.step, total_steps.saturating_sub(self.step));
        self.trainee.expect(Shares { seed, batches, seats, first_step, steps })
    }

    /// Returns the next step. `None` after the last.
    pub(crate) fn next_step(&self) -> Option<Step> {
        let Recipe { batches, total_steps, .. } = &self.recipe;
        (self.step < *total_steps).then(|| batches.step(self.step))
    }

    /// Computes the gradients of this worker's share of a step, and hands its buckets over. Returns
    /// how long the worker waited for samples.
    ///
    /// # Panics
    /// If the thread of a device has panicked.
    pub(crate) fn gradients(
        &mut self,
        step: Step,
        work: &Arc<ActivityMonitor>,
        submit: &mut dyn FnMut(usize, Gradients),
    ) -> Duration {
        self.trainee.gradients(step, work, &mut |number, bucket| submit(number, Gradients::of(bucket)))
    }

    /// Does `work`, and returns to the present state.
    pub(crate) fn rehearse<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let (step, mut held) = (self.step, vec![0.0; self.state_elements()]);
        self.copy_state(0..held.len(), &mut held);
        let result = work(self);
        self.abandon_step();
        self.trainee.write_state(&held);
        self.step = step;
        result
    }

    /// Repeats the next step of a group with the gradients that the group summed. The group left a
    /// step out if they are not finite.
    pub(crate) fn repeat_step(&mut self, gradients: &[f32]) {
        if all_finite(gradients) {
            self.trainee.repeat_step(gradients, self.step + 1, self.recipe.rate(self.step + 1));
        } else {
            self.trainee.skip_step();
        }
        self.step += 1;
    }

    /// Ends the next step, which changes no weight. The step is then done.
    pub(crate) fn leave_out(&mut self) {
        self.trainee.skip_step();
        self.step += 1;
    }

    /// Returns the factor of the loss in the next step.
    pub(crate) fn loss_scale(&self) -> f32 {
        self.trainee.loss_scale()
    }

    /// Returns true if a step that is left out lowers that factor.
    pub(crate) fn can_lower_loss_scale(&self) -> bool {
        self.trainee.can_lower_loss_scale()
    }

    /// Names what is not finite first in the step under way, and abandons that step.
    pub(crate) fn first_not_finite(&mut self, step: Step) -> Option<String> {
        self.trainee.first_not_finite(step)
    }

    /// Applies the summed gradients of the next step. The step is then done.
    pub(crate) fn apply(&mut self) -> Trained {
        let trained = self.trainee.update(self.step + 1, self.recipe.rate(self.step + 1));
        self.step += 1;
        trained
    }

    /// Returns the number of samples that are held out.
    pub(crate) fn held_out(&self) -> u64 {
        self.trainee.samples().held_out
    }

    /// Judges the state by a run of the held-out samples.
    pub(crate) fn evaluate(&mut self, run: Range<u64>, work: &ActivityMonitor) -> Evaluated {
        self.trainee.evaluate(run, work)
    }

    /// Returns the fingerprint of a window of the state after the newest step. It must be equal on
    /// all devices.
    pub(crate) fn fingerprint(&mut self) -> Result<Fingerprint, Failure> {
        self.trainee.window_checksum(self.step).map(Fingerprint::of)
    }

    /// Returns the fingerprint of the whole state.
    pub(crate) fn whole_fingerprint(&mut self) -> Fingerprint {
        Fingerprint::of(self.trainee.checksum())
    }

    /// Hands over these buckets from the next step on.
    pub(crate) fn set_buckets(&mut self, buckets: &[Range<usize>]) -> Result<(), Failure> {
        self.buckets = buckets.len();
        self.trainee.set_buckets(buckets)
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

    /// Returns the evaluation of the state after `step`, if there was one with finite values: a
    /// manifest can hold no others.
    pub(crate) fn evaluation_of(&self, step: u64) -> Option<Evaluation> {
        let found = self.evaluated.iter().rfind(|line| line.step == step)?.evaluation;
        found.is_finite().then_some(found)
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
        self.trainee.state_elements()
    }

    /// Copies the values `part` of the state to `values`.
    pub(crate) fn copy_state(&mut self, part: Range<usize>, values: &mut [f32]) {
        self.trainee.copy_state(part, values);
    }

    /// Returns the number of gradients.
    pub(crate) fn gradient_elements(&self) -> usize {
        self.ready_order().last().map_or(0, |last| last.end)
    }

    /// Copies the gradients `part` to `values`.
    pub(crate) fn copy_gradients(&mut self, part: Range<usize>, values: &mut [f32]) {
        self.trainee.copy_gradients(part, values);
    }

    /// Returns the number of micro-batches that are ready for the next step, if any are prepared.
    pub(crate) fn queued(&self) -> Option<usize> {
        self.trainee.queued()
    }

    /// Returns the floating-point operations of a sample's forward and backward pass, if known.
    pub(crate) fn flops(&self) -> Option<f64> {
        self.trainee.flops()
    }

    /// Returns the ranges of the gradient arena in the order in which backward completes them.
    pub(crate) fn ready_order(&self) -> Vec<Range<usize>> {
        self.trainee.ready_order()
    }

    /// Returns the number of gradients of a step.
    pub(crate) fn gradient_count(&self) -> usize {
        self.trainee.ready_order().iter().map(|range| range.end).max().unwrap_or(0)
    }

    /// Returns the number of buckets of a step.
    pub(crate) fn bucket_count(&self) -> usize {
        self.buckets
    }

    /// Returns true if the last bucket has room for numbers behind its gradients.
    pub(crate) fn carries_numbers(&self) -> bool {
        self.carries_numbers
    }

    /// Returns the place of each tensor in a checkpoint.
    pub(crate) fn layout(&self, storage: &Storage) -> Result<Layout, Failure> {
        let of = |slots: bool| self.tensors.iter().filter(move |tensor| tensor.is_slot == slots).map(named_shape);
        Layout::new(of(false), of(true)).map_err(|error| storage.refused(&error))
    }

    /// Copies the values `part` of a tensor to `values`.
    ///
    /// # Panics
    /// If the state has no such tensor.
    pub(crate) fn copy_tensor(&mut self, name: &str, part: Range<usize>, values: &mut [f32]) {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        let StateRange { elements, .. } = found.unwrap_or_else(|| panic!("the state lacks {name}"));
        let (first, length) = (elements.start, elements.len());
        assert!(part.end <= length, "values {part:?} of {name}, which has {length}");
        self.trainee.copy_state(first + part.start..first + part.end, values);
    }

    /// Returns the trained model.
    pub(crate) fn weights(&mut self) -> Vec<OwnedTensor> {
        let Self { trainee, tensors, .. } = self;
        let copied = |StateRange { name, shape, elements, .. }: &StateRange| {
            let mut values = vec![0.0; elements.len()];
            trainee.copy_state(elements.clone(), &mut values);
            OwnedTensor { name: name.clone(), shape: shape.clone(), values }
        };
        tensors.iter().filter(|tensor| !tensor.is_slot).map(copied).collect()
    }

    /// Returns the description of the model, for those who use it.
    pub(crate) fn description(&self) -> Option<String> {
        self.trainee.description()
    }

    /// Returns the digest of the whole state.
    pub(crate) fn digest(&mut self) -> Digest {
        let Self { trainee, tensors, .. } = self;
        Digest::from_bytes(whole_digest(tensors, |elements, values| trainee.copy_state(elements, values)))
    }

    /// Returns the digest of a state to which no block was added yet.
    pub(crate) fn begin_digest(&self) -> StateDigest {
        begin_digest(&self.tensors)
    }
}

fn named_shape(tensor: &StateRange) -> (&str, &[usize]) {
    (&tensor.name, &tensor.shape)
}

/// The memory of a state, into which a checkpoint is read.
struct Views<'a> {
    state: &'a mut TrainingState,
    lent: Vec<Lent>,
}

impl Destination for Views<'_> {
    fn buffers(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal> {
        // A checkpoint that turned out to be damaged may still hold memory.
        self.lent.clear();
        let tensors: Vec<_> = layout.tensors().collect();
        self.lent = self.state.trainee.tensor_memory(&tensors).map_err(LoadRefusal::Misfit)?;
        Ok(self.lent.iter_mut().map(AsMut::as_mut).collect())
    }

    fn accept(&mut self, state_digest: &str) -> Result<(), String> {
        self.lent.clear();
        let digest = spelled(*self.state.digest().as_bytes());
        if is_of_blocks(state_digest) && digest != state_digest {
            return Err(format!("its state has digest {digest}, its manifest says {state_digest}"));
        }
        Ok(())
    }
}
