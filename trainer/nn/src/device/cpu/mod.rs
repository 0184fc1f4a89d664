//! One CPU core: every operation is done when its call returns.
//!
//! Values lie channels last: `[sample][row][column][channel]`.

mod activation;
mod batch_norm;
mod block;
mod channels;
pub mod conv;
mod convolution;
mod dropout;
mod elementwise;
mod linear;
mod loss;
mod order;
mod pool;
mod sample_norm;
mod staging;
mod update;

use std::sync::Arc;

use super::{Device, Event, Memory, Region, Tally, Tensor, Values};
use crate::{
    arena::{Arena, Lease, View},
    dtype::{DType, Element},
    kernels::{Instructions, norm},
    op::{Accumulation, MicroBatch, Norms, Op, Written},
};

/// One CPU core.
#[derive(Debug)]
pub struct Cpu {
    instructions: Instructions,
    memories: Vec<Arena>,
    tallies: Vec<Totals>,
    /// Room for one operation at a time.
    scratch: Arena,
    staging: staging::Staging,
    convolutions: convolution::Plans,
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    loss_sum: f64,
    correct: u64,
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.loss_sum += other.loss_sum;
        self.correct += other.correct;
    }
}

/// An event of [`Cpu`], which has always happened.
#[derive(Debug, Clone, Copy)]
pub struct Done;

impl Event for Done {
    fn wait(&self) {}
}

impl Cpu {
    /// This core, with the widest instructions that it has.
    pub fn new() -> Cpu {
        Cpu::with_instructions(Instructions::detect())
    }

    /// This core, held to `instructions`: tests compare one set with another.
    ///
    /// # Panics
    /// If the core does not have them.
    pub fn with_instructions(instructions: Instructions) -> Cpu {
        assert!(instructions.available(), "this core has no {instructions:?} instructions");
        let (memories, tallies, scratch) = (Vec::new(), Vec::new(), Arena::zeroed(0));
        let (staging, convolutions) = (staging::Staging::default(), convolution::Plans::default());
        Cpu { instructions, memories, tallies, scratch, staging, convolutions }
    }

    /// The instructions in use.
    pub fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// Puts an allocation into other memory; its values are then those of the new one.
    ///
    /// # Panics
    /// If a view of the old one is out.
    pub(crate) fn put(&mut self, memory: Memory, arena: Arena) {
        let old = &mut self.memories[memory.number];
        assert_eq!(old.leased(), 0, "views of the old memory are out");
        *old = arena;
    }

    fn lease<T: Element>(&self, region: Region) -> Lease<T> {
        self.memories[region.memory.number].lease(region.range())
    }

    fn view<T: Element>(&self, region: Region) -> View<T> {
        self.memories[region.memory.number].view(region.range())
    }

    /// Room that [`Device::reserve`] has made.
    fn scratch(&self, elements: usize) -> Lease {
        self.scratch.lease(0..elements)
    }

    fn grow_scratch(&mut self, elements: usize) {
        if self.scratch.len() < elements {
            self.scratch = Arena::zeroed(elements.next_multiple_of(1 << 12));
        }
    }

