//! One CPU core: every operation is done when its call returns.

use std::ops::Range;

use crate::arena::{Arena, Lease};
use crate::kernels::{Instructions, norm};

use super::memory::{Memory, Region, SAMPLE_LANES, Tally};
use super::operations::{Accumulation, Convolution, Linear, Norms, SoftmaxCrossEntropy, Update, Upload};
use super::{Device, Event, convolution, linear, loss, update};

/// One CPU core.
#[derive(Debug)]
pub struct Cpu {
    instructions: Instructions,
    memories: Vec<Arena>,
    tallies: Vec<Totals>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) loss_sum: f64,
    pub(super) correct: u64,
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
        Cpu { instructions, memories: Vec::new(), tallies: Vec::new() }
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
        let old = &mut self.memories[memory.0];
        assert_eq!(old.leased(), 0, "views of the old memory are out");
        *old = arena;
    }

    pub(super) fn lease(&self, region: Region) -> Lease {
        self.memories[region.memory.0].lease(region.range())
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

    fn allocate(&mut self, elements: usize) -> Memory {
        self.memories.push(Arena::zeroed(elements));
        Memory(self.memories.len() - 1)
    }

    fn allocate_tally(&mut self) -> Tally {
        self.tallies.push(Totals::default());
        Tally(self.tallies.len() - 1)
    }

    fn convolution_workspace(&self, operation: &Convolution) -> usize {
        convolution::workspace_elements(operation)
    }

    fn linear_workspace(&self, _operation: &Linear) -> usize {
        linear::workspace_elements()
    }

    fn upload(&mut self, operation: &Upload, images: &[f32], labels: &[u32]) {
        let Upload { images: tensor, labels: label_region, classes } = operation;
        let samples = labels.len();
        let (height, width, channels) = (tensor.height, tensor.width, tensor.channels);
        let sample_elements = channels * height * width;
        assert!(samples <= tensor.capacity, "{samples} samples exceed the {} planned for", tensor.capacity);
        assert_eq!(images.len(), samples * sample_elements, "images of {samples} samples of {sample_elements} values");
        let mut stored_labels = self.lease(*label_region);
        for (stored, label) in stored_labels.iter_mut().zip(labels) {
            assert!((*label as usize) < *classes, "label {label} is not below the {classes} classes");
            *stored = *label as f32;
        }
        let mut stored = self.lease(tensor.region);
        let (row_stride, block_stride) = (tensor.row_stride(), tensor.block_stride());
        for (block, images) in images.chunks(SAMPLE_LANES * sample_elements).enumerate() {
            for line in 0..channels * height {
                let (channel, y) = (line / height, line % height);
                let stored_line =
                    (channel * tensor.stored_height() + y + tensor.halo) * tensor.stored_width() + tensor.halo;
                for x in 0..width {
                    let lanes = &mut stored[block * block_stride + (stored_line + x) * row_stride..][..SAMPLE_LANES];
                    let values = images[line * width + x..].iter().step_by(sample_elements);
                    let mut filled = 0;
                    for (lane, value) in lanes.iter_mut().zip(values) {
                        *lane = *value;
                        filled += 1;
                    }
                    lanes[filled..].fill(0.0);
                }
            }
        }
    }

    fn convolution_forward(&mut self, operation: &Convolution, samples: usize) {
        convolution::forward(self, operation, samples);
    }

    fn convolution_backward(&mut self, operation: &Convolution, accumulation: Accumulation, samples: usize) {
        convolution::backward(self, operation, accumulation, samples);
    }

    fn linear_forward(&mut self, operation: &Linear, samples: usize) {
        linear::forward(self, operation, samples);
    }

    fn linear_parameter_gradients(
        &mut self,
        operation: &Linear,
        rows: Range<usize>,
        accumulation: Accumulation,
        samples: usize,
    ) {
        linear::parameter_gradients(self, operation, rows, accumulation, samples);
    }

    fn linear_input_gradient(&mut self, operation: &Linear, samples: usize) {
        linear::input_gradient(self, operation, samples);
    }

    fn softmax_cross_entropy(&mut self, operation: &SoftmaxCrossEntropy, scale: f32, samples: usize) {
        let totals = loss::softmax_cross_entropy(self, operation, scale, samples);
        let sum = &mut self.tallies[operation.tally.0];
        sum.loss_sum += totals.loss_sum;
        sum.correct += totals.correct;
    }

    fn clear(&mut self, tally: Tally) {
        self.tallies[tally.0] = Totals::default();
    }

    fn write_loss(&mut self, tally: Tally, into: Region) {
        let loss = self.tallies[tally.0].loss_sum as f32;
        self.write(into, &[loss]);
    }

    fn zero(&mut self, region: Region) {
        self.lease(region).fill(0.0);
    }

    fn write(&mut self, region: Region, values: &[f32]) {
        self.lease(region).copy_from_slice(values);
    }

    fn update(&mut self, operation: &Update) {
        update::update(self, operation);
    }

    fn norms(&mut self, operation: &Norms) {
        let Norms { of, ranges, into } = operation;
        let mut norms = self.lease(*into);
        for (norm, range) in norms.iter_mut().zip(ranges.iter()) {
            *norm = norm::norm(self.instructions, &self.lease(of.region(range.clone()))) as f32;
        }
    }

    fn ready(&mut self) -> Done {
        Done
    }

    fn read(&mut self, region: Region, values: &mut [f32]) {
        values.copy_from_slice(&self.lease(region));
    }

    fn read_tally(&mut self, tally: Tally) -> (f64, u64) {
        let Totals { loss_sum, correct } = self.tallies[tally.0];
        (loss_sum, correct)
    }

    fn host_view(&mut self, region: Region, _event: Done) -> Lease {
        self.lease(region)
    }
}

/// Samples of a micro-batch, padded to whole groups of lanes.
pub(super) fn padded(samples: usize) -> usize {
    samples.next_multiple_of(SAMPLE_LANES)
}
