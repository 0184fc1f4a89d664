//! The Kubernetes API of Lockstep: [`TrainingJob`], its durable record [`TrainingGroup`], their CRDs, and the parsing of a
//! manifest into a [`ValidJob`], after which nobody checks again. No client, no runtime.

mod crd;
mod group;
mod job;
pub mod label;
pub mod manifest;
mod metadata;
mod rules;
mod schema;
mod status;
mod valid;

pub use crd::crds;
pub use group::{TrainingGroup, TrainingGroupSpec, TrainingGroupStatus};
pub use job::{CleanPodPolicy, FailurePolicy, MANAGED_BY, TRAINER_CONTAINER, TrainingJob, TrainingJobSpec};
pub use status::{
    ConditionType, Display, JobProgress, LastChange, LastFailure, Membership, Phase, Reason, Replacing, TrainerImage,
    TrainingJobStatus,
};
pub use valid::ValidJob;
