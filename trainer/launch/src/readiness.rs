//! The path on which a process answers once it is ready: a worker once it has joined, a coordinator
//! as soon as it listens.

/// Path of an answer that comes at once.
pub const PATH: &str = "/readyz";
/// Query of an answer that comes once the process is ready, or after [`MAX_AWAITED_SECONDS`]. An
/// image that does not know the query answers at once.
pub const AWAITED: &str = "await";
/// Seconds after which a process that is not ready yet answers so.
pub const MAX_AWAITED_SECONDS: u32 = 590;
