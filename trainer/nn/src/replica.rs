//! The step engine: one rank's copy of a model on one device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::batch::Batch;
use crate::device::{Device, Event, Region, Values};
use crate::error::Error;
use crate::gradient::{Buckets, Gradient, check_buckets};
use crate::graph::Network;
use crate::op::{MicroBatch, Norms, Op, Update, UpdateRange};
use crate::optimizers::Optimizer;
use crate::parameters::{ParamMeta, ParamTable};
use crate::parts::Tree;
use crate::plan::{Plan, Scheduled};
use crate::planner::Options;
use crate::precision::Precision;

/// One rank's copy of a model: weights, gradients, optimiser state and the memory of a micro-batch,
/// on one device.
///
/// A step is [`begin_step`](Replica::begin_step), any number of
/// [`micro_batch`](Replica::micro_batch) calls of which the last says so (or
/// [`no_samples`](Replica::no_samples)), [`update`](Replica::update) once every [`Gradient`] is
/// dropped, and [`finish_step`](Replica::finish_step). Nothing before `finish_step` waits for the
/// device. A step whose group broke is left by [`abandon_step`](Replica::abandon_step).
pub struct Replica<D: Device> {
    pub(crate) device: D,
    pub(crate) table: ParamTable,
    pub(crate) plan: Plan,
    pub(crate) optimizer: Optimizer,
    clip_norm: Option<f32>,
    network: Network,
    buckets: Vec<Range<usize>>,
    /// Backward, for these buckets.
    backward: Vec<Scheduled>,
    updated: Arc<[UpdateRange]>,
    parameter_ranges: Arc<[Range<usize>]>,
    max_micro_batch: usize,
    pub(crate) loss_scale: f32,
    /// True until weights that are rounded are rounded again.
    pub(crate) masters_changed: bool,
    /// Elements behind the gradients that go with the last bucket, the first of them the step's
    /// loss.
    pub(crate) beside: usize,
    /// Elements that there may be behind the gradients while they are in memory of its own.
    pub(crate) own_room: Option<usize>,
    outstanding: Arc<AtomicUsize>,
    progress: Progress,
    /// Samples of the step so far.
    samples: u64,
    /// What dice are drawn from: the run's seed and the number of the step.
    dice: (u64, u64),
    /// Room for the words that say which samples a micro-batch has.
    key_words: Vec<u32>,
    parts: Tree,
    /// Of the parts that have ended.
    totals: StepResult,
}

/// The replica's place in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    BetweenSteps,
    /// No micro-batch of the step, or of its part, is there yet.
    Begun,
    Accumulating,
    Announced,
}

/// Totals of a step or an evaluation on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepResult {
    /// Sum of the samples' cross-entropies.
    pub loss_sum: f64,
    /// Samples whose label had the highest logit.
    pub correct: u64,
}

impl<D: Device> Replica<D> {
    /// Plans all memory on `device`, for micro-batches of up to `max_micro_batch` samples. Weights
    /// are zero until [`initialise`](Replica::initialise) or a state is taken over.
    ///
    /// `buckets` tile the gradient arena in order; a plan starts from [`ParamTable::ready_order`]
    /// of [`Network::table`].
    ///
    /// # Panics
    /// If `max_micro_batch` is zero.
    pub fn new(
        device: D,
        network: Network,
        optimizer: Optimizer,
        max_micro_batch: usize,
        buckets: Vec<Range<usize>>,
    ) -> Result<Replica<D>, Error> {
        let precision = Precision::F32;
        Replica::with_precision(device, network, optimizer, max_micro_batch, buckets, precision)
    }

    /// The same with values between layers, and copies of the weights, in this precision.
    ///
    /// # Panics
    /// As [`Replica::new`].
    pub fn with_precision(
        device: D,
        network: Network,
        optimizer: Optimizer,
        max_micro_batch: usize,
        buckets: Vec<Range<usize>>,
        precision: Precision,
    ) -> Result<Replica<D>, Error> {
        assert!(max_micro_batch > 0, "memory for micro-batches of zero samples is of no use");
        let slots = optimizer.slots().len();
        let options = Options { slots, max_micro_batch, fuse: true, keep_all: false, precision };
        Replica::with_options(device, network, optimizer, buckets, options)
    }

