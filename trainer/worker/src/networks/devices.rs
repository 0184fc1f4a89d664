//! The further devices of a worker. Each takes a part of the worker's samples on a thread of its
//! own. The worker adds its devices' gradients before other workers see any.
//!
//! A worker with D devices fills D seats of the group, beginning with seat D × rank. Only the first
//! device has connections, checkpoints and newcomers. The others hold copies of its state, and
//! update them with the gradients of the whole group.

mod device_thread;
pub(crate) mod gathered;

use std::{ops::Range, sync::Arc, time::Duration};

use lockstep_data::{Loader, Step};
use lockstep_elastic::ActivityMonitor;
use lockstep_nn::{Cpu, Replica, StepResult};

use self::{
    device_thread::{DeviceThread, Done, Task},
    gathered::{Announced, GatheredBucket},
};
use crate::{
    failure::Failure,
    networks::gradients::{self, Part},
};

/// The devices after the first. Most workers have none.
#[derive(Default)]
pub(crate) struct Devices {
    devices: Vec<DeviceThread>,
    /// The queues in which the devices announce the buckets of a step.
    announced: Arc<[Announced]>,
    /// The group's gradients of a step, on their way from the first device to the others.
    gradients: Arc<Vec<f32>>,
}

impl Devices {
    /// Starts the devices, each with a replica that `make` makes.
    pub(crate) fn new(count: usize, mut make: impl FnMut() -> Result<Replica<Cpu>, Failure>) -> Result<Self, Failure> {
        let announced: Arc<[Announced]> = (0..count).map(|_| Announced::default()).collect();
        let mut devices =
            (0..count).map(|number| DeviceThread::start(number, make()?, &announced)).collect::<Result<Vec<_>, _>>()?;
        let elements = devices.first_mut().map_or(0, |device| device.replica().table().elements());
        Ok(Self { devices, announced, gradients: Arc::new(vec![0.0; elements]) })
    }

    /// Copies the state of the first device to all others.
    pub(crate) fn take_over(&mut self, first: &mut Replica<Cpu>) {
        if self.devices.is_empty() {
            return;
        }
        let mut state = vec![0.0; first.state_elements()];
        first.copy_state(0..state.len(), &mut state);
        self.devices.iter_mut().for_each(|device| device.replica().write_state(&state));
    }

    /// Returns the number of a device whose window of the state has another checksum.
    pub(crate) fn other_than(&mut self, checksum: u32, turn: u64) -> Option<usize> {
        self.devices
            .iter_mut()
            .position(|device| device.replica().window_checksum(turn) != checksum)
            .map(|further| further + 1)
    }

    /// Sets the buckets of all further devices, from the next step on.
    pub(crate) fn set_buckets(&mut self, buckets: &[Range<usize>]) -> Result<(), Failure> {
        let set = |device: &mut DeviceThread| device.replica().set_buckets(buckets.to_vec()).map_err(Failure::fatal);
        self.devices.iter_mut().try_for_each(set)
    }

    /// Sends each device's loss with its gradients from the next step on, or no longer.
    pub(crate) fn tell_losses(&mut self, tell: bool) {
        self.devices.iter_mut().for_each(|device| device.replica().own_gradient_memory(usize::from(tell)));
    }

    /// Multiplies the loss of the next step by `scale`.
    pub(crate) fn scale_loss(&mut self, scale: f32) {
        self.devices.iter_mut().for_each(|device| device.replica().scale_loss(scale));
    }

    /// Abandons the step under way. Nothing of it may be lent out any more.
    pub(crate) fn abandon_step(&mut self) {
        self.announced.iter().for_each(Announced::clear);
        self.devices.iter_mut().for_each(|device| device.replica().abandon_step());
    }

    /// Computes the worker's gradients on `first` and the further devices, each on the samples of
    /// its loader, and hands the buckets over. Returns how long the first device waited for
    /// samples.
    ///
    /// # Panics
    /// If the thread of a device has panicked.
    pub(crate) fn gradients(
        &mut self,
        first: &mut Replica<Cpu>,
        loaders: &mut Vec<Loader>,
        step: Step,
        seed: u64,
        work: &Arc<ActivityMonitor>,
        submit: &mut dyn FnMut(usize, GatheredBucket),
    ) -> Duration {
        let Self { devices, announced, gradients: _ } = self;
        assert_eq!(loaders.len(), 1 + devices.len(), "each device has a loader");
        for (device, loader) in devices.iter_mut().zip(loaders.drain(1..)) {
            device.begin(Task::Gradients { loader, step, seed, work: Arc::clone(work) });
        }
        let mut hand_over = |bucket, sum, taken| {
            let gathered = match devices.is_empty() {
                true => GatheredBucket::alone(sum, taken),
                false => GatheredBucket::among(announced, sum, taken),
            };
            submit(bucket, gathered);
        };
        let waited = gradients::of_share(first, &mut loaders[0], step, seed, Part::Watched(work), &mut hand_over);
        for device in devices {
            let Done::Gradients(loader) = device.finish() else { unreachable!("it was to compute gradients") };
            loaders.push(loader);
        }
        waited
    }

