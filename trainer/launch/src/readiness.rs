//! Where a process says whether it is of use: a worker once it has joined, a coordinator as soon as
//! it listens.

/// Answers at once.
pub const PATH: &str = "/readyz";
/// What is added to the path for an answer that comes once the process is ready, or after
/// [`MAX_AWAITED_SECONDS`]. An image that does not know it answers at once.
pub const AWAITED: &str = "await";
/// Seconds after which one that is not ready yet says so.
pub const MAX_AWAITED_SECONDS: u32 = 590;
