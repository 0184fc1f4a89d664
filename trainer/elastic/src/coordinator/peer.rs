//! A connected process, and its catch-up with the group.

use std::time::Duration;

use super::ConnectionId;
use crate::{Active, Hello};

/// A connected process.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) hello: Hello,
    pub(super) connection: ConnectionId,
    pub(super) heard: Duration,
    pub(super) catch_up: Option<CatchUp>,
}

/// A newcomer's catch-up with a group that trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CatchUp {
    pub(super) generation: u64,
    pub(super) caught_up: bool,
}

impl CatchUp {
    /// Returns the catch-up of a process that is let in with the state that it holds.
    pub(super) fn as_it_is(active: &Active) -> Self {
        Self { generation: active.generation, caught_up: true }
    }
}

impl Peer {
    /// Returns true if this process was told to follow this group.
    pub(super) fn follows(&self, active: &Active) -> bool {
        self.catch_up.is_some_and(|catch_up| catch_up.generation == active.generation)
    }

    /// Returns true if this process follows the group and has not caught up yet.
    pub(super) fn catches_up_with(&self, active: &Active) -> bool {
        self.follows(active) && self.catch_up.is_some_and(|catch_up| !catch_up.caught_up)
    }
}
