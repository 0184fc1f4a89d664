//! A bucket of a worker's gradients. Each further device announces its part of the bucket.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use lockstep_data::Tally;

use crate::{
    networks::gradients::HeldBucket,
    trainee::{Bucket, Completion},
};

/// A bucket of a worker's gradients. It holds those of the first device until
/// [`GatheredBucket::complete`] adds those of the other devices.
pub(crate) struct GatheredBucket {
    sum: HeldBucket,
    /// The time at which the last of the added gradients was ready.
    ready: Instant,
    others: Option<Arc<[Announced]>>,
    /// The samples that the gradients come from.
    taken: Tally,
}

impl GatheredBucket {
    /// Makes the bucket of a worker with one device, which took the samples `taken`.
    pub(crate) fn alone(sum: HeldBucket, taken: Tally) -> Self {
        Self { sum, ready: Instant::now(), others: None, taken }
    }

    /// Makes the bucket of a worker with further devices, which announce their parts in `others`.
    pub(super) fn among(others: &Arc<[Announced]>, sum: HeldBucket, taken: Tally) -> Self {
        Self { others: Some(Arc::clone(others)), ..Self::alone(sum, taken) }
    }
}

impl Bucket for GatheredBucket {
    /// Adds the gradients of the other devices in their order. It waits for the devices, at the
    /// longest until they end their part of the step.
    ///
    /// # Panics
    /// If the thread of a device has panicked: a sum without its gradients would be wrong.
    fn complete(&mut self) -> Completion {
        let sum = self.sum.as_mut();
        for other in self.others.take().iter().flat_map(|others| others.iter()) {
            let (mut bucket, also_taken, moment) = other.take();
            self.ready = moment.max(self.ready);
            add(sum, bucket.as_mut());
            self.taken += also_taken;
        }
        Completion { taken: self.taken, ready: self.ready }
    }
}

impl AsMut<[f32]> for GatheredBucket {
    fn as_mut(&mut self) -> &mut [f32] {
        self.sum.as_mut()
    }
}

/// `sum ← sum + terms`, as far as these go: a loop that the compiler turns into vectors.
fn add(sum: &mut [f32], terms: &[f32]) {
    sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}

/// The finished buckets of a device, in their order, until they are taken.
#[derive(Default)]
pub(super) struct Announced {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    buckets: VecDeque<(HeldBucket, Tally, Instant)>,
    /// True once the device announces nothing any more.
    ended: bool,
}

impl Announced {
    /// Announces the next bucket, which is ready now and comes from the samples `taken`.
    pub(super) fn put(&self, bucket: HeldBucket, taken: Tally) {
        self.queue().buckets.push_back((bucket, taken, Instant::now()));
        self.changed.notify_one();
    }

    /// Drops the buckets that nobody took.
    pub(super) fn clear(&self) {
        self.queue().buckets.clear();
    }

    /// Ends the announcements of a device.
    pub(super) fn end(&self) {
        self.queue().ended = true;
        self.changed.notify_all();
    }

    /// Waits for the next bucket. Returns it with its samples and the time at which it was ready.
    fn take(&self) -> (HeldBucket, Tally, Instant) {
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
