//! The queue of [`super::Late`]: what was recorded, what was done, and what the host may look at.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::arena::Lease;
use crate::device::{Cpu, Device, Done, Event, Region};
use crate::op::Written;

/// A point in the order of a [`super::Late`] device's operations.
#[derive(Clone)]
pub struct LateEvent {
    shared: Arc<Shared>,
    after: u64,
}

impl LateEvent {
    /// The point behind everything recorded so far.
    pub(super) fn after_all(shared: &Arc<Shared>) -> LateEvent {
        LateEvent { shared: Arc::clone(shared), after: shared.queue().recorded }
    }

    /// The region, once the event has happened.
    pub(super) fn lease(&self, region: Region) -> Lease {
        self.wait();
        self.shared.cpu().host_view(region, Done)
    }
}

impl Event for LateEvent {
    fn wait(&self) {
        let mut queue = self.shared.queue();
        queue.wanted = queue.wanted.max(self.after);
        self.shared.changed.notify_all();
        while queue.done < self.after && !queue.failed {
            queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let failed = queue.failed;
        queue.waited = queue.waited.max(self.after);
        let waited = queue.waited;
        queue.writes.retain(|(_, by)| *by > waited);
        drop(queue);
        assert!(!failed, "an operation of the device panicked");
    }
}

/// How far a [`super::Late`] device is.
#[derive(Debug, Clone)]
pub struct LateProgress {
    shared: Arc<Shared>,
}

impl LateProgress {
    pub(super) fn of(shared: &Arc<Shared>) -> LateProgress {
        LateProgress { shared: Arc::clone(shared) }
    }

    /// Operations recorded so far.
    pub fn recorded(&self) -> u64 {
        self.shared.queue().recorded
    }

    /// Operations done so far: none, until somebody waits.
    pub fn done(&self) -> u64 {
        self.shared.queue().done
    }
}

impl Written {
    fn overlaps(&self, other: &Written) -> bool {
        match (self, other) {
            (Written::Region(one), Written::Region(other)) => one.overlaps(other),
            (Written::Tally(one), Written::Tally(other)) => one == other,
            (Written::Region(_), Written::Tally(_)) | (Written::Tally(_), Written::Region(_)) => false,
        }
    }
}

/// The device's core and its queue, as the host's threads and the runner share them.
pub(super) struct Shared {
    cpu: Mutex<Cpu>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

pub(super) type Operation = Box<dyn FnOnce(&mut Cpu) + Send>;

#[derive(Default)]
struct Queue {
    operations: VecDeque<Operation>,
    /// Who wrote what since the host last waited.
    writes: Vec<(Written, u64)>,
    recorded: u64,
    wanted: u64,
    done: u64,
    waited: u64,
    closed: bool,
    failed: bool,
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared { cpu: Mutex::new(Cpu::new()), queue: Mutex::new(Queue::default()), changed: Condvar::new() }
    }

    /// Appends an operation and what it may write.
    pub(super) fn record(&self, written: impl IntoIterator<Item = Written>, operation: Operation) {
        let mut queue = self.queue();
        queue.recorded += 1;
        let recorded = queue.recorded;
        queue.writes.extend(written.into_iter().map(|written| (written, recorded)));
        queue.operations.push_back(operation);
    }

    /// Panics if the host has not waited for everything that writes `read`.
    pub(super) fn assert_waited_for(&self, read: Written) {
        let queue = self.queue();
        let waited = queue.waited;
        let unseen = queue.writes.iter().find(|(other, by)| *by > waited && other.overlaps(&read)).copied();
        drop(queue);
        if let Some((_, by)) = unseen {
            panic!(
                "the host reads {read:?} in mid-step: operation {by} writes it, but the host has only waited for {waited}"
            );
        }
    }

    /// Lets [`Shared::run`] return.
    pub(super) fn close(&self) {
        self.queue().closed = true;
        self.changed.notify_all();
    }

    /// Runs operations in order, up to the latest that somebody waits for, until closed.
    pub(super) fn run(&self) {
        let _failure = FailureNotice(self);
        let mut queue = self.queue();
        while !queue.closed {
            if queue.done < queue.wanted
                && let Some(operation) = queue.operations.pop_front()
            {
                drop(queue);
                operation(&mut self.cpu());
                queue = self.queue();
                queue.done += 1;
                self.changed.notify_all();
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    pub(super) fn cpu(&self) -> MutexGuard<'_, Cpu> {
        self.cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue();
        f.debug_struct("Queue").field("recorded", &queue.recorded).field("done", &queue.done).finish_non_exhaustive()
    }
}

/// Tells those who wait when the runner leaves by a panic.
struct FailureNotice<'a>(&'a Shared);

impl Drop for FailureNotice<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.queue().failed = true;
            self.0.changed.notify_all();
        }
    }
}
