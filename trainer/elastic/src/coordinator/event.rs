//! What happens to a coordinator, and what it has the shell do about it.

use std::time::Duration;

use crate::{Active, Digest, MemberId, Message, Record, message::FrameError};

/// A control connection, as the shell numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly all events are messages")]
pub enum Event {
    /// A message arrived.
    Received(Connection, Message),
    /// Something else arrived.
    Garbled(Connection, FrameError),
    /// The connection is gone, and why.
    Closed(Connection, String),
    /// The record that was asked for is stored.
    Swapped,
    /// Another coordinator changed the record.
    Conflict,
    /// The store was out of reach for long. It may have the record that was asked for, or get it yet.
    StoreAway,
    /// The store fails for good.
    StoreFailed(String),
    /// The process is asked to end.
    Stop,
    /// Time has passed.
    Tick,
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send a message.
    Send(Connection, Message),
    /// Close a connection after all was sent.
    Close(Connection),
    /// Replace the record by compare-and-swap and answer [`Event::Swapped`], [`Event::Conflict`], [`Event::StoreAway`] or
    /// [`Event::StoreFailed`]; one at a time.
    Swap(Record),
    /// Pass a member's progress on.
    Publish {
        /// Who reports.
        member: MemberId,
        /// Optimiser steps that are done.
        step: u64,
        /// The worker's report.
        payload: Vec<u8>,
    },
    /// Tell that the membership changed.
    Changed(Change),
    /// Come back with [`Event::Tick`] at this time unless something happens before; replaces the former time.
    WakeAt(Duration),
    /// The coordinator's work is over.
    End(Outcome),
}

/// How one generation followed another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new membership.
    pub active: Active,
    /// Pods that belong to it and did not belong to the one before.
    pub joined: Vec<String>,
    /// Pods that went as planned, and why.
    pub left: Vec<(String, String)>,
    /// Pods that were lost, and what was seen.
    pub lost: Vec<(String, String)>,
    /// What failed although nobody was lost.
    pub broken: Option<String>,
    /// From the moment when a loss was seen, or a planned change began, to the recorded membership.
    pub took: Duration,
}

impl Change {
    /// What is known of a membership that another coordinator has recorded.
    pub(crate) fn found(active: Active) -> Self {
        let broken = Some("its coordinator went before it told why".to_owned());
        Self { active, joined: Vec::new(), left: Vec::new(), lost: Vec::new(), broken, took: Duration::ZERO }
    }
}

/// How a group ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All members finished with the same state.
    Finished {
        /// Optimiser steps that are done.
        step: u64,
        /// Digest of the final state.
        digest: Digest,
        /// The last report of the lowest rank that gave one.
        payload: Vec<u8>,
    },
    /// All members stopped after a step, as was asked.
    Drained {
        /// Optimiser steps that are done.
        step: u64,
    },
    /// The job cannot succeed as it is described.
    Fatal {
        /// Who said so.
        member: MemberId,
        /// What it said.
        message: String,
    },
    /// What the members hold is of no use; the job can go on from its newest checkpoint.
    Diverged {
        /// Who said so, or is one of those that differ.
        member: MemberId,
        /// What differs, and what to do.
        message: String,
    },
    /// Another coordinator took over; the group goes on with that one.
    Superseded,
    /// Nobody was heard for [`DESERTED_AFTER`](super::DESERTED_AFTER); the group goes on, with another coordinator.
    Deserted,
    /// Asked to stop before the group drained; it can go on with another coordinator.
    Stopped,
    /// The store failed for good.
    StoreFailed {
        /// Why.
        message: String,
    },
}
