mod operations;

use std::cell::OnceCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use crate::communicator::MAX_PENDING;
use crate::group::{Group, Tag, Transferred};
use crate::outcome::{Completed, Failed, Outcome};
use crate::seat::Seat;
use crate::waiting::Waiting;
use crate::{Abort, CollectiveError};

/// A group's operations in the background: each is started with memory of any element type, which it owns until [`Handle::wait`] gives
/// it back, and is done in place, on a thread that the group has for itself, while the caller computes.
///
/// Operations are done one after another in the order in which they were started, which must be the same on all ranks, whatever the
/// order in which their handles are waited for. A handle may be dropped: the operation is done all the same, as the other ranks count
/// on it. Up to [`MAX_PENDING`] operations wait for their turn; starting one more waits for room. Starting one allocates what it is carried
/// to the thread in; a [`Communicator`](crate::Communicator), which knows its one operation, does not.
///
/// After the first operation that fails all later ones fail for its cause. One that panics passes that on to whoever waits for it, and
/// aborts the group, of which nobody knows what it left behind.
///
/// Dropping it ends the thread and closes the connections; what is pending then is aborted, and its handles say so.
///
/// ```
/// use lockstep_collective::algorithm::Algorithm;
/// use lockstep_collective::{Abort, Background, CollectiveError, Group, JobId, Limits, Listener, Reduction, Seat, Tag};
/// use std::net::Ipv4Addr;
///
/// # fn main() -> Result<(), CollectiveError> {
/// let listener = Listener::bind(Ipv4Addr::LOCALHOST.into(), 0)?;
/// let seat = Seat { job: JobId([7; 16]), generation: 1, rank: 0 };
/// // The addresses of all ranks: here a group of one.
/// let peers = [listener.address()];
/// let group = Group::form(&listener, seat, &peers, Limits::default(), &Abort::new())?;
/// let mut background = Background::over(group)?;
/// let gradients = vec![0.5_f64; 1000];
/// let sum = background.all_reduce(Algorithm::Ring, Tag { step: 1, bucket: 0 }, gradients, Reduction::Sum);
/// let counts = background.all_gather(Tag { step: 1, bucket: 1 }, [3_i64]);
/// // Whatever needs neither goes on here.
/// assert_eq!(counts.wait()?.memory, [3]);
/// assert_eq!(sum.wait()?.memory, [0.5; 1000]);
/// let group = background.into_group()?;
/// # assert_eq!(group.world(), 1);
/// # Ok(())
/// # }
/// ```
pub struct Background {
    place: Place,
    abort: Abort,
    seat: Seat,
    world: usize,
    pending: Arc<AtomicUsize>,
}

/// An operation that was started on a [`Background`].
pub struct Handle<M> {
    ended: Receiver<Ended<M>>,
    /// Taken out of `ended` by [`Handle::is_done`].
    seen: OnceCell<Ended<M>>,
}

enum Place {
    /// A group of one: every operation is done as it is started.
    Alone(Box<Driver>),
    Thread(Worker),
}

/// What came of an operation, or what it panicked with.
type Ended<M> = std::thread::Result<Outcome<M>>;

type Order = Box<dyn FnOnce(&mut Driver) + Send>;

impl Background {
    /// Drives `group` on a thread of its own; one of one rank needs none.
    ///
    /// # Errors
    /// [`CollectiveError::System`] when the thread cannot be started.
    pub fn over(group: Group) -> Result<Self, CollectiveError> {
        let (abort, seat, world) = (group.abort_handle(), group.seat(), group.world());
        let pending = Arc::new(AtomicUsize::new(0));
        let driver = Driver { group, broken: None };
        let place = if world == 1 {
            Place::Alone(Box::new(driver))
        } else {
            Place::Thread(Worker::start(driver, abort.clone(), Arc::clone(&pending))?)
        };
        Ok(Self { place, abort, seat, world, pending })
    }

    /// Has `operation` done on the group and `memory` after all that was started before.
    fn start<M: Send + 'static>(
        &mut self,
        tag: Tag,
        memory: M,
        operation: impl FnOnce(&mut Group, &mut M) -> Result<Transferred, CollectiveError> + Send + 'static,
    ) -> Handle<M> {
        let (end, ended) = sync_channel(1);
        let pending = Arc::clone(&self.pending);
        pending.fetch_add(1, Ordering::Relaxed);
        let order = move |driver: &mut Driver| {
            let outcome = driver.carry_out(tag, memory, operation);
            // Before it is told of, so that whoever has waited for everything finds nothing pending.
            pending.fetch_sub(1, Ordering::Relaxed);
            // Where nobody waits for it, its memory goes.
            let _ = end.send(outcome);
        };
        match &mut self.place {
            Place::Alone(driver) => order(driver),
            Place::Thread(worker) => worker.put(Box::new(order)),
        }
        Handle { ended, seen: OnceCell::new() }
    }

    /// The group, once all pending operations have ended.
    ///
    /// # Errors
    /// The cause for which an operation failed; the connections are closed then.
    ///
    /// # Panics
    /// With what memory panicked with that was dropped because nobody waited for it.
    pub fn into_group(self) -> Result<Group, CollectiveError> {
        let Driver { group, broken } = match self.place {
            Place::Alone(driver) => *driver,
            Place::Thread(worker) => worker.finish(),
        };
        match broken {
            None => Ok(group),
            Some(cause) => Err(cause),
        }
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.seat.rank
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Operations started and not yet ended.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// The handle that ends this generation from any thread.
    pub fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }
}

