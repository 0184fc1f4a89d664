//! A device that does everything as late as it may, as a GPU might: operations are recorded, and run in order on
//! another thread only once somebody waits for an event behind them. Results are those of [`Cpu`], bit for bit.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::arena::Lease;
use crate::device::{
    Accumulation, Convolution, Cpu, Device, Linear, Memory, Norms, Region, SoftmaxCrossEntropy, Tally, Update, Upload,
};

use super::queue::{LateEvent, LateProgress, Shared, Written};

/// See the module's description.
///
/// # Panics
/// Where the host reads memory or totals before it has waited for an event behind their last writer. A panic inside an
/// operation surfaces at the next wait.
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

    fn record(&mut self, writes: &[Written], operation: impl FnOnce(&mut Cpu) + Send + 'static) {
        self.shared.record(writes, Box::new(operation));
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

    fn allocate(&mut self, elements: usize) -> Memory {
        self.shared.cpu().allocate(elements)
    }

    fn allocate_tally(&mut self) -> Tally {
        self.shared.cpu().allocate_tally()
    }

    fn convolution_workspace(&self, operation: &Convolution) -> usize {
        self.shared.cpu().convolution_workspace(operation)
    }

    fn linear_workspace(&self, operation: &Linear) -> usize {
        self.shared.cpu().linear_workspace(operation)
    }

    fn upload(&mut self, operation: &Upload, images: &[f32], labels: &[u32]) {
        let (operation, images, labels) = (*operation, images.to_vec(), labels.to_vec());
        let writes = [operation.images.region, operation.labels].map(Written::Region);
        self.record(&writes, move |cpu| cpu.upload(&operation, &images, &labels));
    }

    fn convolution_forward(&mut self, operation: &Convolution, samples: usize) {
        let operation = *operation;
        let writes = operation.forward_writes().map(Written::Region);
        self.record(&writes, move |cpu| cpu.convolution_forward(&operation, samples));
    }

    fn convolution_backward(&mut self, operation: &Convolution, accumulation: Accumulation, samples: usize) {
        let operation = *operation;
        let writes = operation.backward_writes().map(Written::Region);
        self.record(&writes, move |cpu| cpu.convolution_backward(&operation, accumulation, samples));
    }

    fn linear_forward(&mut self, operation: &Linear, samples: usize) {
        let operation = *operation;
        let writes = [operation.output.region, operation.workspace].map(Written::Region);
        self.record(&writes, move |cpu| cpu.linear_forward(&operation, samples));
    }

    fn linear_parameter_gradients(
        &mut self,
        operation: &Linear,
        rows: Range<usize>,
        accumulation: Accumulation,
        samples: usize,
    ) {
        let operation = *operation;
        let with_the_first = [operation.bias.gradient, operation.gradients.output.region];
        let mut regions = vec![operation.gradient_of(&rows), operation.workspace];
        regions.extend(with_the_first.into_iter().filter(|_| rows.start == 0));
        let written: Vec<Written> = regions.into_iter().map(Written::Region).collect();
        self.record(&written, move |cpu| {
            cpu.linear_parameter_gradients(&operation, rows, accumulation, samples);
        });
    }

    fn linear_input_gradient(&mut self, operation: &Linear, samples: usize) {
        let operation = *operation;
        let written: Vec<Written> =
            operation.gradients.input.iter().map(|input| Written::Region(input.region)).collect();
        self.record(&written, move |cpu| cpu.linear_input_gradient(&operation, samples));
    }

    fn softmax_cross_entropy(&mut self, operation: &SoftmaxCrossEntropy, scale: f32, samples: usize) {
        let operation = *operation;
        let gradient = operation.gradient.iter().map(|gradient| Written::Region(gradient.region));
        let writes: Vec<Written> = gradient.chain([Written::Tally(operation.tally)]).collect();
        self.record(&writes, move |cpu| cpu.softmax_cross_entropy(&operation, scale, samples));
    }

    fn clear(&mut self, tally: Tally) {
        self.record(&[Written::Tally(tally)], move |cpu| cpu.clear(tally));
    }

    fn write_loss(&mut self, tally: Tally, into: Region) {
        self.record(&[Written::Region(into)], move |cpu| cpu.write_loss(tally, into));
    }

    fn zero(&mut self, region: Region) {
        self.record(&[Written::Region(region)], move |cpu| cpu.zero(region));
    }

    fn write(&mut self, region: Region, values: &[f32]) {
        let values = values.to_vec();
        self.record(&[Written::Region(region)], move |cpu| cpu.write(region, &values));
    }

    fn update(&mut self, operation: &Update) {
        let operation = operation.clone();
        let written = |memory: Memory| operation.ranges.iter().map(move |updated| memory.region(updated.range.clone()));
        let memories = std::iter::once(operation.weights).chain(operation.slots.iter().copied());
        let writes: Vec<Written> = memories.flat_map(written).map(Written::Region).collect();
        self.record(&writes, move |cpu| cpu.update(&operation));
    }

    fn norms(&mut self, operation: &Norms) {
        let operation = operation.clone();
        self.record(&[Written::Region(operation.into)], move |cpu| cpu.norms(&operation));
    }

    fn ready(&mut self) -> LateEvent {
        LateEvent::after_all(&self.shared)
    }

    fn read(&mut self, region: Region, values: &mut [f32]) {
        self.shared.assert_waited_for(Written::Region(region));
        self.shared.cpu().read(region, values);
    }

    fn read_tally(&mut self, tally: Tally) -> (f64, u64) {
        self.shared.assert_waited_for(Written::Tally(tally));
        self.shared.cpu().read_tally(tally)
    }

    fn host_view(&mut self, region: Region, event: LateEvent) -> LateView {
        LateView { event, region, lease: None }
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
        let region = device.allocate(4).region(0..4);
        device.write(region, &[1.0, 2.0, 3.0, 4.0]);
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
        device.zero(region);
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
        device.zero(region);
        event.wait();
        device.read(region, &mut [0.0; 4]);
    }

    #[test]
    #[should_panic(expected = "in mid-step")]
    fn totals_before_their_event_panic() {
        let mut device = Late::new();
        let tally = device.allocate_tally();
        device.clear(tally);
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
        let region = device.allocate(4).region(0..5);
        device.zero(region);
        device.ready().wait();
    }
}
