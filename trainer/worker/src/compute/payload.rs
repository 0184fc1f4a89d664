//! The memory that a worker lends to the collectives, which sum it over all ranks.

use super::devices::gathered::GatheredBucket;

/// The memory of one sum: a bucket of gradients, or numbers that travel alone.
pub(crate) enum Payload {
    Gradient(GatheredBucket),
    Numbers(Vec<f32>),
}

impl Payload {
    /// Completes the memory before it is summed. A bucket waits here for the worker's other
    /// devices.
    ///
    /// # Panics
    /// If the thread of a device has panicked.
    pub(crate) fn complete(&mut self) {
        match self {
            Self::Gradient(bucket) => bucket.complete(),
            Self::Numbers(_) => {}
        }
    }
}

impl AsMut<[f32]> for Payload {
    fn as_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Gradient(bucket) => bucket.as_mut(),
            Self::Numbers(numbers) => numbers,
        }
    }
}