    pub(crate) fn with_options(
        mut device: D,
        network: Network,
        optimizer: Optimizer,
        buckets: Vec<Range<usize>>,
        options: Options,
    ) -> Result<Replica<D>, Error> {
        let table = network.table().clone();
        check_buckets(&buckets, table.elements())?;
        let plan = Plan::new(&mut device, &network, &table, options);
        let max_micro_batch = options.max_micro_batch;
        Ok(Replica {
            backward: plan.backward(&network, &table, &buckets),
            device,
            optimizer,
            clip_norm: None,
            network,
            buckets,
            plan,
            updated: update_ranges(table.parameters()).into(),
            parameter_ranges: trained(&table).map(|parameter| parameter.range.clone()).collect(),
            table,
            max_micro_batch,
            loss_scale: 1.0,
            masters_changed: true,
            beside: 0,
            own_room: Some(0),
            outstanding: Arc::new(AtomicUsize::new(0)),
            progress: Progress::BetweenSteps,
            samples: 0,
            dice: (0, 0),
            key_words: vec![0; 2 * max_micro_batch],
            parts: Tree::default(),
            totals: StepResult::default(),
        })
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The place of every parameter in every arena.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// The largest number of samples that one [`micro_batch`](Replica::micro_batch) takes.
    pub fn max_micro_batch(&self) -> usize {
        self.max_micro_batch
    }

    /// The plan of buckets.
    pub fn buckets(&self) -> &[Range<usize>] {
        &self.buckets
    }

    /// Elements behind the gradients that go with the last bucket, the first of them the step's sum
    /// of losses.
    pub fn beside(&self) -> usize {
        self.beside
    }

    /// Another plan of buckets, from the next step on.
    ///
    /// # Panics
    /// In mid-step.
    pub fn set_buckets(&mut self, buckets: Vec<Range<usize>>) -> Result<(), Error> {
        self.assert_between_steps("planning buckets");
        check_buckets(&buckets, self.table.elements())?;
        self.backward = self.plan.backward(&self.network, &self.table, &buckets);
        self.buckets = buckets;
        Ok(())
    }

    /// What layers with dice draw from: the run's seed, and the number of the step that begins
    /// next.
    pub fn set_dice(&mut self, seed: u64, step: u64) {
        self.dice = (seed, step);
    }

    /// Starts a step: no gradient, no loss.
    ///
    /// # Panics
    /// In mid-step.
    pub fn begin_step(&mut self) {
        self.assert_between_steps("begin_step");
        self.device.enqueue(&Op::ClearTally(self.plan.training_tally), &MicroBatch::NONE);
        self.progress = Progress::Begun;
        self.samples = 0;
        self.parts.clear();
        self.totals = StepResult::default();
    }

    /// Enqueues upload, forward, loss and backward of samples (`images` is
    /// `[samples][channels][rows][columns]`, and each has a label, or one for each pixel) that form
    /// one group, adding to the gradients of the step's earlier micro-batches. Each sample's
    /// gradient is multiplied by `scale`: 1 / global batch makes the sum over ranks the gradient of
    /// the mean loss.
    ///
    /// On the `last` micro-batch `on_bucket(index, gradient)` is called for every bucket, in order,
    /// as soon as the device has been told to compute all of it.
    ///
    /// # Panics
    /// Outside a step, after its last micro-batch, with more samples than planned for, and with a
    /// label that is not a class.
    pub fn micro_batch(
        &mut self,
        images: &[f32],
        labels: &[u32],
        scale: f32,
        last: bool,
        on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>),
    ) {
        let (inputs, targets) = ([Values::F32(images)], [Values::U32(labels)]);
        let samples = images.len() / self.network.input().elements();
        self.micro_batch_of(&Batch::new(&inputs, &targets, samples), scale, last, on_bucket);
    }

