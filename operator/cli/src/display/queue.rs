//! The queue between the callers of the display and the thread that writes.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use lockstep_launch::Progress;

/// If more items wait, only the newest of several similar reports is kept.
const FEW: usize = 100;
/// The most items that wait if a terminal is blocked for hours. Beyond that, the oldest is dropped.
const MAX_WAITING: usize = 10_000;

/// Something to show.
#[derive(Debug, PartialEq)]
pub(super) enum Item {
    Phase(String),
    Note(String),
    Progress(Box<Progress>),
}

/// Takes items in while nothing can be shown.
#[derive(Debug, Default)]
pub(super) struct DisplayQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<Item>,
    /// The newest phase that was put in.
    phase: Option<String>,
    is_closed: bool,
}

impl DisplayQueue {
    pub(super) fn put(&self, shown: Item) {
        let mut state = self.state();
        match &shown {
            Item::Phase(phase) if state.phase.as_ref() == Some(phase) => return,
            Item::Phase(phase) => state.phase = Some(phase.clone()),
            Item::Progress(next) if state.waiting.len() > FEW => {
                let repeats = |last: &mut Item| matches!(last, Item::Progress(last) if is_as_before(last, next));
                state.waiting.pop_back_if(repeats);
            }
            Item::Progress(_) | Item::Note(_) => {}
        }
        if state.waiting.len() == MAX_WAITING {
            state.waiting.pop_front();
        }
        state.waiting.push_back(shown);
        self.changed.notify_one();
    }

    /// Closes the queue: no more items come.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits for the next item. Returns `None` after the last one.
    pub(super) fn take(&self) -> Option<Item> {
        let mut state = self.state();
        loop {
            if let Some(shown) = state.waiting.pop_front() {
                return Some(shown);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if `next` earns no line of its own after `last`.
fn is_as_before(last: &Progress, next: &Progress) -> bool {
    last.accuracy_step == next.accuracy_step
        && last.damaged_checkpoint == next.damaged_checkpoint
        && last.short_grace == next.short_grace
        && last.unsaved.as_ref().map(|unsaved| unsaved.waits) == next.unsaved.as_ref().map(|unsaved| unsaved.waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: u64, accuracy_step: Option<u64>) -> Item {
        Item::Progress(Box::new(Progress { step, accuracy_step, ..Progress::default() }))
    }

    #[test]
    fn a_long_queue_keeps_every_note_and_the_newest_of_similar_reports() {
        let note = || Item::Note("lost".to_owned());
        let phase = || Item::Phase("training".to_owned());
        let all = || [phase(), at(1, None), phase(), at(2, None), note(), at(3, None), at(4, Some(4)), at(5, Some(4))];
        let few = vec![phase(), at(1, None), at(2, None), note(), at(3, None), at(4, Some(4)), at(5, Some(4))];
        let much = vec![phase(), at(2, None), note(), at(3, None), at(5, Some(4))];
        for (before, expected) in [(0, few), (FEW, much)] {
            let queue = DisplayQueue::default();
            let notes = (0..before).map(|_| note());
            notes.chain(all()).for_each(|shown| queue.put(shown));
            queue.close();
            let shown: Vec<Item> = std::iter::from_fn(|| queue.take()).collect();
            assert_eq!(shown[before..], expected);
        }
    }
}
