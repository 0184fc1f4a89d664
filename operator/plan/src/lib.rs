//! Decides the next actions for a job. The input is the job ([`ValidJob`]) and the facts about it
//! ([`Observed`]); the output is a [`JobPlan`]. There is no clock, no client and nothing
//! asynchronous here; the time is an argument.
//!
//! The modules build on each other in this order: [`facts`] are read from Kubernetes objects,
//! [`judgement`] says what the facts mean, [`objects`] describes what the cluster gets, and
//! [`changes`] decides what happens next.

mod changes;
mod facts;
mod judgement;
mod objects;

use jiff::SignedDuration;
use lockstep_api::TrainingJobStatus;

pub use changes::{JobEvent, plan, refuse};
pub use facts::{
    DefaultImage, EgressDenied, GroupSeen, Observed, PodImage, PodRole, PodSeen, PodState, PodWait, Termination,
    pod_name,
};
pub use objects::{Child, PodGroup, labels_of_pods};

/// The next actions for a job. The status is written first, because it counts the restart that the
/// deletions carry out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPlan {
    /// The status to write; none if the present one is right.
    pub status: Option<TrainingJobStatus>,
    /// Pods to delete.
    pub delete: Vec<Deletion>,
    /// Objects to make, in this order. Workers come last and may be made in parallel.
    pub create: Vec<Child>,
    /// Events to publish after the status is written.
    pub events: Vec<JobEvent>,
    /// The time until the next look at the job, if nothing changes before.
    pub check_again: Option<SignedDuration>,
    /// True if the job has outlived its time to live and is to be deleted.
    pub delete_job: bool,
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Its name.
    pub pod: String,
    /// Its uid, so that another pod of the same name stays.
    pub uid: String,
    /// True if the deletion does not wait for the pod's node, because that node is lost.
    pub by_force: bool,
}