impl<M> Handle<M> {
    /// The operation's memory, once it has ended. Ends when it does: within the silence limit of the group, or at once after an abort.
    ///
    /// # Errors
    /// [`Failed`], with the memory, when there is no result.
    ///
    /// # Panics
    /// With what the operation panicked with; when the memory of an earlier one, which nobody waited for, panicked as it was dropped.
    pub fn wait(self) -> Result<Completed<M>, Failed<M>> {
        match self.seen.into_inner().map_or_else(|| self.ended.recv(), Ok) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(RecvError) => panic!("{THREAD_GONE}"),
        }
    }

    /// Whether [`Handle::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        if self.seen.get().is_some() {
            return true;
        }
        match self.ended.try_recv() {
            Ok(ended) => self.seen.set(ended).is_ok(),
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => true,
        }
    }
}

/// Only memory that nobody waits for any more can do that.
const THREAD_GONE: &str = "the thread of this operation has panicked in dropping the memory of another one";

/// The thread and what it has yet to do.
struct Worker {
    /// Both until it is told to end.
    running: Option<(SyncSender<Order>, JoinHandle<Driver>)>,
    abort: Abort,
    pending: Arc<AtomicUsize>,
    /// How the group waits for peers on its caller's thread.
    waiting: Waiting,
}

impl Worker {
    fn start(mut driver: Driver, abort: Abort, pending: Arc<AtomicUsize>) -> Result<Self, CollectiveError> {
        let (rank, waiting) = (driver.group.seat().rank, driver.group.waiting());
        // The core belongs to what the caller computes.
        driver.group.set_waiting(Waiting::Block);
        let (orders, given) = sync_channel::<Order>(MAX_PENDING);
        let work = move || {
            given.into_iter().for_each(|order| order(&mut driver));
            driver
        };
        let thread = std::thread::Builder::new()
            .name(format!("background-{rank}"))
            .spawn(work)
            .map_err(|source| CollectiveError::system("start the background thread", source))?;
        Ok(Self { running: Some((orders, thread)), abort, pending, waiting })
    }

    fn put(&self, order: Order) {
        if let Some((orders, _)) = &self.running {
            // To a thread that is gone; who waits for it is told so.
            let _ = orders.send(order);
        }
    }

    fn finish(mut self) -> Driver {
        let Some((orders, thread)) = self.running.take() else { unreachable!("it is told to end once") };
        // The thread ends where there are no more.
        drop(orders);
        let mut driver = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        driver.group.set_waiting(self.waiting);
        driver
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some((orders, thread)) = self.running.take() else { return };
        if self.pending.load(Ordering::Relaxed) > 0 {
            self.abort.abort("the group's background was dropped with operations pending");
        }
        drop(orders);
        // Whoever waits is told of its panic; there is nobody to tell here.
        let _ = thread.join();
    }
}

/// Does operations on the group until one has failed.
struct Driver {
    group: Group,
    /// The first failure; all later operations fail for its cause.
    broken: Option<CollectiveError>,
}

impl Driver {
    fn carry_out<M>(
        &mut self,
        Tag { step, bucket }: Tag,
        mut memory: M,
        operation: impl FnOnce(&mut Group, &mut M) -> Result<Transferred, CollectiveError>,
    ) -> Ended<M> {
        if let Some(cause) = &self.broken {
            return Ok(Err(Failed { step, bucket, memory, error: cause.clone() }));
        }
        // Nobody sees what a panic leaves of the group: no operation is done on it after that.
        let ended = catch_unwind(AssertUnwindSafe(|| operation(&mut self.group, &mut memory)));
        match &ended {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.broken = Some(error.clone()),
            Err(_) => {
                let abort = self.group.abort_handle();
                abort.abort(format!("the operation on bucket {bucket} of step {step} panicked"));
                self.broken = abort.check().err();
            }
        }
        Ok(match ended? {
            Ok(transferred) => Ok(Completed { step, bucket, memory, transferred }),
            Err(error) => Err(Failed { step, bucket, memory, error }),
        })
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background")
            .field("seat", &self.seat)
            .field("world", &self.world)
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

impl<M> fmt::Debug for Handle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
