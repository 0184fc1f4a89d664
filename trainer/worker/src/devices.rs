//! The further devices of a worker: each takes a part of its samples on a thread of its own, and its gradients are added to those of the
//! first device before other workers see any.
//!
//! A worker with D devices fills D seats of the group, those from D times its rank on. Only its first device has connections, checkpoints
//! and newcomers; the others hold copies of its state, and take each step with the gradients that it has then: all of the group's.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use lockstep_data::{Loader, Step};
use lockstep_elastic::Work;
use lockstep_nn::{Cpu, Replica, Sgd, StepResult};

use crate::{failure::Failure, gradients, training::Bucket};

/// Those after the first; most workers have none.
#[derive(Default)]
pub(crate) struct Devices {
    replicas: Vec<Replica<Cpu>>,
    /// The group's gradients of a step on their way from the first to the others.
    gradients: Vec<f32>,
}

/// Where the buckets of a step come, in their order, from each of the further devices.
type Announced = Arc<Mutex<Vec<mpsc::Receiver<Bucket>>>>;

/// A bucket of a worker's gradients: those of its first device, and once they are looked at those of the others.
pub(crate) struct Gathered {
    sum: Bucket,
    others: Option<Announced>,
}

impl Gathered {
    /// Of a worker with one device.
    pub(crate) fn alone(sum: Bucket) -> Self {
        Self { sum, others: None }
    }

    /// Adds the other devices' gradients, in their order; waits for them the first time.
    pub(crate) fn whole(&mut self) -> &mut [f32] {
        let Self { sum, others } = self;
        let sum = sum.as_mut();
        if let Some(others) = others.take() {
            for other in others.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                let mut bucket = other.recv().expect("a device announces every bucket");
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

    /// Computes a worker's gradients on `first` and on these, each on the samples of its loader, and hands its buckets over.
    pub(crate) fn gradients(
        &mut self,
        first: &mut Replica<Cpu>,
        loaders: &mut [Loader],
        step: Step,
        work: &Work,
        submit: &mut dyn FnMut(usize, Gathered),
    ) -> std::time::Duration {
        let [own, others @ ..] = loaders else { unreachable!("each device has a loader") };
        let mut hand_over = |announced: Option<Announced>| {
            gradients::of_share(first, own, step, Some(work), &mut |bucket, sum| {
                submit(bucket, Gathered { sum, others: announced.clone() });
            })
        };
        if self.replicas.is_empty() {
            return hand_over(None);
        }
        thread::scope(|scope| {
            let compute = |(replica, loader)| {
                let (announce, announced) = mpsc::channel();
                // Where the group broke nobody takes them any more.
                let mut put = move |_, bucket| drop(announce.send(bucket));
                scope.spawn(move || gradients::of_share(replica, loader, step, None, &mut put));
                announced
            };
            let announced = self.replicas.iter_mut().zip(others).map(compute).collect();
            hand_over(Some(Arc::new(Mutex::new(announced))))
        })
    }

    /// Updates `first` and these from the gradients that it has; gives the totals of all.
    pub(crate) fn update(&mut self, first: &mut Replica<Cpu>, optimiser: &Sgd, rate: f32) -> StepResult {
        let update = |replica: &mut Replica<Cpu>| {
            replica.update(optimiser, rate);
            replica.finish_step()
        };
        if self.replicas.is_empty() {
            return update(first);
        }
        let Self { replicas, gradients } = self;
        first.copy_gradients(0..gradients.len(), gradients);
        let gradients = &gradients[..];
        thread::scope(|scope| {
            let others: Vec<_> = replicas
                .iter_mut()
                .map(|replica| {
                    scope.spawn(move || {
                        let found = replica.finish_step();
                        replica.take_gradients(gradients);
                        update(replica);
                        found
                    })
                })
                .collect();
            let found = update(first);
            others.into_iter().fold(found, |all, other| {
                let StepResult { loss_sum, correct } = other.join().expect("an update does not panic");
                StepResult { loss_sum: all.loss_sum + loss_sum, correct: all.correct + correct }
            })
        })
    }
}
