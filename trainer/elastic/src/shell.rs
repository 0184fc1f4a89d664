//! Sockets, a clock and a thread for the two state machines. This module takes no decisions.

mod connection;
mod coordinate;
mod event;
mod mailbox;
mod membership;
mod reach;

pub use coordinate::{Notice, coordinate};
pub use event::MembershipEvent;
pub use membership::{Admission, FinalReply, FinalReportError, JoinError, Membership};
pub use reach::Obstacle;
