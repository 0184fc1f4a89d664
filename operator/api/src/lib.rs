//! The Kubernetes API of Lockstep: [`TrainingJob`], its durable record [`TrainingGroup`] and their
//! CRDs. A manifest is parsed into a [`ValidJob`], after which nothing is checked again. There is
//! no client and no runtime here.

mod columns;
mod crd;
mod excluded_node;
mod group;
mod job;
pub mod label;
pub mod manifest;
mod metadata;
mod rules;
mod schema;
mod status;
mod template;
mod valid;
mod worker_restarts;

pub use columns::JobColumns;
pub use crd::crds;
pub use excluded_node::ExcludedNode;
pub use group::{TrainingGroup, TrainingGroupSpec, TrainingGroupStatus};
pub use job::{
    CleanPodPolicy, FailurePolicy, Gang, MANAGED_BY, SchedulingPolicy, TRAINER_CONTAINER, TrainingJob, TrainingJobSpec,
};
pub use status::{
    ConditionType, JobMembership, JobProgress, LastChange, LastFailure, LostWorker, Phase, Reason, TrainerImage,
    TrainingJobStatus,
};
pub use valid::ValidJob;
pub use worker_restarts::WorkerRestarts;
