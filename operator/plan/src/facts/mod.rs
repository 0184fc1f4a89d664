//! Facts about a job. Only facts that decisions need are kept, so that a cache of them stays small.

mod egress;
mod messages;
mod pod;
mod role;
mod waiting;

use lockstep_api::TrainingJobStatus;
use lockstep_launch::{Ending, GroupChange, Progress};

pub use egress::EgressDenied;
pub(crate) use messages::{cause, clip};
pub use pod::{PodImage, PodSeen, PodState, Termination};
pub use role::{PodRole, pod_name};
pub use waiting::PodWait;

/// A job's surroundings at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The job's `metadata.generation`.
    pub generation: Option<i64>,
    /// The job's present status.
    pub status: TrainingJobStatus,
    /// Every pod that bears the job's uid.
    pub pods: Vec<PodSeen>,
    /// The job's record, if it exists and belongs to this job.
    pub group: Option<GroupSeen>,
    /// The API server's answer when it last refused one of the job's objects, such as an exceeded
    /// quota.
    pub refused: Option<String>,
    /// True if a NetworkPolicy lets the job's pods connect only to what some policy names.
    pub egress_denied: bool,
}

/// The coordinator's reports, from the record's status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSeen {
    /// The newest report.
    pub progress: Option<Progress>,
    /// The newest changes of the membership.
    pub changes: Vec<GroupChange>,
    /// The job's ending, once it is over.
    pub ending: Option<Ending>,
}

/// The operator's own image of the trainer, for jobs whose template names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultImage {
    /// Its name.
    pub name: String,
    /// When it is pulled: Always, IfNotPresent or Never.
    pub pull_policy: String,
}
