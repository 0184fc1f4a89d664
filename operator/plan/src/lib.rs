//! What to do next for a job: from what it is ([`ValidJob`]) and what was seen ([`Observed`]) to a [`Plan`]. No clock, no
//! client, nothing asynchronous; the time is an argument.

mod carry_on;
mod children;
mod egress;
mod failure;
mod hindrance;
mod image;
mod last_words;
mod observed;
mod phase;
mod pods;
mod replace;
mod status;
mod suspend;
mod unsaved;
mod waiting;

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{TrainingJobStatus, ValidJob};

pub use children::Child;
pub use egress::EgressDenied;
pub use image::ImageSeen;
pub use observed::{Ended, GroupSeen, Observed, PodSeen, PodState, Role, Waiting};
pub use phase::{plan, refuse};
pub use pods::{Settings, labels_of_pods};
pub use status::Note;

/// What to do now. The status is written first: it counts the restart that the deletions carry out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The status to write; none when it is as it should be.
    pub status: Option<TrainingJobStatus>,
    /// Pods to delete.
    pub delete: Vec<Deletion>,
    /// Objects to make, in this order; workers come last and may be made in parallel.
    pub create: Vec<Child>,
    /// Events to tell, once the status is written.
    pub events: Vec<Note>,
    /// When to look again though nothing was seen to change.
    pub check_again: Option<SignedDuration>,
    /// Whether the job itself has outlived its time and is to be deleted.
    pub delete_job: bool,
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Its name.
    pub pod: String,
    /// Its uid: another pod of the same name stays.
    pub uid: String,
    /// Whether to delete it without waiting for its node, which is lost.
    pub by_force: bool,
}

impl Plan {
    /// Sees to it that the job is looked at again at `time`.
    fn look_again_at(&mut self, time: Timestamp, now: Timestamp) {
        let wait = time.duration_since(now).max(SignedDuration::from_millis(100));
        self.check_again = Some(self.check_again.map_or(wait, |earlier| earlier.min(wait)));
    }
}

/// The name of a member's pod.
#[must_use]
pub fn pod_name(job: &ValidJob, role: Role) -> String {
    match role {
        Role::Coordinator => format!("{}-coordinator", job.name),
        Role::Worker(index) => format!("{}-worker-{index}", job.name),
    }
}
