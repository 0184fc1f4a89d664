//! Sockets, a clock and a thread for the two state machines. No decision is made here.

mod coordinate;
mod line;
mod membership;
mod reach;
mod shared;

pub use coordinate::{Notice, coordinate};
pub use membership::{Event, Farewell, FarewellError, JoinError, Membership, Place};
pub use reach::Obstacle;
