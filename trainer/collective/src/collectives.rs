//! The collectives of a training step, whatever carries them.

use std::time::Duration;

use crate::communicator::{Communicator, Statistics};
use crate::element::Reduction;
use crate::outcome::{Completed, Failed, Transferred};
use crate::tag::Tag;
use crate::{AgreedPlan, BucketPlan, Collective, CollectiveError, Costs};

/// An operation over a buffer that was begun. [`Collectives::wait`] takes it and gives the buffer
/// back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the buffer comes back when the operation is waited for"]
pub struct Handle(u64);

impl Handle {
    /// Names the operation of that number, counted from 0 in the order in which they were begun.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the operation.
    pub const fn number(&self) -> u64 {
        self.0
    }
}

/// Operations of a group of ranks over buffers `M`, beside the caller's computation.
///
/// All ranks begin the same operations in the same order, with the same [`Tag`] and length. They
/// run in that order, and are waited for in that order. A rank's part of a buffer is
/// [`algorithm::part`](crate::algorithm::part) of it. [`Communicator`] is the implementation over
/// this crate's links and shared memory.
pub trait Collectives<M> {
    /// Returns this process's rank.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn world(&self) -> usize;

    /// Begins to sum `buffer` over all ranks, by the newest plan of [`Collectives::agree`].
    fn all_reduce(&mut self, tag: Tag, buffer: M) -> Handle;

    /// The same for a sum that the caller waits for at once, or that may begin with the next
    /// operation: nobody is woken for it.
    fn all_reduce_with_next(&mut self, tag: Tag, buffer: M) -> Handle {
        self.all_reduce(tag, buffer)
    }

    /// Begins to sum `buffer` over all ranks, and keeps this rank's part of the sum. The other
    /// parts are undefined.
    fn reduce_scatter(&mut self, tag: Tag, buffer: M) -> Handle;

    /// Begins to fill `buffer` with every rank's part of it.
    fn all_gather(&mut self, tag: Tag, buffer: M) -> Handle;

    /// Begins to send `buffer` to another rank, which receives it under the same tag.
    fn send(&mut self, to: usize, tag: Tag, buffer: M) -> Handle;

    /// Begins to fill `buffer` with what another rank sends.
    fn receive(&mut self, from: usize, tag: Tag, buffer: M) -> Handle;

    /// Waits for the oldest operation that was not waited for, which must be `operation`.
    ///
    /// # Errors
    /// [`Failed`], with the buffer, if the operation has no result.
    ///
    /// # Panics
    /// If an older operation was not waited for.
    fn wait(&mut self, operation: Handle) -> Result<Completed<M>, Failed<M>>;

    /// Sums a few values in place, after all operations that were begun, and waits.
    ///
    /// # Errors
    /// The reason why the sum was not formed; `values` are then unchanged.
    fn all_reduce_now(&mut self, step: u64, values: &mut [f32]) -> Result<Transferred, CollectiveError>;

    /// Gives all ranks the plan of rank 0, after all operations that were begun. `propose` is
    /// called on rank 0 only.
    ///
    /// # Errors
    /// The reason why the ranks did not agree.
    fn agree(&mut self, propose: &mut dyn FnMut() -> BucketPlan) -> Result<AgreedPlan, CollectiveError>;

    /// Measures a part of what messages cost, behind the operations that were begun. An
    /// implementation that chooses its algorithms by itself measures nothing.
    fn measure(&mut self) {}

    /// Returns the measured costs of messages, once they are known.
    fn costs(&mut self) -> Option<Costs> {
        None
    }

    /// Changes how long later operations may go without progress, and without an acknowledgement.
    fn set_silence_limits(&mut self, silence: Duration, unacknowledged: Duration);

    /// Returns the totals so far.
    fn statistics(&self) -> Statistics;
}

impl<M: AsMut<[f32]> + Send + 'static> Collectives<M> for Communicator<M> {
    fn rank(&self) -> usize {
        self.rank()
    }

    fn world(&self) -> usize {
        self.world()
    }

    fn all_reduce(&mut self, tag: Tag, buffer: M) -> Handle {
        self.submit(tag.step, tag.bucket, buffer);
        newest(self)
    }

    fn all_reduce_with_next(&mut self, tag: Tag, buffer: M) -> Handle {
        self.defer(tag.step, tag.bucket, buffer);
        newest(self)
    }

    fn reduce_scatter(&mut self, tag: Tag, buffer: M) -> Handle {
        self.start(Collective::ReduceScatter(Reduction::Sum), tag.step, tag.bucket, buffer);
        newest(self)
    }

    fn all_gather(&mut self, tag: Tag, buffer: M) -> Handle {
        self.start(Collective::AllGather, tag.step, tag.bucket, buffer);
        newest(self)
    }

    fn send(&mut self, to: usize, tag: Tag, buffer: M) -> Handle {
        self.start(Collective::Send { to }, tag.step, tag.bucket, buffer);
        newest(self)
    }

    fn receive(&mut self, from: usize, tag: Tag, buffer: M) -> Handle {
        self.start(Collective::Receive { from }, tag.step, tag.bucket, buffer);
        newest(self)
    }

    fn wait(&mut self, operation: Handle) -> Result<Completed<M>, Failed<M>> {
        assert_eq!(operation, Handle::new(self.waited()), "operations are waited for in their order");
        self.wait()
    }

    fn all_reduce_now(&mut self, step: u64, values: &mut [f32]) -> Result<Transferred, CollectiveError> {
        self.all_reduce_now(step, values)
    }

    fn agree(&mut self, propose: &mut dyn FnMut() -> BucketPlan) -> Result<AgreedPlan, CollectiveError> {
        self.agree(propose)
    }

    fn measure(&mut self) {
        self.measure();
    }

    fn costs(&mut self) -> Option<Costs> {
        self.costs()
    }

    fn set_silence_limits(&mut self, silence: Duration, unacknowledged: Duration) {
        self.set_silence_limits(silence, unacknowledged);
    }

    fn statistics(&self) -> Statistics {
        self.statistics()
    }
}

/// Returns the operation that was begun last.
fn newest<M>(communicator: &Communicator<M>) -> Handle {
    Handle::new(communicator.waited() + communicator.pending() as u64 - 1)
}
