//! The durable record's place in a cluster: a `TrainingGroup` object beside the job, made and owned by the operator.
//! The coordinator writes the record into `spec.record` and its reports into `status`; nobody else writes either.

/// API group of every object of this project.
pub const API_GROUP: &str = "lockstep.dev";
/// API version of the record.
pub const VERSION: &str = "v1alpha1";
/// Kind of the record.
pub const KIND: &str = "TrainingGroup";
/// Its plural, as in URLs and RBAC rules.
pub const PLURAL: &str = "traininggroups";
/// The field under `spec` that holds the membership record; opaque to Kubernetes.
pub const RECORD: &str = "record";
/// The field under `status` that holds the newest [`crate::Progress`].
pub const PROGRESS: &str = "progress";
/// The field under `status` that holds the newest [`crate::GroupChange`]s of the membership, oldest first.
pub const CHANGES: &str = "changes";
/// The field under `status` that holds the [`crate::Ending`] once there is one.
pub const ENDING: &str = "ending";
