//! The step engine: one rank's copy of a model on one device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arena::{Arena, PAGE_ELEMENTS};
use crate::device::{Accumulation, Cpu, Device, Event, Norms, Region, Update, UpdateRange};
use crate::error::Error;
use crate::gradient::{Buckets, Gradient, check_buckets};
use crate::network::Network;
use crate::optimizers::Optimizer;
use crate::parameters::{ParamMeta, ParamTable};
use crate::parts::Tree;
use crate::plan::{Plan, Stage};

/// One rank's copy of a model: weights, gradients, optimiser state and the memory of a micro-batch, on one device.
///
/// A step is [`begin_step`](Replica::begin_step), any number of [`micro_batch`](Replica::micro_batch) calls of which
/// the last says so (or [`no_samples`](Replica::no_samples)), [`update`](Replica::update) once every [`Gradient`] is
/// dropped, and [`finish_step`](Replica::finish_step). Nothing before `finish_step` waits for the device. A step whose
/// group broke is left by [`abandon_step`](Replica::abandon_step).
pub struct Replica<D: Device> {
    pub(crate) device: D,
    pub(crate) table: ParamTable,
    pub(crate) plan: Plan,
    pub(crate) optimizer: Optimizer,
    clip_norm: Option<f32>,
    network: Network,
    buckets: Vec<Range<usize>>,
    /// Of each layer, in the order in which they become ready, the [parts](ParamTable::parts).
    ready: Vec<Vec<Range<usize>>>,
    updated: Arc<[UpdateRange]>,
    parameter_ranges: Arc<[Range<usize>]>,
    max_micro_batch: usize,
    /// Elements behind the gradients that go with the last bucket, the first of them the step's loss.
    beside: usize,
    /// Elements that there may be behind the gradients while they are in memory of its own.
    own_room: Option<usize>,
    outstanding: Arc<AtomicUsize>,
    progress: Progress,
    parts: Tree,
    /// Of the parts that have ended.
    totals: StepResult,
}

