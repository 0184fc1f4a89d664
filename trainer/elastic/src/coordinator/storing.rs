//! The record is stored by one compare-and-swap at a time, and what follows waits for it. While the store is away, training goes on.

use std::time::Duration;

use super::{Command, Coordinator, Outcome, Phase};
use crate::{Message, Record};

/// Pause before a store that was away is asked again.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// What a swap of the record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Allocate { planned: bool },
    Activate,
    Mark,
    Conclude,
}

impl Coordinator {
    /// Has the record stored. A store that was away just now is left alone: the same is decided again later.
    pub(super) fn swap(&mut self, purpose: Purpose, record: Record) {
        assert!(self.swapping.is_none(), "two swaps at a time: {:?} and {record:?}", self.swapping);
        if self.handled < self.store_again {
            return;
        }
        if let Some(message) = self.unkept.clone() {
            return match purpose {
                Purpose::Conclude => self.conclude(),
                Purpose::Mark => {}
                Purpose::Allocate { .. } | Purpose::Activate => self.give_up(message),
            };
        }
        self.swapping = Some((purpose, record.clone()));
        self.commands.push(Command::Swap(record));
    }

    /// Whether what is being stored changes the group, or ends it.
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

    /// A group that trains goes on, one that was to be formed stands, and what is to be recorded is when the store is back: so is how the
    /// group ended, as another coordinator may have begun the next one.
    pub(super) fn store_is_away(&mut self, now: Duration) {
        let Some((purpose, record)) = self.swapping.take() else { return };
        self.store_again = now + STORE_PAUSE;
        match purpose {
            Purpose::Mark | Purpose::Conclude => self.mark = self.mark.max(record.last_durable_checkpoint),
            Purpose::Activate => self.lose_unseated(record.active),
            Purpose::Allocate { .. } => {}
        }
    }

    /// A record can be neither kept nor read. A group that trains saves its state before it ends.
    pub(super) fn store_failed(&mut self, message: String) {
        let trains = matches!(&self.phase, Phase::Running(running) if !running.is_broken());
        match self.swapping.take() {
            Some((Purpose::Conclude, _)) => self.conclude(),
            Some((Purpose::Mark | Purpose::Allocate { .. }, _)) if trains => {
                let reason = unkept(&message);
                self.unkept = Some(message);
                self.draining = Some(reason.clone());
                self.send_to_all(&Message::Drain { reason });
            }
            _ => self.give_up(message),
        }
    }

    pub(super) fn give_up(&mut self, message: String) {
        self.abort_all(&unkept(&message));
        self.end(Outcome::StoreFailed { message });
    }
}

fn unkept(message: &str) -> String {
    format!("the membership record cannot be kept: {message}")
}
