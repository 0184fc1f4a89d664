use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::limits::{Limits, MAX_PENDING};
use crate::listener::Listener;
use crate::outcome::{Completed, Failed, Outcome, Transferred};
use crate::queue::{Order, Panicked, Queue};
use crate::rank_id::RankId;
use crate::tag::{NOW, Tag};
use crate::{Abort, AgreedPlan, BucketPlan, Collective, CollectiveError, Costs};

/// A group's sums on a thread of its own while the caller computes.
///
/// Once the caller waits, it forms the sums itself, because two threads that hand each other a
/// small sum lose more time than the sum takes.
///
/// `M` is the memory of a bucket: a slice of the gradient arena that the caller lends and gets back
/// summed. Operations run one after another in the order of submission, which must be the same on
/// every rank. Dropping the communicator ends the thread, closes the connections and aborts pending
/// operations.
pub struct Communicator<M> {
    backend: Backend<M>,
    /// Completes memory just before it is summed.
    complete: fn(&mut M),
    abort: Abort,
    rank: usize,
    world: usize,
    pending: usize,
    /// The number of operations that were waited for.
    waited: u64,
    silence: Option<(Duration, Duration)>,
    statistics: Statistics,
}

/// Totals of a communicator since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Operations that ended well.
    pub operations: u64,
    /// Bytes that these operations sent, headers included.
    pub bytes_sent: u64,
    /// Bytes that these operations received, headers included.
    pub bytes_received: u64,
    /// Bytes that they reduced through shared memory.
    pub bytes_through_memory: u64,
    /// The time in which an operation was under way.
    pub busy: Duration,
    /// The time in which the caller waited, because computation did not hide the communication. It
    /// includes a measurement of costs that an operation had to wait for; the other totals do not.
    pub exposed: Duration,
}

enum Backend<M> {
    /// A group of one: every sum is formed already.
    Alone(VecDeque<Outcome<M>>),
    Group(GroupThread<M>),
}

struct GroupThread<M> {
    queue: Arc<Queue<M>>,
    /// Room for the values of [`Communicator::all_reduce_now`].
    values: Vec<f32>,
    thread: Option<JoinHandle<()>>,
}

