//! The durable record in a cluster: a `TrainingGroup` object beside the job. The operator makes and
//! owns it. Only the coordinator writes the record into `spec.record` and reports into `status`.

/// API group of every object of this project.
pub const API_GROUP: &str = "lockstep.dev";
/// API version of the record.
pub const VERSION: &str = "v1alpha1";
/// Kind of the object.
pub const KIND: &str = "TrainingGroup";
/// Plural of the kind, for URLs and RBAC rules.
pub const PLURAL: &str = "traininggroups";
/// Field under `spec` that holds the membership record, which is opaque to Kubernetes.
pub const RECORD: &str = "record";
/// Field under `status` that holds the newest [`crate::Progress`].
pub const PROGRESS: &str = "progress";
/// Field under `status` that holds the newest [`crate::GroupChange`]s, oldest first.
pub const CHANGES: &str = "changes";
/// Field under `status` that holds the [`crate::Ending`] once there is one.
pub const ENDING: &str = "ending";
