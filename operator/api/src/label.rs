//! Labels on every object that belongs to a job.

/// Name of the `TrainingJob`.
pub const JOB_NAME: &str = "lockstep.dev/job-name";
/// Uid of the `TrainingJob`. Another job of the same name has another uid.
pub const JOB_UID: &str = "lockstep.dev/job-uid";
/// Role of the pod: [`COORDINATOR`] or [`WORKER`].
pub const ROLE: &str = "lockstep.dev/role";
/// Number of the worker, from 0.
pub const INDEX: &str = "lockstep.dev/index";
/// Number of the attempt for which the pod was made, from 0.
pub const ATTEMPT: &str = "lockstep.dev/attempt";

/// Annotation of a `TrainingJob`. With `true` a suspension deletes the pods although their state
/// cannot be saved.
pub const SUSPEND_UNSAVED: &str = "lockstep.dev/suspend-unsaved";

/// Annotation of a pod: the seconds of `failurePolicy.podTerminatingTimeoutSeconds`.
pub const TERMINATING_TIMEOUT: &str = "lockstep.dev/terminating-timeout-seconds";
/// Annotation of a pod that the native scheduler starts with a group: the name of its `PodGroup`.
pub const SCHEDULING_GROUP: &str = "lockstep.dev/scheduling-group";

/// [`ROLE`] of the pod that keeps the membership.
pub const COORDINATOR: &str = "coordinator";
/// [`ROLE`] of a pod that trains.
pub const WORKER: &str = "worker";
