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

/// A group's sums, formed on a thread of its own while the caller computes, and by the caller once it waits: two threads that
/// hand each other a small sum lose more time than the sum takes.
///
/// `M` is the memory of a bucket: a slice of the gradient arena that the caller lends and gets back summed. Operations
/// are executed one after another in the order of submission, which must be the same on every rank. Dropping it ends
/// the thread and closes the connections; what is pending then is aborted.
pub struct Communicator<M> {
    backend: Backend<M>,
    abort: Abort,
    rank: usize,
    world: usize,
    pending: usize,
    silence: Option<(Duration, Duration)>,
    statistics: Statistics,
}

/// What a communicator has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Operations that ended well.
    pub operations: u64,
    /// Bytes sent by them, headers included.
    pub bytes_sent: u64,
    /// Bytes received by them, headers included.
    pub bytes_received: u64,
    /// The time in which an operation was under way.
    pub busy: Duration,
    /// The time in which the caller waited: communication that computation did not hide. Where an operation stood behind a measurement of
    /// costs, that is in it too, and in none of the others.
    pub exposed: Duration,
}

enum Backend<M> {
    /// A group of one: every sum is formed already.
    Alone(VecDeque<Outcome<M>>),
    Group(GroupThread<M>),
}

struct GroupThread<M> {
    queue: Arc<Queue<M>>,
    /// Holds the values of [`Communicator::all_reduce_now`].
    values: Vec<f32>,
    thread: Option<JoinHandle<()>>,
}

impl<M: AsMut<[f32]> + Send + 'static> Communicator<M> {
    /// Forms the group of `id` with `peers`, the data addresses of all ranks in rank order, and starts its thread. A
    /// group of one has neither thread nor connection.
    ///
    /// # Errors
    /// Those of [`Group::form`], and [`CollectiveError::System`] when the thread cannot be started.
    pub fn form(
        listener: &Listener,
        id: RankId,
        peers: &[SocketAddr],
        limits: Limits,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        Self::over(Group::form(listener, id, peers, limits, abort)?)
    }

    /// A group of one, ended by `abort`.
    pub fn alone(abort: Abort) -> Self {
        Self::new(Backend::Alone(VecDeque::new()), abort, 0, 1)
    }

    /// Drives `group` on a thread of its own; one of one rank needs none. It sums by the newest plan that the group [agreed](Group::agree)
    /// on: the plan's buckets travel in its format; sums with a greater bucket number, and those of [`Communicator::all_reduce_now`], as
    /// they are.
    ///
    /// # Errors
    /// [`CollectiveError::System`] when the thread cannot be started.
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
        Self { backend, abort, rank, world, pending: 0, silence: None, statistics: Statistics::default() }
    }

    /// Hands `memory` over to be summed over all ranks; [`Communicator::wait`] gives it back. Returns at once: whatever
    /// goes wrong is told there.
    ///
    /// # Panics
    /// When [`MAX_PENDING`] operations wait to be waited for, or `bucket` is `u32::MAX`.
    pub fn submit(&mut self, step: u64, bucket: u32, memory: M) {
        self.hand_over(step, bucket, memory, None, true);
    }

    /// As [`Communicator::submit`], for another operation on `memory` than its sum.
    ///
    /// # Panics
    /// As [`Communicator::submit`]; the operation itself panics as that of [`Group`] does, which is passed on to whoever waits;
    /// in a group of one, at once.
    pub fn start(&mut self, collective: Collective, step: u64, bucket: u32, memory: M) {
        self.hand_over(step, bucket, memory, Some(collective), true);
    }

    /// As [`Communicator::submit`], but does not wake the communication thread for it: for what the caller waits for at once, or what
    /// may as well be done together with the next submission.
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
            Backend::Group(group) => group.queue.put(Order::Operation { step, bucket, memory, other }, urgent),
        }
    }

    /// The oldest submitted operation, once it has ended.
    ///
    /// # Errors
    /// [`Failed`], with the memory, when the sum was not formed.
    ///
    /// # Panics
    /// When nothing is pending.
    pub fn wait(&mut self) -> Result<Completed<M>, Failed<M>> {
        assert!(self.pending > 0, "nothing is pending: submit before waiting");
        let started = Instant::now();
        let outcome = match &mut self.backend {
            Backend::Alone(outcomes) => outcomes.pop_front(),
            Backend::Group(group) => Some(group.outcome()),
        };
        self.statistics.exposed += started.elapsed();
        self.pending -= 1;
        let Some(outcome) = outcome else { unreachable!("a group of one holds an outcome for every submission") };
        if let Ok(completed) = &outcome {
            self.statistics.count(completed.transferred);
        }
        outcome
    }

    /// All pending operations in the order of submission, each once it has ended. What is not taken stays pending.
    pub fn wait_all(&mut self) -> impl Iterator<Item = Result<Completed<M>, Failed<M>>> {
        std::iter::from_fn(|| (self.pending > 0).then(|| self.wait()))
    }

    /// Sums a few `values` (a loss, counts, flags) over all ranks, after what is pending, on the caller's thread.
    ///
    /// # Errors
    /// Why the sum was not formed; `values` are then as they were.
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

    /// The plan that rank 0 proposes, on all ranks, which call this at the same place; on the caller's thread, after what is pending. What
    /// is submitted from here on is summed by it. `propose` is called on rank 0 only.
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

    /// Has one of the [`LENGTHS`](crate::LENGTHS) that a fit of [`Costs`] needs summed after what is pending, beside what the caller
    /// computes; all ranks ask for it at the same place. All lengths together take as long as [`Group::measure_costs`]. What is submitted
    /// later tells where it fails, and whoever drops the communicator waits until it has ended.
    pub fn measure(&mut self) {
        if let Backend::Group(group) = &mut self.backend {
            group.queue.put(Order::Measure, true);
        }
    }

    /// What the last [`LENGTHS`](crate::LENGTHS) calls of [`Communicator::measure`] found, the same on all ranks; waits for all that is
    /// pending. `None` before, where the times fit no costs, and in a group of one.
    pub fn costs(&mut self) -> Option<Costs> {
        let Backend::Group(group) = &mut self.backend else { return None };
        group.queue.costs().unwrap_or_else(|panicked| group.pass_on(panicked))
    }

    /// Changes how long the operations submitted from now on may go without a whole frame moving, and without an acknowledgement: see
    /// [`Group::set_silence`].
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
    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Operations submitted and not yet waited for.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// The handle that ends this generation from any thread.
    pub fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    /// What was done so far.
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
            // Its panic was passed on to whoever waited; there is nobody left to tell.
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

    /// An order panics only when the caller's memory, or his choice, does.
    fn pass_on(&mut self, Panicked: Panicked) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => panic!("a communicator is of no use after a panic in it"),
        }
    }
}

impl Statistics {
    fn count(&mut self, transferred: Transferred) {
        let Transferred { bytes_sent, bytes_received, took } = transferred;
        self.operations += 1;
        self.bytes_sent += bytes_sent;
        self.bytes_received += bytes_received;
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
