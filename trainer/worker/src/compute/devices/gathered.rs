//! A bucket of a worker's gradients, of which each further device announces its part.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use lockstep_data::Tally;

use crate::{
    step::rank::Bucket,
    step::step_sync::slots::{LOSS, Trained},
};

/// A bucket of a worker's gradients: those of its first device, and once they are looked at those of the others.
pub(crate) struct Gathered {
    sum: Bucket,
    /// When the last of those that are in it was.
    ready: Instant,
    others: Option<Arc<[Announced]>>,
    /// Which samples its gradients are of.
    taken: Tally,
    /// Numbers that take the place behind the gradients, and whether they are there.
    carried: Option<(Vec<f32>, bool)>,
}

impl Gathered {
    /// Of a worker with one device, which took these samples.
    pub(crate) fn alone(sum: Bucket, taken: Tally) -> Self {
        Self { sum, ready: Instant::now(), others: None, taken, carried: None }
    }

    /// Of a worker with further devices, which announce their parts there.
    pub(super) fn among(others: &Arc<[Announced]>, sum: Bucket, taken: Tally) -> Self {
        Self { others: Some(Arc::clone(others)), ..Self::alone(sum, taken) }
    }

    /// Has `numbers`, and among them what all devices trained on, summed with the last bucket, which has as many elements behind its
    /// gradients and the loss in the first of them.
    pub(crate) fn carrying(self, numbers: Vec<f32>) -> Self {
        Self { carried: Some((numbers, false)), ..self }
    }

    /// The numbers that it carried, as they are now. `None` in a bucket that carries none.
    pub(crate) fn carried(&mut self) -> Option<Vec<f32>> {
        let (mut numbers, _) = self.carried.take()?;
        let summed = behind(self.sum.as_mut(), numbers.len());
        numbers.copy_from_slice(summed);
        Some(numbers)
    }

    /// When all of it could be summed with others, once it was looked at.
    pub(crate) fn ready(&self) -> Instant {
        self.ready
    }

    /// Adds the other devices' gradients, in their order; waits for them the first time, which ends with their part of the step at the
    /// latest.
    ///
    /// # Panics
    /// When a device's thread has panicked: a sum without its gradients is none.
    pub(crate) fn whole(&mut self) -> &mut [f32] {
        let Self { sum, ready, others, taken, carried } = self;
        let sum = sum.as_mut();
        if let Some(others) = others.take() {
            for other in &*others {
                let (mut bucket, also_taken, moment) = other.take();
                *ready = moment.max(*ready);
                add(sum, bucket.as_mut());
                *taken += also_taken;
            }
        }
        if let Some((numbers, is_there @ false)) = carried {
            let place = behind(sum, numbers.len());
            Trained { loss: f64::from(place[LOSS]), taken: *taken }.put(numbers);
            place.copy_from_slice(numbers);
            *is_there = true;
        }
        sum
    }
}

/// The last elements of a bucket.
fn behind(bucket: &mut [f32], elements: usize) -> &mut [f32] {
    let gradients = bucket.len() - elements;
    &mut bucket[gradients..]
}

/// `sum ← sum + terms`, as far as these go: a loop that the compiler turns into vectors.
fn add(sum: &mut [f32], terms: &[f32]) {
    sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}

/// The buckets that a device has ready, in their order, until somebody takes them.
#[derive(Default)]
pub(super) struct Announced {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    buckets: VecDeque<(Bucket, Tally, Instant)>,
    /// Nothing comes any more.
    ended: bool,
}

impl Announced {
    /// The next bucket is ready now, of these samples.
    pub(super) fn put(&self, bucket: Bucket, taken: Tally) {
        self.queue().buckets.push_back((bucket, taken, Instant::now()));
        self.changed.notify_one();
    }

    /// Gives those back that nobody took.
    pub(super) fn clear(&self) {
        self.queue().buckets.clear();
    }

    /// The device announces nothing any more.
    pub(super) fn end(&self) {
        self.queue().ended = true;
        self.changed.notify_all();
    }

    /// The next bucket, of which samples it is, and when it was ready; waits for it.
    fn take(&self) -> (Bucket, Tally, Instant) {
        let waits = |queue: &mut Queue| queue.buckets.is_empty() && !queue.ended;
        let mut queue = self.changed.wait_while(self.queue(), waits).unwrap_or_else(PoisonError::into_inner);
        let next = queue.buckets.pop_front();
        drop(queue);
        next.expect("a device announces every bucket")
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