impl<M: AsMut<[f32]> + Send + 'static> Communicator<M> {
    /// Forms the group of `id` with `peers` and starts its thread. `peers` are the data addresses
    /// of all ranks in rank order. A group of one has neither thread nor connection.
    ///
    /// # Errors
    /// The errors of [`Group::form`], and [`CollectiveError::System`] if the thread cannot be
    /// started.
    pub fn form(
        listener: &Listener,
        id: RankId,
        peers: &[SocketAddr],
        limits: Limits,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        Self::over(Group::form(listener, id, peers, limits, abort)?)
    }

    /// Returns a group of one that `abort` ends.
    pub fn alone(abort: Abort) -> Self {
        Self::new(Backend::Alone(VecDeque::new()), abort, 0, 1)
    }

    /// Drives `group` on a thread of its own, which a group of one does not need.
    ///
    /// Sums follow the newest plan on which the group [agreed](Group::agree). The plan's buckets
    /// travel in its format. Sums with a greater bucket number, and those of
    /// [`Communicator::all_reduce_now`], travel as `f32`.
    ///
    /// # Errors
    /// [`CollectiveError::System`] if the thread cannot be started.
    pub fn over(group: Group) -> Result<Self, CollectiveError> {
        let (abort, rank, world) = (group.abort_handle(), group.id().rank, group.world());
        if world == 1 {
            return Ok(Self::alone(abort));
        }
        let queue = Arc::new(Queue::new(group));
        let worked_off = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name(format!("collective-{rank}"))
            .spawn(move || worked_off.work())
            .map_err(|source| CollectiveError::system("start the communication thread", source))?;
        let group = GroupThread { queue, values: Vec::new(), thread: Some(thread) };
        Ok(Self::new(Backend::Group(group), abort, rank, world))
    }

    fn new(backend: Backend<M>, abort: Abort, rank: usize, world: usize) -> Self {
        let (complete, statistics) = (|_: &mut M| (), Statistics::default());
        Self { backend, complete, abort, rank, world, pending: 0, waited: 0, silence: None, statistics }
    }

    /// Calls `complete` on the memory of each later operation, just before the operation and on the
    /// thread that carries it out. A group of one never calls it: it sends nothing.
    #[must_use]
    pub fn completing(mut self, complete: fn(&mut M)) -> Self {
        self.complete = complete;
        self
    }

    /// Hands `memory` over to be summed over all ranks, and returns at once. [`Communicator::wait`]
    /// gives the memory back and reports failures.
    ///
    /// # Panics
    /// If [`MAX_PENDING`] operations have not been waited for, or `bucket` is `u32::MAX`.
    pub fn submit(&mut self, step: u64, bucket: u32, memory: M) {
        self.hand_over(step, bucket, memory, None, true);
    }

    /// Hands `memory` over as [`Communicator::submit`] does, but for `collective` instead of a sum.
    ///
    /// # Panics
    /// As [`Communicator::submit`]. A panic of the operation itself reaches the caller that waits
    /// for it; in a group of one it happens at once.
    pub fn start(&mut self, collective: Collective, step: u64, bucket: u32, memory: M) {
        self.hand_over(step, bucket, memory, Some(collective), true);
    }

    /// Hands `memory` over as [`Communicator::submit`] does, without waking the communication
    /// thread. It suits an operation that the caller waits for at once, or one that can run with
    /// the next submission.
    ///
    /// # Panics
    /// As [`Communicator::submit`].
    pub fn defer(&mut self, step: u64, bucket: u32, memory: M) {
        self.hand_over(step, bucket, memory, None, false);
    }

    fn hand_over(&mut self, step: u64, bucket: u32, mut memory: M, other: Option<Collective>, urgent: bool) {
        assert!(
            self.pending < MAX_PENDING,
            "{MAX_PENDING} operations are pending: wait for them before submitting more"
        );
        assert!(bucket != NOW, "bucket {bucket} is reserved");
        if let (Backend::Alone(_), Some(other)) = (&self.backend, other) {
            other.alone(memory.as_mut());
        }
        self.pending += 1;
        match &mut self.backend {
            Backend::Alone(outcomes) => outcomes.push_back(match self.abort.check() {
                Ok(()) => Ok(Completed { step, bucket, memory, transferred: Transferred::default() }),
                Err(error) => Err(Failed { step, bucket, memory, error }),
            }),
            Backend::Group(group) => {
                let complete = self.complete;
                group.queue.put(Order::Operation { step, bucket, memory, complete, other }, urgent);
            }
        }
    }

    /// Waits for the oldest submitted operation and returns it.
    ///
    /// # Errors
    /// [`Failed`], with the memory, if the sum was not formed.
    ///
    /// # Panics
    /// If nothing is pending.
    pub fn wait(&mut self) -> Result<Completed<M>, Failed<M>> {
        assert!(self.pending > 0, "nothing is pending: submit before waiting");
        let started = Instant::now();
        let outcome = match &mut self.backend {
            Backend::Alone(outcomes) => outcomes.pop_front(),
            Backend::Group(group) => Some(group.outcome()),
        };
        self.statistics.exposed += started.elapsed();
        self.pending -= 1;
        self.waited += 1;
        let Some(outcome) = outcome else { unreachable!("a group of one holds an outcome for every submission") };
        if let Ok(completed) = &outcome {
            self.statistics.count(completed.transferred);
        }
        outcome
    }

    /// Waits for each pending operation in the order of submission. Operations that are not taken
    /// stay pending.
    pub fn wait_all(&mut self) -> impl Iterator<Item = Result<Completed<M>, Failed<M>>> {
        std::iter::from_fn(|| (self.pending > 0).then(|| self.wait()))
    }

    /// Sums a few `values` (a loss, counts, flags) over all ranks on the caller's thread, after the
    /// pending operations.
    ///
    /// # Errors
    /// The reason why the sum was not formed; `values` are then unchanged.
    pub fn all_reduce_now(&mut self, step: u64, values: &mut [f32]) -> Result<Transferred, CollectiveError> {
        self.abort.check()?;
        let Backend::Group(group) = &mut self.backend else { return Ok(Transferred::default()) };
        let started = Instant::now();
        let outcome = group.all_reduce_now(step, values);
        self.statistics.exposed += started.elapsed();
        let transferred = outcome?;
        self.statistics.count(transferred);
        Ok(transferred)
    }

    /// Returns the plan of rank 0 on all ranks, which must all call this at the same point. It runs
    /// on the caller's thread, after the pending operations. Later submissions are summed by this
    /// plan. `propose` is called on rank 0 only.
    ///
    /// # Errors
    /// As [`Group::agree`].
    ///
    /// # Panics
    /// As [`Group::agree`].
    pub fn agree(&mut self, propose: impl FnOnce() -> BucketPlan) -> Result<AgreedPlan, CollectiveError> {
        self.abort.check()?;
        let Backend::Group(group) = &mut self.backend else { return Ok(AgreedPlan::alone(propose())) };
        let started = Instant::now();
        let agreed = group.queue.agree_now(propose).unwrap_or_else(|panicked| group.pass_on(panicked));
        self.statistics.exposed += started.elapsed();
        agreed
    }

    /// Sums one of the [`LENGTHS`](crate::LENGTHS) that a fit of [`Costs`] needs, while the caller
    /// computes. It follows the pending operations, and all ranks must ask for it at the same
    /// point. All lengths together take as long as [`Group::measure_costs`]. The next submission
    /// reports a failure. Dropping the communicator waits for the end of the measurement.
    pub fn measure(&mut self) {
        if let Backend::Group(group) = &mut self.backend {
            group.queue.put(Order::Measure, true);
        }
    }

    /// Returns the costs that the last [`LENGTHS`](crate::LENGTHS) calls of
    /// [`Communicator::measure`] found, the same on all ranks. It waits for the pending operations.
    /// Returns `None` before that, if the times fit no costs, and in a group of one.
    pub fn costs(&mut self) -> Option<Costs> {
        let Backend::Group(group) = &mut self.backend else { return None };
        group.queue.costs().unwrap_or_else(|panicked| group.pass_on(panicked))
    }

    /// Changes how long later operations may go without a whole frame, and without an
    /// acknowledgement. See [`Group::set_silence`].
    pub fn set_silence_limits(&mut self, silence: Duration, unacknowledged: Duration) {
        if self.silence.replace((silence, unacknowledged)) == Some((silence, unacknowledged)) {
            return;
        }
        if let Backend::Group(group) = &mut self.backend {
            group.queue.put(Order::Silence(silence, unacknowledged), false);
        }
    }
}

