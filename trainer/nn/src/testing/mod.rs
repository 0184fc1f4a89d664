//! Devices for tests, of this crate and of those that use it.

mod late;
mod queue;

pub use late::{Late, LateView};
pub use queue::{LateEvent, LateProgress};