    /// The same of any samples.
    ///
    /// # Panics
    /// As [`Replica::micro_batch`], and when values are not those of the network's inputs and
    /// targets.
    pub fn micro_batch_of(
        &mut self,
        batch: &Batch<'_>,
        scale: f32,
        last: bool,
        on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>),
    ) {
        let is_first = match self.progress {
            Progress::Begun => true,
            Progress::Accumulating => false,
            Progress::BetweenSteps | Progress::Announced => {
                panic!("micro_batch needs an open step, but the replica is {:?}", self.progress)
            }
        };
        assert!(batch.samples > 0, "a micro-batch needs a sample: a rank without any calls no_samples");
        let (samples, groups, importance) = (batch.samples, self.upload(batch), batch.importance);
        let ((seed, step), loss_scale) = (self.dice, self.loss_scale);
        let batch = MicroBatch { samples, groups, scale, importance, loss_scale, is_first, step, seed };
        self.cast_weights();
        self.plan.training.iter().for_each(|op| self.device.enqueue(op, &batch));
        if let Some(place) = self.place_of_loss().filter(|_| last) {
            self.device.enqueue(&Op::WriteLoss(self.plan.training_tally, place), &batch);
        }
        let (mut announced, mut known) = (0, 0);
        for Scheduled { op, ready } in &self.backward {
            self.device.enqueue(op, &batch);
            if last && *ready > known {
                let buckets = Buckets { plan: &self.plan, ranges: &self.buckets, beside: self.beside };
                let device = &mut self.device;
                announced = buckets.announce_until(device, announced, *ready, &self.outstanding, on_bucket);
                known = *ready;
            }
        }
        self.samples += samples as u64;
        self.progress = if last { Progress::Announced } else { Progress::Accumulating };
    }

    /// The step of a rank that has no sample in it: all gradients are zero and announced at once.
    ///
    /// # Panics
    /// Outside a step, and in one that already had a micro-batch.
    pub fn no_samples(&mut self, on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>)) {
        assert_eq!(self.progress, Progress::Begun, "no_samples stands in place of all micro-batches of an open step");
        let elements = self.table.elements();
        self.device.enqueue(&Op::Zero(self.plan.gradients.region(0..elements)), &MicroBatch::NONE);
        self.announce_all(0.0, on_bucket);
    }

    /// A step that others computed, in place of [`begin_step`](Replica::begin_step) and all
    /// micro-batches: its gradients as a group has summed them.
    ///
    /// # Panics
    /// In mid-step, and when these are the gradients of another network.
    pub fn take_gradients(&mut self, gradients: &[f32]) {
        let elements = self.table.elements();
        assert_eq!(gradients.len(), elements, "the gradients of another network");
        self.begin_step();
        self.device.write(self.plan.gradients.region(0..elements), Values::F32(gradients));
        self.progress = Progress::Announced;
    }

    /// Copies some gradients of the announced step as they now are; waits.
    ///
    /// # Panics
    /// Before the step's gradients were announced, while a [`Gradient`] is out, and when there are
    /// no such gradients.
    pub fn copy_gradients(&mut self, elements: Range<usize>, into: &mut [f32]) {
        self.assert_announced("copying gradients");
        self.device.ready().wait();
        self.device.read(self.plan.gradients.region(elements), into);
    }

    /// Ends a part of the step, which may have had no micro-batch: its gradients and its loss are
    /// added to those of the parts before as in a binary tree of which the parts are the leaves. So
    /// the sum over 2ᵏ parts has the same bits whether one rank forms it or several form subtrees
    /// of it. Waits. With the `last` part `on_bucket` is called for every bucket.
    ///
    /// # Panics
    /// Outside a step, and when the number of parts at the last is no power of two.
    pub fn end_part(&mut self, last: bool, on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>)) {
        let (tally, elements) = (self.plan.training_tally, self.table.elements());
        let all = self.plan.gradients.region(0..elements);
        match self.progress {
            Progress::Begun => self.device.enqueue(&Op::Zero(all), &MicroBatch::NONE),
            Progress::Accumulating => {}
            Progress::BetweenSteps | Progress::Announced => {
                panic!("end_part needs an open step, but the replica is {:?}", self.progress)
            }
        }
        let event = self.device.ready();
        event.wait();
        let (loss, correct) = self.device.read_tally(tally);
        self.device.enqueue(&Op::ClearTally(tally), &MicroBatch::NONE);
        let mut gradients = self.device.host_view(all, event);
        let loss = self.parts.add(gradients.as_mut(), loss as f32, !last);
        drop(gradients);
        self.totals = StepResult { loss_sum: f64::from(loss), correct: self.totals.correct + correct };
        self.progress = Progress::Begun;
        if last {
            let parts = self.parts.parts();
            assert!(parts.is_power_of_two(), "{parts} parts make no binary tree");
            self.announce_all(loss, on_bucket);
        }
    }

    /// From now on scales a step's gradients down to this norm, over all parameters.
    pub fn clip_gradients(&mut self, longest: Option<f32>) {
        self.clip_norm = longest;
    }

    /// Enqueues one update of all weights from the gradients as they now are: step number `step`,
    /// from 1.
    ///
    /// # Panics
    /// Before the step's gradients were announced, and while a [`Gradient`] is out.
    pub fn update(&mut self, step: u64, rate: f32) {
        self.assert_announced("update");
        let update = Op::Update(Update {
            optimizer: self.optimizer,
            weights: self.plan.weights,
            gradients: self.plan.gradients,
            slots: Arc::clone(&self.plan.slots),
            ranges: Arc::clone(&self.updated),
            clip_norm: self.clip_norm,
            loss_scale: self.loss_scale,
            rate,
            step,
        });
        self.device.enqueue(&update, &MicroBatch::NONE);
        self.masters_changed = true;
    }

    /// Waits for the step and gives its totals on this rank.
    ///
    /// # Panics
    /// Before the step's gradients were announced, and while a [`Gradient`] is out.
    pub fn finish_step(&mut self) -> StepResult {
        self.assert_announced("finish_step");
        self.device.ready().wait();
        let (loss_sum, correct) = self.device.read_tally(self.plan.training_tally);
        self.progress = Progress::BetweenSteps;
        StepResult { loss_sum: self.totals.loss_sum + loss_sum, correct: self.totals.correct + correct }
    }

    /// Gives the open step up, if there is one: weights stay as they are, its gradients are
    /// forgotten; waits.
    ///
    /// # Panics
    /// While a [`Gradient`] is out.
    pub fn abandon_step(&mut self) {
        let outstanding = self.outstanding.load(Ordering::Acquire);
        assert_eq!(outstanding, 0, "abandon_step needs every bucket back, {outstanding} are out");
        self.device.ready().wait();
        self.progress = Progress::BetweenSteps;
    }

    /// The L2 norm of each trained parameter's gradient, in table order, as the last announced step
    /// left them, of a loss that is not scaled; waits.
    ///
    /// # Panics
    /// While a [`Gradient`] is out.
    pub fn gradient_norms(&mut self) -> Vec<f32> {
        assert_eq!(self.outstanding.load(Ordering::Acquire), 0, "gradient norms need every bucket back");
        let into = self.plan.norms.region(0..self.parameter_ranges.len());
        let norms = Norms { of: self.plan.gradients, ranges: Arc::clone(&self.parameter_ranges), into };
        self.device.enqueue(&Op::Norms(norms), &MicroBatch::NONE);
        self.device.ready().wait();
        let mut norms = vec![0.0; into.len];
        self.device.read(into, &mut norms);
        norms.iter_mut().for_each(|norm| *norm /= self.loss_scale);
        norms
    }

    /// All gradients are there, and `loss` is that of all of them.
    fn announce_all(&mut self, loss: f32, on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>)) {
        if let Some(place) = self.place_of_loss() {
            self.device.write(place, Values::F32(&[loss]));
        }
        let buckets = Buckets { plan: &self.plan, ranges: &self.buckets, beside: self.beside };
        buckets.announce_until(&mut self.device, 0, self.table.elements(), &self.outstanding, on_bucket);
        self.progress = Progress::Announced;
    }

    /// Where a step's loss goes with the last bucket, if anything does.
    fn place_of_loss(&self) -> Option<Region> {
        let elements = self.table.elements();
        (self.beside > 0).then(|| self.plan.gradients.region(elements..elements + 1))
    }

    pub(crate) fn assert_announced(&self, what: &str) {
        assert_eq!(self.progress, Progress::Announced, "{what} follows the step's last micro-batch");
        let outstanding = self.outstanding.load(Ordering::Acquire);
        assert_eq!(outstanding, 0, "{what} needs every bucket back, {outstanding} of {} are out", self.buckets.len());
    }

    pub(crate) fn assert_between_steps(&self, what: &str) {
        assert_eq!(self.progress, Progress::BetweenSteps, "{what} happens between steps");
    }

    /// Enqueues the upload of a batch; gives the number of its groups.
    pub(crate) fn upload(&mut self, batch: &Batch<'_>) -> usize {
        let Batch { inputs, targets, samples, group_ends, keys, importance: _ } = *batch;
        let most = self.max_micro_batch;
        assert!(samples <= most, "a micro-batch of {samples} samples exceeds the {most} planned for");
        assert_eq!(inputs.len(), self.plan.inputs.len(), "inputs of a sample");
        assert_eq!(targets.len(), self.plan.targets.len(), "targets of a sample");
        for (tensor, values) in self.plan.inputs.iter().zip(inputs) {
            let elements = tensor.shape.elements();
            assert_eq!(values.len(), samples * elements, "values of {samples} samples of {elements}");
            self.device.upload(tensor, *values);
        }
        for (target, values) in self.plan.targets.iter().zip(targets) {
            let elements = target.tensor.shape.elements();
            assert_eq!(values.len(), samples * elements, "targets of {samples} samples of {elements}");
            assert_eq!(values.dtype(), target.tensor.region.memory.dtype, "type of the targets");
            if let Values::U32(labels) = values {
                let strange = labels.iter().find(|label| !target.takes(**label));
                let classes = target.classes;
                assert!(strange.is_none(), "label {} is not below the {classes} classes", strange.unwrap_or(&0));
            }
            self.device.upload(&target.tensor, *values);
        }
        let one = [samples as u32];
        let ends = if group_ends.is_empty() { &one[..] } else { group_ends };
        let is_rising = ends.iter().zip(&ends[1..]).all(|(end, next)| end < next);
        assert!(is_rising && ends[0] > 0 && ends.last() == Some(&(samples as u32)), "groups that end at {ends:?}");
        self.device.write(self.plan.group_ends.part(0..ends.len()), Values::U32(ends));
        for (sample, words) in self.key_words[..2 * samples].chunks_exact_mut(2).enumerate() {
            let key = keys.get(sample).copied().unwrap_or(self.samples + sample as u64);
            words.copy_from_slice(&[key as u32, (key >> 32) as u32]);
        }
        let words = Values::U32(&self.key_words[..2 * samples]);
        self.device.write(self.plan.sample_keys.part(0..2 * samples), words);
        ends.len()
    }
}

/// Parameters that gradients train.
fn trained(table: &ParamTable) -> impl Iterator<Item = &ParamMeta> {
    table.parameters().iter().filter(|parameter| parameter.role.is_trained())
}

/// The ranges that updates touch.
fn update_ranges(parameters: &[ParamMeta]) -> Vec<UpdateRange> {
    let updated = parameters.iter().filter(|parameter| !parameter.frozen);
    updated.map(|ParamMeta { range, role, .. }| UpdateRange { range: range.clone(), role: *role }).collect()
}
