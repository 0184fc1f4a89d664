//! The further devices of a worker: each takes a part of its samples on a thread of its own, and its gradients are added to those of the
//! first device before other workers see any.
//!
//! A worker with D devices fills D seats of the group, those from D times its rank on. Only its first device has connections, checkpoints
//! and newcomers; the others hold copies of its state, and take each step with the gradients that it has then: all of the group's.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use lockstep_data::{Loader, Step};
use lockstep_elastic::Work;
use lockstep_nn::{Cpu, Replica, Sgd, StepResult};

use crate::{
    failure::Failure,
    gradients::{self, Part},
    training::Bucket,
};

/// Those after the first; most workers have none.
#[derive(Default)]
pub(crate) struct Devices {
    replicas: Vec<Replica<Cpu>>,
    /// The group's gradients of a step on their way from the first to the others.
    gradients: Vec<f32>,
}

/// Where the buckets of a step come, in their order, from each of the further devices, with when they were ready.
type Announced = Arc<Mutex<Vec<mpsc::Receiver<(Bucket, Instant)>>>>;

/// A bucket of a worker's gradients: those of its first device, and once they are looked at those of the others.
pub(crate) struct Gathered {
    sum: Bucket,
    /// When the last of those that are in it was.
    ready: Instant,
    others: Option<Announced>,
}

impl Gathered {
    /// Of a worker with one device.
    pub(crate) fn alone(sum: Bucket) -> Self {
        Self { sum, ready: Instant::now(), others: None }
    }

    /// When all of it could be summed with others, once it was looked at.
    pub(crate) fn ready(&self) -> Instant {
        self.ready
    }

    /// Adds the other devices' gradients, in their order; waits for them the first time.
    pub(crate) fn whole(&mut self) -> &mut [f32] {
        let Self { sum, ready, others } = self;
        let sum = sum.as_mut();
        if let Some(others) = others.take() {
            for other in others.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                let (mut bucket, moment) = other.recv().expect("a device announces every bucket");
                *ready = moment.max(*ready);
                sum.iter_mut().zip(bucket.as_mut()).for_each(|(sum, term)| *sum += *term);
            }
        }
        sum
    }
}

impl Devices {
    /// Each with a replica that `make` makes.
    pub(crate) fn new(count: usize, make: impl FnMut() -> Result<Replica<Cpu>, Failure>) -> Result<Self, Failure> {
        let replicas = std::iter::repeat_with(make).take(count).collect::<Result<Vec<_>, _>>()?;
        let gradients = replicas.first().map_or(Vec::new(), |replica| vec![0.0; replica.table().elements()]);
        Ok(Self { replicas, gradients })
    }

    /// They hold what the first one holds.
    pub(crate) fn take_over(&mut self, first: &mut Replica<Cpu>) {
        if self.replicas.is_empty() {
            return;
        }
        let mut state = vec![0.0; first.state_elements()];
        first.copy_state(0..state.len(), &mut state);
        self.replicas.iter_mut().for_each(|replica| replica.write_state(&state));
    }

    /// As the first one, from the next step on.
    pub(crate) fn set_buckets(&mut self, buckets: &[Range<usize>]) -> Result<(), Failure> {
        self.replicas.iter_mut().try_for_each(|replica| replica.set_buckets(buckets.to_vec()).map_err(Failure::fatal))
    }

    /// They leave the step that was under way, once nothing of it is lent out.
    pub(crate) fn abandon_step(&mut self) {
        self.replicas.iter_mut().for_each(Replica::abandon_step);
    }

    /// Computes a worker's gradients on `first` and on these, each on the samples of its loader, and hands its buckets over; how long the
    /// first one waited for samples.
    pub(crate) fn gradients(
        &mut self,
        first: &mut Replica<Cpu>,
        loaders: &mut [Loader],
        step: Step,
        work: &Work,
        submit: &mut dyn FnMut(usize, Gathered),
    ) -> Result<Duration, Failure> {
        let [own, others @ ..] = loaders else { unreachable!("each device has a loader") };
        let mut hand_over = |announced: Option<Announced>| {
            gradients::of_share(first, own, step, Part::Watched(work), &mut |bucket, sum| {
                submit(bucket, Gathered { others: announced.clone(), ..Gathered::alone(sum) });
            })
        };
        if self.replicas.is_empty() {
            return Ok(hand_over(None));
        }
        thread::scope(|scope| {
            let compute = |(device, (replica, loader))| {
                let (announce, announced) = mpsc::channel();
                // Where the group broke nobody takes them any more.
                let mut put = move |_, bucket| drop(announce.send((bucket, Instant::now())));
                let compute = move || gradients::of_share(replica, loader, step, Part::Beside(work), &mut put);
                named(device).spawn_scoped(scope, compute).map(|_| announced).map_err(Failure::retry)
            };
            let announced = self.replicas.iter_mut().zip(others).enumerate().map(compute).collect::<Result<_, _>>()?;
            Ok(hand_over(Some(Arc::new(Mutex::new(announced)))))
        })
    }

