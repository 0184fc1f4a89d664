//! The rules by which a job lives and fails, the same for `lockstep run` and the operator. Facts go
//! in, decisions come out; the time is an argument. There is nothing of Kubernetes here.
//!
//! The modules build on each other in this order: [`WorkerEnd`] says how a worker ended,
//! [`Failures`] counts what counts and pauses before the next start, and [`Limits`] says when the
//! job fails. The tables in testdata/ are the specification.

mod end;
mod failures;
mod limits;
mod pauses;

pub use end::{Ended, LossKind, Role, Seen, Status, WorkerEnd, is_own_failure};
pub use failures::{Counted, Failures, Fault, Loss, Replacement, STANDSTILL, Standing, is_forgiven, is_training};
pub use limits::{Attendance, JobFailure, Limits};
pub use pauses::Pauses;
