//! The launch contract: everything that the operator (or `lockstep run`) and the trainer must agree
//! on.
//!
//! Each subject has one table. [`Launch`] is the environment of a process and [`Exit`] its exit
//! codes. [`Task`] is its work, [`Progress`] its report while it runs, and [`Ending`] the line that
//! it leaves behind. [`GroupChange`] says how a group changed and [`AgreedPlan`] how it sums.
//! [`Replay`] has it sum in the same way again, and [`StateComparison`] says if that led to the
//! same states. [`training_group`] names the fields of the durable record. [`readiness`] is the
//! path on which a process answers once it is ready.

mod batch_size;
mod benchmark;
mod benchmark_report;
mod byte_size;
mod communication;
mod credentials;
mod data_uri;
mod dataset;
mod elastic;
mod ending;
mod environment;
mod exit;
mod file_uri;
mod grace;
mod group_change;
mod invalid_field;
pub mod lines;
mod log;
mod memory;
pub mod metrics_log;
pub mod names;
mod network_selector;
mod object_uri;
pub mod optimization;
mod precision;
mod progress;
pub mod readiness;
mod replay;
mod shards;
mod six_digits;
mod state_comparison;
mod task;
pub mod training_group;
mod unsaved;
mod workload;

pub use benchmark::{Benchmark, Collectives};
pub use benchmark_report::{BenchmarkReport, ChosenFrom, CollectivesReport, CollectivesRow, MessageCosts};
pub use byte_size::{ByteSize, ByteSizeError};
pub use communication::{Communication, CommunicationAlgorithm, CommunicationBackend, Encryption, WireFormat};
#[cfg(feature = "credentials")]
pub use credentials::make_credentials;
pub use credentials::{CredentialFile, WORKER_NAME};
pub use data_uri::{DataUri, WEB_URI_PATTERN, WebUri};
pub use dataset::{AugmentSpec, DatasetFormat, DatasetSpec, ImageSpec, RandomCrop, RandomResizedCrop};
pub use elastic::Elastic;
pub use ending::Ending;
pub use environment::{Address, Job, Launch, LaunchError, PARENT, Ports, RecordStore, Variable};
pub use exit::Exit;
pub use grace::{DEFAULT_GRACE_SECONDS, ShortGrace};
pub use group_change::{Departure, GroupChange, Reached};
pub use invalid_field::InvalidField;
pub use log::StandardError;
pub use memory::{AND_MAY_HAVE, MemoryLimit, in_words, out_of_memory_kills};
pub use network_selector::{NetworkSelector, NetworkSelectorError};
pub use object_uri::{OBJECT_URI_ACCEPTED, OBJECT_URI_PATTERN, ObjectService, ObjectUri};
pub use precision::{CONSTANT_ALONE, LossScale, NO_LOSS_SCALE, NO_PRECISION_OF_OWN, Precision};
pub use progress::{
    BestMark, CheckpointMark, CommunicationReport, DamagedCheckpoint, LinkKind, Progress, ScalingBaseline, Straggler,
    WholeRun,
};
pub use replay::{AgreedPlan, PLANS_FILE, REPLAY, Replay};
pub use shards::SHARDS;
pub use six_digits::six_digits;
pub use state_comparison::StateComparison;
pub use task::Task;
pub use unsaved::Unsaved;
pub use workload::{
    BatchSizeChange, BestCheckpoint, BestMetric, CheckpointSpec, InitialWeights, ModelName, ModelSpec,
    NO_TREE_OF_DEVICES, OnNonFinite, Training, Workload,
};
