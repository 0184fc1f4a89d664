//! Stores the record, with one compare-and-swap at a time. The actions that depend on it wait.
//! While the store is away, the training goes on.

use std::time::Duration;

use super::{Command, Coordinator, Outcome, Phase};
use crate::{Message, Record};

/// The pause before the next attempt with a store that was away.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// The purpose of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Allocate { planned: bool },
    Activate,
    Mark,
    Conclude,
}

impl Coordinator {
    /// Requests a swap of the record. A store that was just away gets none: the same decision comes
    /// again later.
    pub(super) fn swap(&mut self, purpose: Purpose, record: Record) {
        assert!(self.swapping.is_none(), "two swaps at the same time: {:?} and {record:?}", self.swapping);
        if self.handled < self.store_again {
            return;
        }
        if let Some(message) = self.record_failure.clone() {
            return match purpose {
                Purpose::Conclude => self.conclude(),
                Purpose::Mark => {}
                Purpose::Allocate { .. } | Purpose::Activate => self.give_up(message),
            };
        }
        self.swapping = Some((purpose, record.clone()));
        self.commands.push(Command::Swap(record));
    }

    /// Returns true if the swap in progress changes or ends the group.
    pub(super) fn is_changing(&self) -> bool {
        self.swapping.as_ref().is_some_and(|(purpose, _)| *purpose != Purpose::Mark)
    }

    pub(super) fn swapped(&mut self, now: Duration) {
        let Some((purpose, record)) = self.swapping.take() else { return };
        self.record = record;
        match purpose {
            Purpose::Allocate { planned } => self.prepare(planned, now),
            Purpose::Activate => self.commit(now),
            Purpose::Mark => {}
            Purpose::Conclude => self.conclude(),
        }
    }

    /// Handles a store that is away. A group that trains goes on, and a new one waits. The swap is
    /// repeated when the store is back, even for the end of the group, because another coordinator
    /// may have started the next one.
    pub(super) fn store_is_away(&mut self, now: Duration) {
        let Some((purpose, record)) = self.swapping.take() else { return };
        self.store_again = now + STORE_PAUSE;
        match purpose {
            Purpose::Mark | Purpose::Conclude => self.mark = self.mark.max(record.last_durable_checkpoint),
            Purpose::Activate => self.lose_unstored(record.active),
            Purpose::Allocate { .. } => {}
        }
    }

    /// Handles a store that failed for good. A group that trains saves its state before it ends.
    pub(super) fn store_failed(&mut self, message: String) {
        let trains = matches!(&self.phase, Phase::Running(running) if !running.is_broken());
        match self.swapping.take() {
            Some((Purpose::Conclude, _)) => self.conclude(),
            Some((Purpose::Mark | Purpose::Allocate { .. }, _)) if trains => {
                let reason = record_failure(&message);
                self.record_failure = Some(message);
                self.draining = Some(reason.clone());
                self.send_to_all(&Message::Drain { reason });
            }
            _ => self.give_up(message),
        }
    }

    pub(super) fn give_up(&mut self, message: String) {
        self.abort_all(&record_failure(&message));
        self.end(Outcome::StoreFailed { message });
    }
}

fn record_failure(message: &str) -> String {
    format!("the membership record cannot be stored: {message}")
}
