//! A device that does everything as late as it may, as a GPU might: operations are recorded, and
//! run in order on another thread only once somebody waits for an event behind them. Results are
//! those of [`Cpu`], bit for bit.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::arena::Lease;
use crate::device::{Cpu, Device, Memory, Region, Tally, Tensor, Values};
use crate::dtype::DType;
use crate::op::{MicroBatch, Op, Written};

use super::queue::{LateEvent, LateProgress, Shared};

/// See the module's description.
///
/// # Panics
/// Where the host reads memory or totals before it has waited for an event behind their last
/// writer. A panic inside an operation surfaces at the next wait.
#[derive(Debug)]
pub struct Late {
    shared: Arc<Shared>,
    runner: Option<JoinHandle<()>>,
}

impl Late {
    /// A device with an empty queue.
    pub fn new() -> Late {
        let shared = Arc::new(Shared::new());
        let runner = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        Late { shared, runner: Some(runner) }
    }

    /// A look at the queue from outside, also once the device is given away.
    pub fn progress(&self) -> LateProgress {
        LateProgress::of(&self.shared)
    }

    fn record(&mut self, written: Vec<Written>, operation: impl FnOnce(&mut Cpu) + Send + 'static) {
        self.shared.record(written, Box::new(operation));
    }
}

impl Default for Late {
    fn default() -> Self {
        Late::new()
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(runner) = self.runner.take() {
            // What went wrong in an operation was told to whoever waited for it.
            let _ = runner.join();
        }
    }
}

impl Device for Late {
    type Event = LateEvent;
    type HostView = LateView;

    fn allocate(&mut self, dtype: DType, elements: usize) -> Memory {
        self.shared.cpu().allocate(dtype, elements)
    }

    fn allocate_tally(&mut self) -> Tally {
        self.shared.cpu().allocate_tally()
    }

    fn has_blocks(&self) -> bool {
        self.shared.cpu().has_blocks()
    }

    fn reserve(&mut self, operation: &Op, samples: usize) {
        self.shared.cpu().reserve(operation, samples);
    }

    fn upload(&mut self, into: &Tensor, values: Values<'_>) {
        let (into, values) = (*into, Copied::of(values));
        self.record(vec![Written::Region(into.region)], move |cpu| cpu.upload(&into, values.show()));
    }

    fn enqueue(&mut self, operation: &Op, batch: &MicroBatch) {
        let (operation, batch) = (operation.clone(), *batch);
        let mut written = Vec::new();
        operation.each_written(&mut |one| written.push(one));
        self.record(written, move |cpu| cpu.enqueue(&operation, &batch));
    }

    fn write(&mut self, region: Region, values: Values<'_>) {
        let values = Copied::of(values);
        self.record(vec![Written::Region(region)], move |cpu| cpu.write(region, values.show()));
    }

    fn ready(&mut self) -> LateEvent {
        LateEvent::after_all(&self.shared)
    }

    fn read(&mut self, region: Region, values: &mut [f32]) {
        self.shared.assert_waited_for(Written::Region(region));
        self.shared.cpu().read(region, values);
    }

    fn download(&mut self, from: &Tensor, values: &mut [f32]) {
        self.shared.assert_waited_for(Written::Region(from.region));
        self.shared.cpu().download(from, values);
    }

    fn read_tally(&mut self, tally: Tally) -> (f64, u64) {
        self.shared.assert_waited_for(Written::Tally(tally));
        self.shared.cpu().read_tally(tally)
    }

    fn host_view(&mut self, region: Region, event: LateEvent) -> LateView {
        LateView { event, region, lease: None }
    }
}

/// Values that the host may have changed before they are read.
enum Copied {
    F32(Vec<f32>),
    U32(Vec<u32>),
    U8(Vec<u8>),
}

impl Copied {
    fn of(values: Values<'_>) -> Copied {
        match values {
            Values::F32(values) => Copied::F32(values.to_vec()),
            Values::U32(values) => Copied::U32(values.to_vec()),
            Values::U8(values) => Copied::U8(values.to_vec()),
        }
    }

    fn show(&self) -> Values<'_> {
        match self {
            Copied::F32(values) => Values::F32(values),
            Copied::U32(values) => Values::U32(values),
            Copied::U8(values) => Values::U8(values),
        }
    }
}

/// A region that is leased once its event has happened.
pub struct LateView {
    event: LateEvent,
    region: Region,
    lease: Option<Lease>,
}

impl AsMut<[f32]> for LateView {
    fn as_mut(&mut self) -> &mut [f32] {
        let LateView { event, region, lease } = self;
        lease.get_or_insert_with(|| event.lease(*region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Event;

    fn one_write() -> (Late, Region) {
        let mut device = Late::new();
        let region = device.allocate(DType::F32, 4).region(0..4);
        device.write(region, Values::F32(&[1.0, 2.0, 3.0, 4.0]));
        (device, region)
    }

    #[test]
    fn nothing_is_done_before_somebody_waits() {
        let (mut device, _) = one_write();
        assert_eq!((device.progress().recorded(), device.progress().done()), (1, 0));
        device.ready().wait();
        assert_eq!(device.progress().done(), 1);
    }

    #[test]
    fn only_what_lies_before_an_event_is_done_when_it_was_waited_for() {
        let (mut device, region) = one_write();
        let event = device.ready();
        device.enqueue(&Op::Zero(region), &MicroBatch::NONE);
        event.wait();
        assert_eq!((device.progress().recorded(), device.progress().done()), (2, 1));
    }

    #[test]
    #[should_panic(expected = "in mid-step: operation 1 writes it")]
    fn a_read_before_the_writer_was_waited_for_panics() {
        let (mut device, region) = one_write();
        device.read(region, &mut [0.0; 4]);
    }

    #[test]
    #[should_panic(expected = "in mid-step: operation 2 writes it")]
    fn a_read_behind_too_early_an_event_panics() {
        let (mut device, region) = one_write();
        let event = device.ready();
        device.enqueue(&Op::Zero(region), &MicroBatch::NONE);
        event.wait();
        device.read(region, &mut [0.0; 4]);
    }

    #[test]
    #[should_panic(expected = "in mid-step")]
    fn totals_before_their_event_panic() {
        let mut device = Late::new();
        let tally = device.allocate_tally();
        device.enqueue(&Op::ClearTally(tally), &MicroBatch::NONE);
        device.read_tally(tally);
    }

    #[test]
    fn a_view_waits_for_its_event_when_it_is_used() {
        let (mut device, region) = one_write();
        let event = device.ready();
        let mut view = device.host_view(region, event);
        assert_eq!(device.progress().done(), 0);
        assert_eq!(view.as_mut(), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    #[should_panic(expected = "an operation of the device panicked")]
    fn a_panic_in_an_operation_reaches_whoever_waits() {
        let mut device = Late::new();
        let region = device.allocate(DType::F32, 4).region(0..5);
        device.enqueue(&Op::Zero(region), &MicroBatch::NONE);
        device.ready().wait();
    }
}
