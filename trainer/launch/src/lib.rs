//! The launch contract: all that the operator (or `lockstep run`) and the trainer must agree on.
//!
//! One table each: [`Launch`] is the environment of a process, [`Exit`] its exit codes, [`Task`]
//! what it does, [`Progress`] what it reports while it runs, [`Change`] how its group changed,
//! [`Planned`] how a group sums and [`Replay`] that it is to do so again, [`States`] whether that
//! led to the same, [`Ending`] what it leaves behind, [`group`] the names of its durable record,
//! [`readiness`] where it says that it is of use.

mod benchmark;
mod change;
mod collectives;
mod communication;
mod credentials;
mod elastic;
mod ending;
mod environment;
mod exit;
mod grace;
pub mod group;
pub mod lines;
mod log;
mod memory;
pub mod names;
mod network;
mod object_uri;
mod progress;
pub mod readiness;
mod replay;
mod size;
mod states;
mod task;
mod unsaved;
mod workload;

pub use benchmark::{Benchmark, Collectives};
pub use change::{Change, Gone, Reached};
pub use collectives::{BenchmarkReport, ChosenFrom, CollectivesReport, CollectivesRow, MessageCosts};
pub use communication::{Communication, CommunicationAlgorithm, CommunicationBackend, Encryption, WireFormat};
#[cfg(feature = "credentials")]
pub use credentials::make_credentials;
pub use credentials::{CredentialFile, WORKER_NAME};
pub use elastic::Elastic;
pub use ending::{Ending, MAX_ENDING_BYTES};
pub use environment::{Address, Job, Launch, LaunchError, PARENT, Ports, Store, Variable};
pub use exit::Exit;
pub use grace::{DEFAULT_GRACE_SECONDS, ShortGrace};
pub use log::StandardError;
pub use memory::{MemoryLimit, in_words, out_of_memory_kills};
pub use network::{Network, NetworkError};
pub use object_uri::{OBJECT_URI_ACCEPTED, OBJECT_URI_PATTERN, ObjectService, ObjectUri};
pub use progress::{CheckpointMark, CommunicationReport, DamagedCheckpoint, Link, Progress, Straggler};
pub use replay::{PLANS_FILE, Planned, REPLAY, Replay};
pub use size::{ByteSize, ByteSizeError};
pub use states::{JOURNAL_FILE, States};
pub use task::Task;
pub use unsaved::Unsaved;
pub use workload::{
    Checkpoint, Dataset, DatasetFormat, InvalidField, MIN_SHARDS, Model, ModelName, NO_TREE_OF_DEVICES, Optimizer,
    Precision, Schedule, Sgd, Training, Workload,
};