    /// Elements of scratch memory that an operation on so many samples needs.
    fn scratch_elements(&mut self, operation: &Op, samples: usize) -> usize {
        match operation {
            Op::Linear(_) | Op::LinearWeight(_) | Op::LinearInput(_) => linear::scratch_elements(),
            Op::Convolution(op) => {
                self.convolutions.plan(&convolution::forward_geometry(op, samples)).forward_scratch()
            }
            Op::ConvolutionWeight(op) => {
                self.convolutions.plan(&convolution::weight_geometry(op, samples)).weight_scratch()
            }
            Op::ConvolutionInput(op) => {
                self.convolutions.plan(&convolution::input_geometry(op, samples)).input_scratch()
            }
            Op::Block(op) => block::scratch_elements(op),
            Op::BlockBackward(op) => block::scratch_elements(&op.block),
            Op::BiasGradient(op) => channels::scratch_elements(op.dy.shape.channels),
            Op::BatchNorm(op) => batch_norm::scratch_elements(op.x.shape.channels),
            Op::BatchNormFixed(op) => batch_norm::scratch_elements(op.x.shape.channels),
            Op::BatchNormBackward(op) => batch_norm::scratch_elements(op.x.shape.channels),
            Op::SampleNorm(_)
            | Op::SampleNormBackward(_)
            | Op::AddBias(_)
            | Op::CutOff(_)
            | Op::MaxPool(_)
            | Op::MaxPoolBackward(_)
            | Op::AveragePool(_)
            | Op::AveragePoolBackward(_)
            | Op::Activate(_)
            | Op::ActivateBackward(_)
            | Op::Add(_)
            | Op::Accumulate(_)
            | Op::Channels(_)
            | Op::Subsample(_)
            | Op::SubsampleBackward(_)
            | Op::Dropout(_)
            | Op::Flatten(_)
            | Op::Unflatten(_)
            | Op::SoftmaxCrossEntropy(_)
            | Op::MeanSquaredError(_)
            | Op::Hinge(_)
            | Op::ClearTally(_)
            | Op::WriteLoss(..)
            | Op::Zero(_)
            | Op::Cast(_)
            | Op::Update(_)
            | Op::Norms(_) => 0,
        }
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}

impl Device for Cpu {
    type Event = Done;
    type HostView = Lease;

    fn allocate(&mut self, dtype: DType, elements: usize) -> Memory {
        self.memories.push(Arena::zeroed_of(dtype, elements));
        Memory { number: self.memories.len() - 1, dtype }
    }

    fn allocate_tally(&mut self) -> Tally {
        self.tallies.push(Totals::default());
        Tally(self.tallies.len() - 1)
    }

    fn has_blocks(&self) -> bool {
        true
    }

    fn reserve(&mut self, operation: &Op, samples: usize) {
        let elements = self.scratch_elements(operation, samples);
        self.grow_scratch(elements);
        operation.each_written(&mut |written| match written {
            Written::Region(region) => self.staging.expect(region.len),
            Written::Tally(_) => {}
        });
    }

    fn upload(&mut self, into: &Tensor, values: Values<'_>) {
        order::upload(self, into, values);
    }

    fn enqueue(&mut self, operation: &Op, batch: &MicroBatch) {
        match operation {
            Op::Linear(op) => linear::forward(self, op, batch),
            Op::LinearWeight(op) => linear::weight_gradient(self, op, batch),
            Op::LinearInput(op) => linear::input_gradient(self, op, batch),
            Op::Convolution(_) | Op::ConvolutionWeight(_) | Op::ConvolutionInput(_) => {
                self.convolve(operation, batch);
            }
            Op::Block(op) => block::run_forward(self, op, batch),
            Op::BlockBackward(op) => block::run_backward(self, op, batch),
            Op::AddBias(op) => channels::add_bias(self, op, batch),
            Op::BiasGradient(op) => channels::bias_gradient(self, op, batch),
            Op::CutOff(op) => elementwise::cut_off(self, op, batch),
            Op::BatchNorm(op) => batch_norm::forward(self, op, batch),
            Op::BatchNormFixed(op) => batch_norm::forward_fixed(self, op, batch),
            Op::BatchNormBackward(op) => batch_norm::backward(self, op, batch),
            Op::SampleNorm(op) => sample_norm::forward(self, op, batch),
            Op::SampleNormBackward(op) => sample_norm::backward(self, op, batch),
            Op::MaxPool(op) => pool::maximum(self, op, batch),
            Op::MaxPoolBackward(op) => pool::maximum_backward(self, op, batch),
            Op::AveragePool(op) => pool::average(self, op, batch),
            Op::AveragePoolBackward(op) => pool::average_backward(self, op, batch),
            Op::Activate(op) => activation::forward(self, op, batch),
            Op::ActivateBackward(op) => activation::backward(self, op, batch),
            Op::Add(op) => elementwise::add(self, op, batch),
            Op::Accumulate(op) => elementwise::accumulate(self, op, batch),
            Op::Channels(op) => channels::copy(self, op, batch),
            Op::Subsample(op) => channels::subsample(self, op, batch),
            Op::SubsampleBackward(op) => channels::subsample_backward(self, op, batch),
            Op::Dropout(op) => dropout::apply(self, op, batch),
            Op::Flatten(op) => order::flatten(self, op, batch),
            Op::Unflatten(op) => order::unflatten(self, op, batch),
            Op::SoftmaxCrossEntropy(op) => {
                let totals = loss::softmax_cross_entropy(self, op, batch);
                self.tallies[op.tally.0].add(totals);
            }
            Op::MeanSquaredError(op) => {
                let totals = loss::mean_squared_error(self, op, batch);
                self.tallies[op.tally.0].add(totals);
            }
            Op::Hinge(op) => {
                let totals = loss::hinge(self, op, batch);
                self.tallies[op.tally.0].add(totals);
            }
            Op::ClearTally(tally) => self.tallies[tally.0] = Totals::default(),
            Op::WriteLoss(tally, into) => self.lease::<f32>(*into).fill(self.tallies[tally.0].loss_sum as f32),
            Op::Zero(region) => self.lease::<f32>(*region).fill(0.0),
            Op::Cast(op) => update::cast(self, op),
            Op::Update(op) => update::update(self, op),
            Op::Norms(op) => self.norms(op),
        }
    }

