//! What computes: memory, and whole operations that are enqueued on it.
//!
//! A device may be late: `enqueue` and the writes only enqueue, in order. The host learns results
//! by waiting for an event ([`Device::ready`]) and reading then; [`crate::testing::Late`] panics
//! where a host reads earlier.

pub(crate) mod cpu;

pub use crate::memory::{Accumulation, Form, LANES, Memory, Region, Tally, Tensor};
pub use cpu::{Cpu, Done, conv};

use crate::{
    dtype::DType,
    op::{MicroBatch, Op},
};

/// One device (a GPU, or a CPU core). Everything but allocation, waiting and reading only enqueues.
/// Values from the host are copied before a call returns.
pub trait Device {
    /// A point in the device's order of operations that the host can wait for, from any thread.
    type Event: Event;
    /// Exclusive host view of a region of f32, usable from any thread; see [`Device::host_view`].
    type HostView: AsMut<[f32]> + Send + 'static;

    /// New zeroed memory. Only while planning: a step never allocates.
    fn allocate(&mut self, dtype: DType, elements: usize) -> Memory;
    /// New totals, zero. Only while planning.
    fn allocate_tally(&mut self) -> Tally;
    /// True if it computes small convolutions with their pooling as [`Op::Block`] on samples side
    /// by side.
    fn has_blocks(&self) -> bool {
        false
    }
    /// Makes room for what the device needs beside an operation's operands, for micro-batches of up
    /// to so many samples. Operations run one after another, so the largest room serves all. Only
    /// while planning.
    fn reserve(&mut self, operation: &Op, samples: usize);

    /// Copies samples to the device, `[sample][channel][row][column]` on the host, in the device's
    /// order there.
    fn upload(&mut self, into: &Tensor, values: Values<'_>);
    /// Computes an operation on a micro-batch.
    fn enqueue(&mut self, operation: &Op, batch: &MicroBatch);
    /// Writes values from the host as they are.
    fn write(&mut self, region: Region, values: Values<'_>);

    /// The point after everything enqueued so far.
    fn ready(&mut self) -> Self::Event;
    /// Copies a region of f32 to the host. Its last writer's event must have been waited for.
    fn read(&mut self, region: Region, values: &mut [f32]);
    /// Copies samples to the host, in the host's order. Their last writer's event must have been
    /// waited for.
    fn download(&mut self, from: &Tensor, values: &mut [f32]);
    /// The totals: sum of losses, and number of correct predictions. Their event must have been
    /// waited for.
    fn read_tally(&mut self, tally: Tally) -> (f64, u64);
    /// A view that waits for `event` when first used, then is the region itself: what is written
    /// through it is on the device once the view is dropped. No operation that touches the region
    /// may be enqueued meanwhile.
    fn host_view(&mut self, region: Region, event: Self::Event) -> Self::HostView;
}

/// A point in a device's order of operations.
pub trait Event: Clone + Send + 'static {
    /// Returns once everything enqueued before the event is done.
    fn wait(&self);
}

/// Values on the host.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// Of f32.
    F32(&'a [f32]),
    /// Of u32, such as labels or tokens.
    U32(&'a [u32]),
    /// Bytes.
    U8(&'a [u8]),
}

impl Values<'_> {
    /// Their number.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::U32(values) => values.len(),
            Values::U8(values) => values.len(),
        }
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        match self {
            Values::F32(_) => DType::F32,
            Values::U32(_) => DType::U32,
            Values::U8(_) => DType::U8,
        }
    }
}
