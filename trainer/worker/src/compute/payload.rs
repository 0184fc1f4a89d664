//! The memory that a worker lends to the collectives, which sum it over all ranks.

use crate::trainee::{Bucket, Completion, Trained};

/// The memory of one sum: a bucket of gradients, or numbers that travel alone.
pub(crate) enum Payload {
    Gradient(Gradients),
    Numbers(Vec<f32>),
}

/// A bucket of gradients. The last one of a step has room for numbers behind its gradients.
pub(crate) struct Gradients {
    bucket: Box<dyn Bucket>,
    carried: Option<Carried>,
}

/// Numbers that travel behind the gradients of a bucket.
enum Carried {
    /// They are not in the bucket yet.
    Waiting(Vec<f32>),
    /// They are in the bucket; the vector keeps their memory.
    Written(Vec<f32>),
}

impl Gradients {
    /// Lends a bucket that carries nothing.
    pub(crate) fn of(bucket: Box<dyn Bucket>) -> Self {
        Self { bucket, carried: None }
    }

    /// Lets `numbers` travel behind the gradients of the last bucket. That bucket has room for
    /// them, and the worker's loss in the first element of this room.
    pub(crate) fn carrying(self, numbers: Vec<f32>) -> Self {
        Self { carried: Some(Carried::Waiting(numbers)), ..self }
    }

    /// Completes the gradients and writes the carried numbers. A bucket waits here for the worker's
    /// other devices. A second call does nothing more.
    ///
    /// # Panics
    /// If the thread of a device has panicked.
    pub(crate) fn complete(&mut self) -> Completion {
        let completion = self.bucket.complete();
        if let Some(Carried::Waiting(mut numbers)) = self.carried.take_if(|carried| carried.waits()) {
            let slots = behind(self.as_mut(), numbers.len());
            Trained::of_slots(slots, completion.taken).put(&mut numbers);
            slots.copy_from_slice(&numbers);
            self.carried = Some(Carried::Written(numbers));
        }
        completion
    }

    /// Takes out the numbers that the bucket carried, as they are now. `None` if it carries none.
    pub(crate) fn carried(&mut self) -> Option<Vec<f32>> {
        let (Carried::Waiting(mut numbers) | Carried::Written(mut numbers)) = self.carried.take()?;
        let summed = behind(self.as_mut(), numbers.len());
        numbers.copy_from_slice(summed);
        Some(numbers)
    }
}

impl Carried {
    fn waits(&self) -> bool {
        matches!(self, Self::Waiting(_))
    }
}

impl AsMut<[f32]> for Gradients {
    fn as_mut(&mut self) -> &mut [f32] {
        (*self.bucket).as_mut()
    }
}

/// Returns the last elements of a bucket.
fn behind(bucket: &mut [f32], elements: usize) -> &mut [f32] {
    let gradients = bucket.len() - elements;
    &mut bucket[gradients..]
}

impl Payload {
    /// Completes the memory before it is summed.
    ///
    /// # Panics
    /// If the thread of a device has panicked.
    pub(crate) fn complete(&mut self) {
        match self {
            Self::Gradient(gradients) => {
                gradients.complete();
            }
            Self::Numbers(_) => {}
        }
    }
}

impl AsMut<[f32]> for Payload {
    fn as_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Gradient(gradients) => gradients.as_mut(),
            Self::Numbers(numbers) => numbers,
        }
    }
}
