//! A device behind one trait: whole operations that a GPU would fuse, enqueue-only, on memory planned beforehand.
//!
//! No operation returns data. The host learns results by waiting for an event ([`Device::ready`]) and reading then;
//! [`crate::testing::Late`] panics where a host reads earlier.

mod convolution;
mod cpu;
mod linear;
mod loss;
mod memory;
mod operations;
mod update;

use std::ops::Range;

pub use cpu::{Cpu, Done};
pub use memory::{Form, Memory, Region, SAMPLE_LANES, Tally, Tensor};
pub use operations::{
    Accumulation, Convolution, Gradients, Linear, Norms, Parameter, SoftmaxCrossEntropy, Update, UpdateRange, Upload,
};

/// One device (a GPU, or a CPU core). Everything but allocation, waiting and reading only enqueues.
///
/// `samples` is the size of the present micro-batch, at most the one that memory was planned for. Images, labels and
/// written values are copied before a call returns.
pub trait Device {
    /// A point in the device's order of operations that the host can wait for, from any thread.
    type Event: Event;
    /// Exclusive host view of a region, usable from any thread; see [`Device::host_view`].
    type HostView: AsMut<[f32]> + Send + 'static;

    /// New zeroed memory. Only while planning: a step never allocates.
    fn allocate(&mut self, elements: usize) -> Memory;
    /// New totals, zero. Only while planning.
    fn allocate_tally(&mut self) -> Tally;
    /// Elements of scratch memory that the device wants for `operation`, whose own `workspace` is not looked at.
    fn convolution_workspace(&self, operation: &Convolution) -> usize;
    /// The same for a linear layer.
    fn linear_workspace(&self, operation: &Linear) -> usize;

    /// Copies a micro-batch to the device, in the device's layout.
    fn upload(&mut self, operation: &Upload, images: &[f32], labels: &[u32]);
    /// Convolution, bias, activation and pooling.
    fn convolution_forward(&mut self, operation: &Convolution, samples: usize);
    /// Gradients of weights, bias and input of [`Device::convolution_forward`].
    fn convolution_backward(&mut self, operation: &Convolution, accumulation: Accumulation, samples: usize);
    /// Matrix product, bias and activation.
    fn linear_forward(&mut self, operation: &Linear, samples: usize);
    /// Gradients of some rows of the weights of [`Device::linear_forward`], called for all of them in turn. With the first also that of the
    /// bias; leaves the product's gradient, where the activation did not cut it off, in place of the output's.
    fn linear_parameter_gradients(
        &mut self,
        operation: &Linear,
        rows: Range<usize>,
        accumulation: Accumulation,
        samples: usize,
    );
    /// Gradient of the input, if one is planned, after [`Device::linear_parameter_gradients`] of all rows.
    fn linear_input_gradient(&mut self, operation: &Linear, samples: usize);
    /// Adds the micro-batch's loss and correct predictions to the tally; with a gradient planned, writes
    /// `scale · d(sum of losses)/d(logits)`.
    fn softmax_cross_entropy(&mut self, operation: &SoftmaxCrossEntropy, scale: f32, samples: usize);

    /// Sets the totals to zero.
    fn clear(&mut self, tally: Tally);
    /// Writes the sum of losses into a region of one element.
    fn write_loss(&mut self, tally: Tally, into: Region);
    /// Sets a region to zero.
    fn zero(&mut self, region: Region);
    /// Writes values from the host.
    fn write(&mut self, region: Region, values: &[f32]);
    /// One update of all ranges.
    fn update(&mut self, operation: &Update);
    /// The L2 norm of each range.
    fn norms(&mut self, operation: &Norms);

    /// The point after everything enqueued so far.
    fn ready(&mut self) -> Self::Event;
    /// Copies a region to the host. Its last writer's event must have been waited for.
    fn read(&mut self, region: Region, values: &mut [f32]);
    /// The totals: sum of losses, and number of correct predictions. Their event must have been waited for.
    fn read_tally(&mut self, tally: Tally) -> (f64, u64);
    /// A view that waits for `event` when first used, then is the region itself: what is written through it is on the
    /// device once the view is dropped. No operation that touches the region may be enqueued meanwhile.
    fn host_view(&mut self, region: Region, event: Self::Event) -> Self::HostView;
}

/// A point in a device's order of operations.
pub trait Event: Clone + Send + 'static {
    /// Returns once everything enqueued before the event is done.
    fn wait(&self);
}