/// Where in a step the replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    BetweenSteps,
    Accumulating(Accumulation),
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
    /// Plans all memory on `device`, for micro-batches of up to `max_micro_batch` samples. Weights are zero until
    /// [`initialise`](Replica::initialise) or a state is taken over.
    ///
    /// `buckets` tile the gradient arena in order; a plan starts from [`ParamTable::ready_order`] of
    /// [`Network::table`].
    ///
    /// # Panics
    /// If `max_micro_batch` is zero.
    pub fn new(
        mut device: D,
        network: Network,
        optimizer: Optimizer,
        max_micro_batch: usize,
        buckets: Vec<Range<usize>>,
    ) -> Result<Replica<D>, Error> {
        assert!(max_micro_batch > 0, "memory for micro-batches of zero samples is of no use");
        let table = network.table();
        check_buckets(&buckets, table.elements())?;
        let plan = Plan::new(&mut device, &network, &table, optimizer.slots().len(), max_micro_batch);
        Ok(Replica {
            device,
            optimizer,
            clip_norm: None,
            network,
            buckets,
            ready: (0..plan.stages.len()).map(|layer| table.parts(layer)).collect(),
            plan,
            updated: update_ranges(table.parameters()).into(),
            parameter_ranges: table.parameters().iter().map(|parameter| parameter.range.clone()).collect(),
            table,
            max_micro_batch,
            beside: 0,
            own_room: Some(0),
            outstanding: Arc::new(AtomicUsize::new(0)),
            progress: Progress::BetweenSteps,
            parts: Tree::default(),
            totals: StepResult::default(),
        })
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Where every parameter lies in every arena.
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

    /// Elements behind the gradients that go with the last bucket, the first of them the step's sum of losses.
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
        self.buckets = buckets;
        Ok(())
    }

    /// Starts a step: no gradient, no loss.
    ///
    /// # Panics
    /// In mid-step.
    pub fn begin_step(&mut self) {
        self.assert_between_steps("begin_step");
        self.device.clear(self.plan.training_loss.tally);
        self.progress = Progress::Accumulating(Accumulation::Replace);
        self.parts.clear();
        self.totals = StepResult::default();
    }

    /// Enqueues upload, forward, loss and backward of `labels.len()` samples (`images` is `[samples][channels][rows]
    /// [columns]`), adding to the gradients of the step's earlier micro-batches. Each sample's gradient is multiplied
    /// by `scale`: 1 / global batch makes the sum over ranks the gradient of the mean loss.
    ///
    /// On the `last` micro-batch `on_bucket(index, gradient)` is called for every bucket, in order, as soon as the
    /// device has been told to compute all of it.
    ///
    /// # Panics
    /// Outside a step, after its last micro-batch, with more samples than planned for, and with a label that is not a
    /// class.
    pub fn micro_batch(
        &mut self,
        images: &[f32],
        labels: &[u32],
        scale: f32,
        last: bool,
        on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>),
    ) {
        let Progress::Accumulating(accumulation) = self.progress else {
            panic!("micro_batch needs an open step, but the replica is {:?}", self.progress);
        };
        let samples = labels.len();
        assert!(samples > 0, "a micro-batch needs a sample: a rank without any calls no_samples");
        self.forward(images, labels);
        self.device.softmax_cross_entropy(&self.plan.training_loss, scale, samples);
        if let Some(place) = self.place_of_loss().filter(|_| last) {
            self.device.write_loss(self.plan.training_loss.tally, place);
        }
        let mut announced = 0;
        for (stage, parts) in self.plan.stages.iter().rev().zip(&self.ready) {
            let mut announce = |device: &mut D, ready: usize| {
                if last {
                    let buckets = Buckets { plan: &self.plan, ranges: &self.buckets, beside: self.beside };
                    announced = buckets.announce_until(device, announced, ready, &self.outstanding, on_bucket);
                }
                // Where the next one ends, if it is to be announced.
                self.buckets.get(announced).filter(|_| last).map_or(usize::MAX, |bucket| bucket.end)
            };
            let layer_end = parts.last().map_or(0, |part| part.end);
            match stage {
                Stage::Convolution(operation) => {
                    self.device.convolution_backward(operation, accumulation, samples);
                    announce(&mut self.device, layer_end);
                }
                Stage::Linear(operation) => {
                    let mut computed = 0;
                    let mut awaited = announce(&mut self.device, 0);
                    for ready in parts.iter().map(|part| part.end) {
                        // Parts that no bucket ends in go with the next one.
                        if ready < awaited && ready < layer_end {
                            continue;
                        }
                        let rows = computed..operation.rows_before(ready);
                        computed = rows.end;
                        self.device.linear_parameter_gradients(operation, rows, accumulation, samples);
                        // Before the input's gradient is computed: communication gains that time.
                        awaited = announce(&mut self.device, ready);
                    }
                    self.device.linear_input_gradient(operation, samples);
                }
            }
        }
        self.progress = if last { Progress::Announced } else { Progress::Accumulating(Accumulation::Add) };
    }

    /// The step of a rank that has no sample in it: all gradients are zero and announced at once.
    ///
    /// # Panics
    /// Outside a step, and in one that already had a micro-batch.
    pub fn no_samples(&mut self, on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>)) {
        assert_eq!(
            self.progress,
            Progress::Accumulating(Accumulation::Replace),
            "no_samples stands in place of all micro-batches of an open step"
        );
        let elements = self.table.elements();
        self.device.zero(self.plan.gradients.region(0..elements));
        self.announce_all(0.0, on_bucket);
    }

    /// A step that others computed, in place of [`begin_step`](Replica::begin_step) and all micro-batches: its gradients as a group has
    /// summed them.
    ///
    /// # Panics
    /// In mid-step, and when these are the gradients of another network.
    pub fn take_gradients(&mut self, gradients: &[f32]) {
        let elements = self.table.elements();
        assert_eq!(gradients.len(), elements, "the gradients of another network");
        self.begin_step();
        self.device.write(self.plan.gradients.region(0..elements), gradients);
        self.progress = Progress::Announced;
    }

    /// Copies some gradients of the announced step as they now are; waits.
    ///
    /// # Panics
    /// Before the step's gradients were announced, while a [`Gradient`] is out, and when there are no such gradients.
    pub fn copy_gradients(&mut self, elements: Range<usize>, into: &mut [f32]) {
        assert_eq!(self.progress, Progress::Announced, "gradients are copied after the step's last micro-batch");
        assert_eq!(self.outstanding.load(Ordering::Acquire), 0, "copying gradients needs every bucket back");
        self.device.ready().wait();
        self.device.read(self.plan.gradients.region(elements), into);
    }

    /// Ends a part of the step, which may have had no micro-batch: its gradients and its loss are added to those of the parts before as
    /// in a binary tree of which the parts are the leaves. So the sum over 2ᵏ parts has the same bits whether one rank forms it or
    /// several form subtrees of it. Waits. With the `last` part `on_bucket` is called for every bucket.
    ///
    /// # Panics
    /// Outside a step, and when the number of parts at the last is no power of two.
    pub fn end_part(&mut self, last: bool, on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>)) {
        let Progress::Accumulating(accumulation) = self.progress else {
            panic!("end_part needs an open step, but the replica is {:?}", self.progress);
        };
        let (tally, elements) = (self.plan.training_loss.tally, self.table.elements());
        let all = self.plan.gradients.region(0..elements);
        if accumulation == Accumulation::Replace {
            self.device.zero(all);
        }
        let event = self.device.ready();
        event.wait();
        let (loss, correct) = self.device.read_tally(tally);
        self.device.clear(tally);
        let mut gradients = self.device.host_view(all, event);
        let loss = self.parts.add(gradients.as_mut(), loss as f32, !last);
        drop(gradients);
        self.totals = StepResult { loss_sum: f64::from(loss), correct: self.totals.correct + correct };
        self.progress = Progress::Accumulating(Accumulation::Replace);
        if last {
            let parts = self.parts.parts();
            assert!(parts.is_power_of_two(), "{parts} parts make no binary tree");
            self.announce_all(loss, on_bucket);
        }
    }

    /// From now on scales the gradients of a step down to this norm, over all parameters, where theirs is longer.
    pub fn clip_gradients(&mut self, longest: Option<f32>) {
        self.clip_norm = longest;
    }

    /// Enqueues one update of all weights from the gradients as they now are: step number `step`, from 1.
    ///
    /// # Panics
    /// Before the step's gradients were announced, and while a [`Gradient`] is out.
    pub fn update(&mut self, step: u64, rate: f32) {
        assert_eq!(self.progress, Progress::Announced, "update follows the step's last micro-batch");
        let outstanding = self.outstanding.load(Ordering::Acquire);
        assert_eq!(outstanding, 0, "update needs every bucket back, {outstanding} of {} are out", self.buckets.len());
        self.device.update(&Update {
            optimizer: self.optimizer,
            weights: self.plan.weights,
            gradients: self.plan.gradients,
            slots: Arc::clone(&self.plan.slots),
            ranges: Arc::clone(&self.updated),
            clip_norm: self.clip_norm,
            rate,
            step,
        });
    }

    /// Waits for the step and gives its totals on this rank.
    ///
    /// # Panics
    /// Before the step's gradients were announced, and while a [`Gradient`] is out.
    pub fn finish_step(&mut self) -> StepResult {
        assert_eq!(self.progress, Progress::Announced, "finish_step follows the step's last micro-batch");
        let outstanding = self.outstanding.load(Ordering::Acquire);
        assert_eq!(outstanding, 0, "finish_step needs every bucket back, {outstanding} are out");
        self.device.ready().wait();
        let (loss_sum, correct) = self.device.read_tally(self.plan.training_loss.tally);
        self.progress = Progress::BetweenSteps;
        StepResult { loss_sum: self.totals.loss_sum + loss_sum, correct: self.totals.correct + correct }
    }

    /// Gives the open step up, if there is one: weights stay as they are, its gradients are forgotten; waits.
    ///
    /// # Panics
    /// While a [`Gradient`] is out.
    pub fn abandon_step(&mut self) {
        let outstanding = self.outstanding.load(Ordering::Acquire);
        assert_eq!(outstanding, 0, "abandon_step needs every bucket back, {outstanding} are out");
        self.device.ready().wait();
        self.progress = Progress::BetweenSteps;
    }

    /// Loss and correct predictions of any number of samples under the present weights; waits.
    ///
    /// # Panics
    /// In mid-step, and with a label that is not a class.
    pub fn evaluate(&mut self, images: &[f32], labels: &[u32]) -> StepResult {
        self.assert_between_steps("evaluate");
        let loss = self.plan.evaluation_loss;
        self.device.clear(loss.tally);
        let sample_elements = self.network.input().elements();
        assert_eq!(images.len(), labels.len() * sample_elements, "images of {} samples", labels.len());
        let batches = images.chunks(self.max_micro_batch * sample_elements).zip(labels.chunks(self.max_micro_batch));
        for (images, labels) in batches {
            self.forward(images, labels);
            self.device.softmax_cross_entropy(&loss, 1.0, labels.len());
        }
        self.device.ready().wait();
        let (loss_sum, correct) = self.device.read_tally(loss.tally);
        StepResult { loss_sum, correct }
    }

    /// The L2 norm of each parameter's gradient, in table order, as the last announced step left them; waits.
    ///
    /// # Panics
    /// While a [`Gradient`] is out.
    pub fn gradient_norms(&mut self) -> Vec<f32> {
        assert_eq!(self.outstanding.load(Ordering::Acquire), 0, "gradient norms need every bucket back");
        let into = self.plan.norms.region(0..self.parameter_ranges.len());
        self.device.norms(&Norms { of: self.plan.gradients, ranges: Arc::clone(&self.parameter_ranges), into });
        self.device.ready().wait();
        let mut norms = vec![0.0; into.len];
        self.device.read(into, &mut norms);
        norms
    }

    /// All gradients are there, and `loss` is that of all of them.
    fn announce_all(&mut self, loss: f32, on_bucket: &mut dyn FnMut(usize, Gradient<D::HostView>)) {
        if let Some(place) = self.place_of_loss() {
            self.device.write(place, &[loss]);
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

    pub(crate) fn assert_between_steps(&self, what: &str) {
        assert_eq!(self.progress, Progress::BetweenSteps, "{what} happens between steps");
    }

    fn forward(&mut self, images: &[f32], labels: &[u32]) {
        let samples = labels.len();
        let most = self.max_micro_batch;
        assert!(samples <= most, "a micro-batch of {samples} samples exceeds the {most} planned for");
        self.device.upload(&self.plan.upload, images, labels);
        for stage in &self.plan.stages {
            match stage {
                Stage::Convolution(operation) => self.device.convolution_forward(operation, samples),
                Stage::Linear(operation) => self.device.linear_forward(operation, samples),
            }
        }
    }
}

impl Replica<Cpu> {
    /// Keeps the gradients in `memory` from the next step on, for a group that reduces them there. What `memory` has behind them goes with
    /// the last bucket: the step's sum of losses, and room for what else the group sums beside them.
    ///
    /// # Panics
    /// In mid-step, and if it has fewer elements than the table, or does not begin on a cache line.
    pub fn set_gradient_memory(&mut self, memory: impl AsMut<[f32]> + Send + 'static) {
        self.assert_between_steps("moving the gradients");
        let (arena, elements) = (Arena::over(memory), self.table.elements());
        assert!(arena.len() >= elements, "memory of {} elements for {elements} gradients", arena.len());
        (self.beside, self.own_room) = (arena.len() - elements, None);
        self.device.put(self.plan.gradients, arena);
    }

    /// Keeps the gradients in memory of its own from the next step on, and so many elements behind them, zeros, that go with the last bucket:
    /// the step's sum of losses, and room for others. What gradients were is lost.
    ///
    /// # Panics
    /// In mid-step.
    pub fn own_gradient_memory(&mut self, beside: usize) {
        self.assert_between_steps("moving the gradients");
        if self.own_room.is_none_or(|room| room < beside) {
            // A little more or less beside large gradients should not need other memory.
            let room = beside.next_multiple_of(PAGE_ELEMENTS);
            self.device.put(self.plan.gradients, Arena::zeroed(self.table.elements() + room));
            self.own_room = Some(room);
        }
        self.beside = beside;
        let elements = self.table.elements();
        self.device.zero(self.plan.gradients.region(elements..elements + beside));
    }
}

/// The ranges that updates touch.
fn update_ranges(parameters: &[ParamMeta]) -> Vec<UpdateRange> {
    let updated = parameters.iter().filter(|parameter| !parameter.frozen);
    updated.map(|ParamMeta { range, role, .. }| UpdateRange { range: range.clone(), role: *role }).collect()
}
