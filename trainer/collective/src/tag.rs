//! The tag of an operation: its step and its bucket.

/// The step of an operation that belongs to no step.
pub(crate) const NO_STEP: u64 = u64::MAX;
/// The bucket number of [`Communicator::all_reduce_now`](crate::Communicator::all_reduce_now). No
/// submitted bucket has it.
pub(crate) const NOW: u32 = u32::MAX;
/// The bucket number of sums beside the buckets of a step.
pub const BESIDE: u32 = u32::MAX - 1;

/// The step and the bucket that a frame belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The training step, or any other count.
    pub step: u64,
    /// The bucket of the step.
    pub bucket: u32,
}
