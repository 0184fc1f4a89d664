//! The events and the commands of a coordinator.

use std::time::Duration;

use crate::{Active, Digest, MemberId, Message, Record, message::FrameError};

/// The number that the shell gives to a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// An event for the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly all events are messages")]
pub enum Event {
    /// A message arrived.
    Received(ConnectionId, Message),
    /// Bytes arrived that are not a message.
    Garbled(ConnectionId, FrameError),
    /// The connection closed, with the cause.
    Closed(ConnectionId, String),
    /// The requested record is stored.
    Swapped,
    /// Another coordinator changed the record.
    Conflict,
    /// The store was out of reach for long. It may have stored the requested record, or may store
    /// it later.
    StoreAway,
    /// The store failed for good.
    StoreFailed(String),
    /// The process is asked to end.
    Stop,
    /// Time has passed.
    Tick,
}

/// A command for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Sends a message.
    Send(ConnectionId, Message),
    /// Closes a connection after everything was sent.
    Close(ConnectionId),
    /// Replaces the record by compare-and-swap, one swap at a time. The answer is
    /// [`Event::Swapped`], [`Event::Conflict`], [`Event::StoreAway`] or [`Event::StoreFailed`].
    Swap(Record),
    /// Publishes the progress of a member.
    Publish {
        /// The member that reports.
        member: MemberId,
        /// The number of optimiser steps done.
        step: u64,
        /// The worker's report.
        payload: Vec<u8>,
    },
    /// Announces a change of the membership.
    Changed(Change),
    /// Requests [`Event::Tick`] at this time unless another event comes first. It replaces the
    /// former time.
    WakeAt(Duration),
    /// Ends the work of this coordinator.
    End(Outcome),
}

/// The difference between two consecutive memberships.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new membership.
    pub active: Active,
    /// The pods that belong to it and did not belong to the previous one.
    pub joined: Vec<String>,
    /// The pods that left as planned, each with the cause.
    pub left: Vec<(String, String)>,
    /// The pods that were lost, each with the observation.
    pub lost: Vec<(String, String)>,
    /// The failure, if the group broke although no member was lost.
    pub broken: Option<String>,
    /// The time from the observed loss, or the start of a planned change, to the recorded
    /// membership.
    pub took: Duration,
}

impl Change {
    /// Returns the known facts about a membership that another coordinator recorded.
    pub(crate) fn found(active: Active) -> Self {
        let broken = Some("its coordinator ended before it reported the cause".to_owned());
        Self { active, joined: Vec::new(), left: Vec::new(), lost: Vec::new(), broken, took: Duration::ZERO }
    }
}

/// The end of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All members finished with the same state.
    Finished {
        /// The number of optimiser steps done.
        step: u64,
        /// The digest of the final state.
        digest: Digest,
        /// The last report of the lowest rank that sent one.
        payload: Vec<u8>,
    },
    /// All members stopped after a step as requested.
    Drained {
        /// The number of optimiser steps done.
        step: u64,
    },
    /// The job cannot succeed as it is described.
    Fatal {
        /// The member that reported this.
        member: MemberId,
        /// Its message.
        message: String,
    },
    /// The members' states are useless. The job can go on from its newest checkpoint.
    Diverged {
        /// The member that reported this, or one of the members that differ.
        member: MemberId,
        /// The difference, and the remedy.
        message: String,
    },
    /// Another coordinator took over, and the group goes on with that one.
    Superseded,
    /// No process was heard for [`DESERTED_AFTER`](super::DESERTED_AFTER). The group goes on with
    /// another coordinator.
    Deserted,
    /// The process was asked to stop before the group drained. The group can go on with another
    /// coordinator.
    Stopped,
    /// The store failed for good.
    StoreFailed {
        /// The cause.
        message: String,
    },
}
