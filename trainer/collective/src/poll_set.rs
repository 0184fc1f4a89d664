//! Waits for the sockets of two peers.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::CWD;
use rustix::io::Errno;

use crate::idle::LONGEST_SLEEP;
use crate::sockets::MAX_SOCKETS;

/// The sockets of two peers, without an allocation.
pub(crate) struct PollSet<'a> {
    /// An empty slot holds no descriptor, and the system skips it.
    pub(crate) slots: [PollFd<'a>; 2 * MAX_SOCKETS],
}

impl Default for PollSet<'_> {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| PollFd::from_borrowed_fd(CWD, PollFlags::empty())) }
    }
}

impl PollSet<'_> {
    /// Sleeps until a socket is ready, at most for `limit` and [`LONGEST_SLEEP`].
    pub(crate) fn poll(&mut self, limit: Duration) -> Result<(), Errno> {
        let limit = limit.min(LONGEST_SLEEP);
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        poll(&mut self.slots, Some(&limit)).map(drop)
    }
}
