//! Dataset → batches.
//!
//! [`idx`] reads samples, [`glyphs`] draws them; [`Permutation`] orders an epoch, [`Batches`] and
//! [`Seat`] say which samples of it a rank takes in a step, [`Loader`] prepares them as normalised
//! micro-batches on a thread of its own, and [`Tally`] tells which were taken.

mod batches;
mod error;
pub mod glyphs;
pub mod idx;
mod loader;
mod normalise;
mod partition;
mod permutation;
mod samples;
mod tally;

pub use batches::{Batches, MAX_BATCH_CHANGES, check_global_batch};
pub use error::DataError;
pub use loader::{Batch, Evaluation, Loader, Order, QUEUED_BATCHES, StepShare};
pub use normalise::{DEVIATION, MEAN};
pub use partition::{Seat, Step};
pub use permutation::Permutation;
pub use samples::{Dataset, MAX_CLASSES, Samples, Shape};
pub use tally::Tally;