impl<M> Communicator<M> {
    /// Returns this process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Returns the number of operations that were submitted and not yet waited for.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Returns the number of operations that were waited for.
    pub(crate) fn waited(&self) -> u64 {
        self.waited
    }

    /// Returns the handle that ends this generation from any thread.
    pub fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    /// Returns the totals so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }
}

impl<M> Drop for Communicator<M> {
    fn drop(&mut self) {
        let Backend::Group(group) = &mut self.backend else { return };
        if self.pending > 0 {
            self.abort.abort("the communicator was dropped with operations pending");
        }
        group.queue.close();
        if let Some(thread) = group.thread.take() {
            // The panic has already reached the caller that waited.
            let _ = thread.join();
        }
    }
}

impl<M: AsMut<[f32]>> GroupThread<M> {
    fn outcome(&mut self) -> Outcome<M> {
        self.queue.outcome().unwrap_or_else(|panicked| self.pass_on(panicked))
    }

    fn all_reduce_now(&mut self, step: u64, values: &mut [f32]) -> Result<Transferred, CollectiveError> {
        let mut summed = std::mem::take(&mut self.values);
        summed.clear();
        summed.extend_from_slice(values);
        let outcome = self.queue.sum_now(Tag { step, bucket: NOW }, &mut summed);
        let transferred = outcome.unwrap_or_else(|panicked| self.pass_on(panicked))?;
        values.copy_from_slice(&summed);
        self.values = summed;
        Ok(transferred)
    }

    /// Passes a panic on. An order panics only if the caller's memory or proposal does.
    fn pass_on(&mut self, Panicked: Panicked) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => panic!("a communicator does not work after a panic in it"),
        }
    }
}

impl Statistics {
    fn count(&mut self, transferred: Transferred) {
        let Transferred { bytes_sent, bytes_received, bytes_through_memory, took } = transferred;
        self.operations += 1;
        self.bytes_sent += bytes_sent;
        self.bytes_received += bytes_received;
        self.bytes_through_memory += bytes_through_memory;
        self.busy += took;
    }
}

impl<M> fmt::Debug for Communicator<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank)
            .field("world", &self.world)
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}
