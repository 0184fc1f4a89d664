//! Labels on every object that belongs to a job.

/// Name of the `TrainingJob`.
pub const JOB_NAME: &str = "lockstep.dev/job-name";
/// Its uid: another job of the same name has another one.
pub const JOB_UID: &str = "lockstep.dev/job-uid";
/// What the pod does: [`COORDINATOR`] or [`WORKER`].
pub const ROLE: &str = "lockstep.dev/role";
/// Which of the workers the pod is, from 0.
pub const INDEX: &str = "lockstep.dev/index";
/// How often all pods of the job were started anew before this pod was made, from 0.
pub const ATTEMPT: &str = "lockstep.dev/attempt";

/// Annotation of a `TrainingJob`: `true` lets a suspension take the pods away although their state
/// cannot be saved.
pub const SUSPEND_UNSAVED: &str = "lockstep.dev/suspend-unsaved";

/// [`ROLE`] of the pod that keeps the membership.
pub const COORDINATOR: &str = "coordinator";
/// [`ROLE`] of a pod that trains.
pub const WORKER: &str = "worker";
