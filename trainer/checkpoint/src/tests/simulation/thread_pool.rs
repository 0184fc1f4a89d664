//! Reuses threads, because a run needs many for a moment each.

use std::{
    cell::RefCell,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

type Errand = Box<dyn FnOnce() + Send>;

thread_local! {
    static IDLE: RefCell<Vec<Sender<Errand>>> = const { RefCell::new(Vec::new()) };
}

/// An errand that a thread works on.
pub(super) struct Given<R> {
    thread: Sender<Errand>,
    result: Receiver<R>,
}

/// Gives work to an idle thread or a new one. The work must not panic.
pub(super) fn give<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Given<R> {
    let thread = IDLE.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
        let (thread, orders) = channel::<Errand>();
        thread::spawn(move || orders.into_iter().for_each(|work| work()));
        thread
    });
    let (answer, result) = channel();
    let work = move || drop(answer.send(work()));
    thread.send(Box::new(work)).expect("it waits for work");
    Given { thread, result }
}

impl<R> Given<R> {
    /// Waits for the result.
    pub(super) fn result(self) -> R {
        let result = self.result.recv().expect("it does not panic");
        IDLE.with_borrow_mut(|idle| idle.push(self.thread));
        result
    }
}
