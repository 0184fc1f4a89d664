//! The micro-batches that are ready, between the thread that prepares them and the training that
//! takes them.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{Batch, Buffers, QUEUED_BATCHES};

/// Micro-batches are counted from 0, in the order in which the training takes them.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    state: Mutex<State>,
    /// There is room for another micro-batch, or the shelf is closed.
    changed: Condvar,
    /// A micro-batch is ready, or the shelf is closed.
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Those that follow the ones that were taken.
    ready: VecDeque<Batch>,
    /// How many the training has taken, or prepared itself.
    taken: u64,
    /// Buffers of batches that were used.
    spare: Vec<Buffers>,
    closed: bool,
}

impl State {
    /// Which micro-batch the thread prepares next that has prepared those up to `next`; `None`
    /// while enough are ready.
    fn wanted(&self, next: u64) -> Option<u64> {
        (self.ready.len() < QUEUED_BATCHES).then_some(next.max(self.taken))
    }
}

impl Shelf {
    /// Waits until the next micro-batch is ready, or nobody prepares any more.
    pub(super) fn await_next(&self) {
        let mut state = self.lock();
        while state.ready.is_empty() && !state.closed {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the next micro-batch. `None` where it is not ready: then the training prepares it.
    pub(super) fn take(&self) -> Option<Batch> {
        let mut state = self.lock();
        state.taken += 1;
        let batch = state.ready.pop_front();
        // The thread is woken for several at once: to wake it costs more than a small micro-batch.
        if state.ready.len() == QUEUED_BATCHES / 2 {
            self.changed.notify_one();
        }
        batch
    }

    /// The number of micro-batches that are ready.
    pub(super) fn ready(&self) -> usize {
        self.lock().ready.len()
    }

    /// Puts a micro-batch on the shelf, unless the training has prepared it meanwhile.
    pub(super) fn put(&self, index: u64, batch: Batch) {
        let mut state = self.lock();
        if index >= state.taken {
            state.ready.push_back(batch);
            drop(state);
            self.arrived.notify_one();
        } else {
            // It gives its buffers back to this shelf.
            drop(state);
            drop(batch);
        }
    }

    /// Waits until there is room, and tells which micro-batch is to be prepared by a thread that
    /// has prepared those up to `next`. `None` once the shelf is closed.
    pub(super) fn await_room(&self, next: u64) -> Option<u64> {
        let mut state = self.lock();
        while !state.closed {
            if let Some(wanted) = state.wanted(next) {
                return Some(wanted);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Buffers for a micro-batch.
    pub(super) fn buffers(&self) -> Buffers {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Keeps buffers for another micro-batch, if those that are kept do not suffice.
    pub(super) fn give_back(&self, buffers: Buffers) {
        let mut state = self.lock();
        if state.spare.len() < QUEUED_BATCHES + 2 {
            state.spare.push(buffers);
        }
    }

    /// Nobody takes or prepares any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let unwanted = std::mem::take(&mut state.ready);
        drop(state);
        self.changed.notify_one();
        self.arrived.notify_one();
        drop(unwanted);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tally;

    fn batch(label: u32) -> Batch {
        let (images, group_ends, keys) = (Vec::new(), Vec::new(), Vec::new());
        let (labels, taken) = (vec![label], Tally::default());
        Batch { images, labels, group_ends, keys, importance: 1.0, samples: 1, taken, home: None }
    }

    #[test]
    fn the_thread_passes_over_what_the_training_has_prepared_itself() {
        let shelf = Shelf::default();
        assert_eq!(shelf.await_room(0), Some(0));
        assert!((0..3).all(|_| shelf.take().is_none()));
        // The thread was still at the first one.
        shelf.put(0, batch(0));
        assert_eq!(shelf.await_room(1), Some(3));
        shelf.put(3, batch(3));
        assert_eq!(shelf.take().map(|batch| batch.labels[0]), Some(3));
    }

    #[test]
    fn who_waits_for_a_micro_batch_goes_on_when_it_arrives_or_the_shelf_closes() {
        let shelf = Shelf::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                shelf.await_next();
                shelf.take().map(|batch| batch.labels[0])
            });
            shelf.put(0, batch(7));
            assert_eq!(waiting.join().expect("no panic"), Some(7));
            let waiting = scope.spawn(|| {
                shelf.await_next();
                shelf.take().is_none()
            });
            shelf.close();
            assert!(waiting.join().expect("no panic"));
        });
    }

    #[test]
    fn the_thread_goes_on_behind_what_is_ready() {
        let shelf = Shelf::default();
        (0..2).for_each(|index| shelf.put(index, batch(index as u32)));
        assert_eq!(shelf.await_room(2), Some(2));
        let enough = State { ready: (0..QUEUED_BATCHES as u32).map(batch).collect(), ..State::default() };
        assert_eq!(enough.wanted(QUEUED_BATCHES as u64), None);
    }
}
