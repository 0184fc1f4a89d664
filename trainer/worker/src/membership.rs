//! A worker's part in its group: the session with the coordinator, and catch-up.

pub(crate) mod catchup;
mod credentials;
pub(crate) mod last_word;
mod networks;
pub(crate) mod session;
