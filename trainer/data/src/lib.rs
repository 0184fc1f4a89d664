//! Data set → batches.
//!
//! [`idx`], [`cifar`], [`arrays`], [`imagefolder`], [`shards`] and [`segmentation`] read samples,
//! [`synthetic`] makes them, and [`glyphs`] draws them.
//! [`Normalise`] and [`Augment`] say how they reach the model. [`Permutation`] orders an epoch,
//! [`Batches`] and [`Seat`] say which samples of it a rank takes in a step, [`Loader`] prepares
//! them as micro-batches ahead of the training, and [`Tally`] tells which were taken.

pub mod arrays;
mod augment;
mod batches;
pub mod cifar;
mod contents;
mod error;
pub mod glyphs;
mod held_out;
pub mod idx;
mod image;
pub mod imagefolder;
mod loader;
mod look;
mod masks;
mod normalise;
mod npy;
mod partition;
mod pass;
mod permutation;
mod picture;
mod pictures;
mod random;
mod resample;
mod sample_file;
mod samples;
pub mod segmentation;
mod shape;
pub mod shards;
mod stamp;
pub mod synthetic;
mod tally;

pub use augment::{Augment, ResizedCrop};
pub use batches::{Batches, MAX_BATCH_CHANGES, check_global_batch};
pub use error::DataError;
pub use held_out::MAX_EVALUATION_FRACTION;
pub use loader::{Batch, Evaluation, Loader, Order, QUEUED_BATCHES, StepShare};
pub use normalise::{DEVIATION, MEAN, Normalise};
pub use partition::{Seat, Step};
pub use permutation::Permutation;
pub use pictures::{PictureOptions, PictureProblem, PictureReport};
pub use sample_file::{SampleFile, read_sample};
pub use samples::{Dataset, MAX_CLASSES, Samples};
pub use shape::Shape;
pub use tally::Tally;