    /// Updates `first` and the further devices with the gradients of `first`. Returns the totals of
    /// all.
    ///
    /// # Panics
    /// If the thread of a device has panicked.
    pub(crate) fn update(&mut self, first: &mut Replica<Cpu>, step: u64, rate: f32) -> StepResult {
        let Self { devices, announced: _, gradients } = self;
        if !devices.is_empty() {
            let free = Arc::get_mut(gradients).expect("no device has them between two tasks");
            first.copy_gradients(0..free.len(), free);
        }
        for device in devices.iter_mut() {
            device.begin(Task::Update { gradients: Arc::clone(gradients), step, rate });
        }
        first.update(step, rate);
        devices.iter_mut().fold(first.finish_step(), |all, device| {
            let Done::Update(StepResult { loss_sum, correct }) = device.finish() else {
                unreachable!("it was to update")
            };
            StepResult { loss_sum: all.loss_sum + loss_sum, correct: all.correct + correct }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use lockstep_collective::{Abort, Communicator};
    use lockstep_data::{Batches, Order, Seat};
    use lockstep_launch::Workload;
    use lockstep_nn::{Optimizer, optimizers::Sgd};

    use super::*;
    use crate::{
        compute::payload::{Gradients, Payload},
        networks::{dataset, model},
        step::step_sync::numbers::{Sums, Told, slots},
        trainee::{Bucket as _, Trained},
    };

    /// Makes a worker with `devices` devices that takes all samples of a step, and its loaders.
    fn worker(devices: u32) -> (Replica<Cpu>, Devices, Vec<Loader>) {
        let workload: Workload = serde_json::from_value(serde_json::json!({
            "model": {"name": "mlp", "hidden": [16]},
            "dataset": {"format": "glyphs", "samples": 500},
            "training": {"globalBatchSize": 100, "microBatchSize": 20, "seed": 7},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        }))
        .expect("a workload");
        let dataset = dataset::open(&workload, Arc::new(|_| {})).expect("glyphs");
        let network = model::network(&workload, &dataset).expect("a network");
        let make = || {
            let ready_order = network.table().ready_order();
            Replica::new(Cpu::new(), network.clone(), SGD, 20, ready_order).map_err(Failure::fatal)
        };
        let mut first = make().expect("a replica");
        first.initialise(7);
        let mut further = Devices::new(devices as usize - 1, make).expect("more of them");
        further.take_over(&mut first);
        let samples = Arc::new(dataset.train);
        let order = |device| {
            let seat = Seat::new(device, devices, 64 * devices);
            Order {
                seed: 7,
                batches: Batches::constant(samples.len() as u64, 100),
                micro_batch: 20,
                seat,
                first_step: 0,
                steps: 2,
                whole_shards: false,
            }
        };
        let loaders = (0..devices).map(|device| Loader::start(Arc::clone(&samples), order(device)).expect("a loader"));
        (first, further, loaders.collect())
    }

    fn next_step(loaders: &mut [Loader]) -> Step {
        let shares: Vec<_> = loaders.iter_mut().filter_map(Loader::next_step).collect();
        assert_eq!(shares.iter().map(|share| share.samples).sum::<u64>(), 100, "each sample once");
        shares[0].step
    }

    const SGD: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false });

    /// Returns the state and the loss after two steps.
    fn trained(devices: u32) -> (Vec<f32>, f64) {
        let (mut first, mut further, mut loaders) = worker(devices);
        let mut loss = 0.0;
        for _ in 0..2 {
            let step = next_step(&mut loaders);
            let mut buckets = Vec::new();
            let mut submit = |_, bucket| buckets.push(bucket);
            further.gradients(&mut first, &mut loaders, step, 7, &Arc::default(), &mut submit);
            for mut bucket in buckets {
                bucket.complete();
            }
            loss = further.update(&mut first, step.index + 1, 0.1).loss_sum;
        }
        let state = |replica: &mut Replica<Cpu>| {
            let mut state = vec![0.0; replica.state_elements()];
            replica.copy_state(0..state.len(), &mut state);
            state
        };
        let held = state(&mut first);
        assert!(
            further.devices.iter_mut().all(|device| state(device.replica()) == held),
            "the devices hold different states"
        );
        (held, loss)
    }

    #[test]
    fn devices_learn_as_one_does_and_all_of_them_hold_the_same() {
        let (state, loss) = trained(1);
        for devices in [2, 3, 5] {
            let (other_state, other_loss) = trained(devices);
            assert!((loss - other_loss).abs() <= 1e-4 * loss, "{devices} devices: {other_loss}, alone {loss}");
            let differences = state.iter().zip(&other_state).map(|(one, other)| (one - other).abs());
            assert!(differences.fold(0.0, f32::max) <= 1e-6, "{devices} devices");
        }
    }

    #[test]
    fn numbers_travel_behind_the_gradients_of_all_devices_and_change_none_of_them() {
        for devices in [1, 3] {
            let mut gradients = [false, true].map(|carries| {
                let (mut first, mut further, mut loaders) = worker(devices);
                let world = 2;
                first.own_gradient_memory(slots(world));
                further.tell_losses(true);
                let step = next_step(&mut loaders);
                let mut numbers = Vec::new();
                Told { useful: Duration::from_secs(3), ..Told::default() }.put(&mut numbers, 1, world);
                let (last, mut buckets) = (first.buckets().len() - 1, Vec::new());
                let mut submit = |bucket, gathered| {
                    let (carries, gradients) = (carries && bucket == last, Gradients::of(Box::new(gathered)));
                    buckets.push(if carries { gradients.carrying(numbers.clone()) } else { gradients });
                };
                further.gradients(&mut first, &mut loaders, step, 7, &Arc::default(), &mut submit);
                for bucket in &mut buckets {
                    bucket.complete();
                    // Another rank with the same values would double them.
                    bucket.as_mut().iter_mut().for_each(|value| *value *= 2.0);
                    bucket.complete();
                }
                let carried: Vec<_> = buckets.iter_mut().map(Gradients::carried).collect();
                if let Some(sums) = &carried[last] {
                    let Trained { loss, taken } = Trained::of_sums(sums);
                    // The loss of ten classes before the first update.
                    assert!((loss / 200.0 - 10_f64.ln()).abs() < 1.0, "{devices} devices: {loss} of 200 samples");
                    assert_eq!(taken.samples, 200, "{devices} devices");
                    assert_eq!(Sums::of(sums, world).useful(), [0.0, 6.0], "{devices} devices");
                }
                assert_eq!(carried[last].is_some(), carries);
                assert!(carried[..last].iter().all(Option::is_none));
                drop(buckets);
                let mut gradients = vec![0.0; first.table().elements()];
                first.copy_gradients(0..gradients.len(), &mut gradients);
                gradients
            });
            let [without, with] = &mut gradients;
            assert_eq!(without, with, "{devices} devices");
        }
    }

    #[test]
    fn a_group_that_breaks_in_mid_step_leaves_nothing_of_any_device_lent_out() {
        let (mut first, mut further, mut loaders) = worker(3);
        let abort = Abort::new();
        let mut communicator = Communicator::<Payload>::alone(abort.clone());
        abort.abort("the group breaks");
        let step = next_step(&mut loaders);
        let mut submit = |bucket, gathered| {
            communicator.submit(0, bucket as u32, Payload::Gradient(Gradients::of(Box::new(gathered))));
        };
        further.gradients(&mut first, &mut loaders, step, 7, &Arc::default(), &mut submit);
        assert!(communicator.wait().is_err(), "an aborted communicator gives the memory back");
        drop(communicator);
        // This panics while a bucket is lent out.
        first.abandon_step();
        further.abandon_step();
        next_step(&mut loaders);
    }

    /// Lets the first further device finish a step that it has not begun.
    fn break_a_device(further: &mut Devices) {
        further.devices[0].begin(Task::Update { gradients: Arc::clone(&further.gradients), step: 1, rate: 0.1 });
    }

    #[test]
    #[should_panic(expected = "finish_step follows the step's last micro-batch")]
    fn a_panic_of_a_device_reaches_the_training_thread() {
        let (_, mut further, _) = worker(3);
        break_a_device(&mut further);
        further.devices[0].finish();
    }

    #[test]
    fn a_bucket_that_lacks_the_gradients_of_a_panicked_device_panics() {
        let (mut first, mut further, mut loaders) = worker(2);
        let step = next_step(&mut loaders);
        let mut gathered = Vec::new();
        let mut submit = |_, sum, taken| gathered.push(GatheredBucket::among(&further.announced, sum, taken));
        gradients::of_share(
            &mut first,
            &mut loaders[0],
            step,
            7,
            Part::Watched(&ActivityMonitor::default()),
            &mut submit,
        );
        let waits = thread::spawn(move || gathered[0].complete());
        break_a_device(&mut further);
        assert!(waits.join().is_err(), "a sum of one device alone");
    }

    #[test]
    fn devices_that_are_dropped_end_their_threads() {
        let (_, further, _) = worker(3);
        let announced = Arc::clone(&further.announced);
        assert_eq!(Arc::strong_count(&announced), 4, "one for the devices, one for each thread, and one here");
        drop(further);
        assert_eq!(Arc::strong_count(&announced), 1);
    }
}
