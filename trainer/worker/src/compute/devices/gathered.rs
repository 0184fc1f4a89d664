//! A bucket of a worker's gradients. Each further device announces its part of the bucket.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use lockstep_data::Tally;

use crate::compute::{gradients::Bucket, trained::Trained};

/// A bucket of a worker's gradients. It holds those of the first device until
/// [`GatheredBucket::complete`] adds those of the other devices.
pub(crate) struct GatheredBucket {
    sum: Bucket,
    /// The time at which the last of the added gradients was ready.
    ready: Instant,
    others: Option<Arc<[Announced]>>,
    /// The samples that the gradients come from.
    taken: Tally,
    carried: Option<Carried>,
}

/// Numbers that travel behind the gradients of a bucket.
enum Carried {
    /// They are not in the bucket yet.
    Waiting(Vec<f32>),
    /// They are in the bucket; the vector keeps their memory.
    Written(Vec<f32>),
}

impl GatheredBucket {
    /// Makes the bucket of a worker with one device, which took the samples `taken`.
    pub(crate) fn alone(sum: Bucket, taken: Tally) -> Self {
        Self { sum, ready: Instant::now(), others: None, taken, carried: None }
    }

    /// Makes the bucket of a worker with further devices, which announce their parts in `others`.
    pub(super) fn among(others: &Arc<[Announced]>, sum: Bucket, taken: Tally) -> Self {
        Self { others: Some(Arc::clone(others)), ..Self::alone(sum, taken) }
    }

    /// Lets `numbers` travel behind the gradients of the last bucket. That bucket has room for
    /// them, and the replica's loss in the first element of this room.
    pub(crate) fn carrying(self, numbers: Vec<f32>) -> Self {
        Self { carried: Some(Carried::Waiting(numbers)), ..self }
    }

    /// Takes out the numbers that the bucket carried, as they are now. `None` if it carries none.
    pub(crate) fn carried(&mut self) -> Option<Vec<f32>> {
        let (Carried::Waiting(mut numbers) | Carried::Written(mut numbers)) = self.carried.take()?;
        let summed = behind(self.sum.as_mut(), numbers.len());
        numbers.copy_from_slice(summed);
        Some(numbers)
    }

    /// Returns the time at which all gradients of a complete bucket were ready.
    pub(crate) fn ready(&self) -> Instant {
        self.ready
    }

    /// Adds the gradients of the other devices in their order, and writes the carried numbers. It
    /// waits for the devices, at the longest until they end their part of the step. A second call
    /// does nothing.
    ///
    /// # Panics
    /// If the thread of a device has panicked: a sum without its gradients would be wrong.
    pub(crate) fn complete(&mut self) {
        let sum = self.sum.as_mut();
        for other in self.others.take().iter().flat_map(|others| others.iter()) {
            let (mut bucket, also_taken, moment) = other.take();
            self.ready = moment.max(self.ready);
            add(sum, bucket.as_mut());
            self.taken += also_taken;
        }
        if let Some(Carried::Waiting(mut numbers)) = self.carried.take_if(|carried| carried.waits()) {
            let slots = behind(sum, numbers.len());
            Trained::of_replica(slots, self.taken).put(&mut numbers);
            slots.copy_from_slice(&numbers);
            self.carried = Some(Carried::Written(numbers));
        }
    }
}

impl AsMut<[f32]> for GatheredBucket {
    fn as_mut(&mut self) -> &mut [f32] {
        self.sum.as_mut()
    }
}

impl Carried {
    fn waits(&self) -> bool {
        matches!(self, Self::Waiting(_))
    }
}

/// Returns the last elements of a bucket.
fn behind(bucket: &mut [f32], elements: usize) -> &mut [f32] {
    let gradients = bucket.len() - elements;
    &mut bucket[gradients..]
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
    buckets: VecDeque<(Bucket, Tally, Instant)>,
    /// True once the device announces nothing any more.
    ended: bool,
}

impl Announced {
    /// Announces the next bucket, which is ready now and comes from the samples `taken`.
    pub(super) fn put(&self, bucket: Bucket, taken: Tally) {
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