    fn write(&mut self, region: Region, values: Values<'_>) {
        match values {
            Values::F32(values) => self.lease(region).copy_from_slice(values),
            Values::U32(values) => self.lease(region).copy_from_slice(values),
            Values::U8(values) => self.lease(region).copy_from_slice(values),
        }
    }

    fn ready(&mut self) -> Done {
        Done
    }

    fn read(&mut self, region: Region, values: &mut [f32]) {
        values.copy_from_slice(&self.reading(region));
    }

    fn download(&mut self, from: &Tensor, values: &mut [f32]) {
        order::download(self, from, values);
    }

    fn read_tally(&mut self, tally: Tally) -> (f64, u64) {
        let Totals { loss_sum, correct } = self.tallies[tally.0];
        (loss_sum, correct)
    }

    fn host_view(&mut self, region: Region, _event: Done) -> Lease {
        self.lease(region)
    }
}

impl Cpu {
    /// A micro-batch of a size that was not planned for may need other scratch memory.
    fn convolve(&mut self, operation: &Op, batch: &MicroBatch) {
        let elements = self.scratch_elements(operation, batch.samples);
        self.grow_scratch(elements);
        match operation {
            Op::Convolution(op) => {
                let plan = Arc::clone(self.convolutions.plan(&convolution::forward_geometry(op, batch.samples)));
                convolution::forward(self, &plan, op, batch);
            }
            Op::ConvolutionWeight(op) => {
                let plan = Arc::clone(self.convolutions.plan(&convolution::weight_geometry(op, batch.samples)));
                convolution::weight_gradient(self, &plan, op, batch);
            }
            Op::ConvolutionInput(op) => {
                let plan = Arc::clone(self.convolutions.plan(&convolution::input_geometry(op, batch.samples)));
                convolution::input_gradient(self, &plan, op, batch);
            }
            _ => unreachable!("only convolutions have plans"),
        }
    }

    fn norms(&self, operation: &Norms) {
        let Norms { of, ranges, into } = operation;
        let mut norms = self.lease::<f32>(*into);
        for (norm, range) in norms.iter_mut().zip(ranges.iter()) {
            *norm = norm::norm(self.instructions, &self.view(of.region(range.clone()))) as f32;
        }
    }
}

/// `to = from` or `to = to + from`.
fn put(accumulation: Accumulation, to: &mut f32, from: f32) {
    match accumulation {
        Accumulation::Replace => *to = from,
        Accumulation::Add => *to += from,
    }
}