    /// Updates `first` and these from the gradients that it has; gives the totals of all.
    pub(crate) fn update(
        &mut self,
        first: &mut Replica<Cpu>,
        optimiser: &Sgd,
        rate: f32,
    ) -> Result<StepResult, Failure> {
        let update = |replica: &mut Replica<Cpu>| {
            replica.update(optimiser, rate);
            replica.finish_step()
        };
        if self.replicas.is_empty() {
            return Ok(update(first));
        }
        let Self { replicas, gradients } = self;
        first.copy_gradients(0..gradients.len(), gradients);
        let gradients = &gradients[..];
        thread::scope(|scope| {
            let mut others = Vec::with_capacity(replicas.len());
            for (device, replica) in replicas.iter_mut().enumerate() {
                let follow = move || {
                    let found = replica.finish_step();
                    replica.take_gradients(gradients);
                    update(replica);
                    found
                };
                others.push(named(device).spawn_scoped(scope, follow).map_err(Failure::retry)?);
            }
            let found = update(first);
            Ok(others.into_iter().fold(found, |all, other| {
                let StepResult { loss_sum, correct } = other.join().expect("an update does not panic");
                StepResult { loss_sum: all.loss_sum + loss_sum, correct: all.correct + correct }
            }))
        })
    }
}

/// The thread of a device after the first.
fn named(device: usize) -> thread::Builder {
    thread::Builder::new().name(format!("device-{}", device + 1))
}

#[cfg(test)]
mod tests {
    use lockstep_collective::{Abort, Communicator};
    use lockstep_data::{Order, Seat};
    use lockstep_launch::Workload;

    use super::*;
    use crate::{model, training::Slice};

    /// A worker with so many devices, all of a step's samples being its own; and its loaders.
    fn worker(devices: u32) -> (Replica<Cpu>, Devices, Vec<Loader>) {
        let workload: Workload = serde_json::from_value(serde_json::json!({
            "model": {"name": "mlp", "hidden": [16]},
            "dataset": {"format": "glyphs", "samples": 500},
            "training": {"globalBatchSize": 100, "microBatchSize": 20, "seed": 7},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        }))
        .expect("a workload");
        let dataset = model::dataset(&workload).expect("glyphs");
        let network = model::network(&workload.model, &dataset).expect("a network");
        let make = || {
            let ready_order = network.table().ready_order();
            Replica::new(Cpu::new(), network.clone(), 20, ready_order).map_err(Failure::fatal)
        };
        let mut first = make().expect("a replica");
        first.initialise(7);
        let mut further = Devices::new(devices as usize - 1, make).expect("more of them");
        further.take_over(&mut first);
        let samples = Arc::new(dataset.train);
        let order = |device| {
            let seat = Seat::new(device, devices, 64 * devices);
            Order { seed: 7, global_batch: 100, micro_batch: 20, seat, first_step: 0, steps: 2 }
        };
        let loaders = (0..devices).map(|device| Loader::start(Arc::clone(&samples), order(device)).expect("a loader"));
        (first, further, loaders.collect())
    }

    fn next_step(loaders: &mut [Loader]) -> Step {
        let shares: Vec<_> = loaders.iter_mut().filter_map(Loader::next_step).collect();
        assert_eq!(shares.iter().map(|share| share.samples).sum::<u64>(), 100, "each sample once");
        shares[0].step
    }

    /// The state and the loss after two steps.
    fn trained(devices: u32) -> (Vec<f32>, f64) {
        let (mut first, mut further, mut loaders) = worker(devices);
        let optimiser = Sgd { momentum: 0.9, weight_decay: 0.0 };
        let mut loss = 0.0;
        for _ in 0..2 {
            let step = next_step(&mut loaders);
            let mut buckets = Vec::new();
            let mut submit = |_, bucket| buckets.push(bucket);
            further.gradients(&mut first, &mut loaders, step, &Work::default(), &mut submit).expect("threads");
            for mut bucket in buckets {
                bucket.whole();
            }
            loss = further.update(&mut first, &optimiser, 0.1).expect("threads").loss_sum;
        }
        let state = |replica: &mut Replica<Cpu>| {
            let mut state = vec![0.0; replica.state_elements()];
            replica.copy_state(0..state.len(), &mut state);
            state
        };
        let held = state(&mut first);
        assert!(further.replicas.iter_mut().all(|replica| state(replica) == held), "other states");
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
    fn a_group_that_breaks_in_mid_step_leaves_nothing_of_any_device_lent_out() {
        let (mut first, mut further, mut loaders) = worker(3);
        let abort = Abort::new();
        let mut communicator = Communicator::<Slice>::alone(abort.clone());
        abort.abort("the group breaks");
        let step = next_step(&mut loaders);
        let mut submit = |bucket, gathered| communicator.submit(0, bucket as u32, Slice::Gradient(gathered));
        further.gradients(&mut first, &mut loaders, step, &Work::default(), &mut submit).expect("threads");
        assert!(communicator.wait().is_err(), "its memory comes back without being looked at");
        drop(communicator);
        // Panics where a bucket is out.
        first.abandon_step();
        further.abandon_step();
        next_step(&mut loaders);
    }
}
