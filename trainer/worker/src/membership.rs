//! A worker's part in its group: the session with the coordinator, and the catch-up of newcomers.

pub(crate) mod catchup;
pub(crate) mod credentials;
pub(crate) mod networks;
pub(crate) mod session;
