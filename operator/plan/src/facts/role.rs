use std::fmt;

use lockstep_api::ValidJob;

/// The role of a pod in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodRole {
    /// Keeps the membership.
    Coordinator,
    /// Trains. Workers are numbered from 0.
    Worker(u32),
}

impl fmt::Display for PodRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("coordinator"),
            Self::Worker(index) => write!(f, "worker {index}"),
        }
    }
}

/// The name of the pod with this role.
#[must_use]
pub fn pod_name(job: &ValidJob, role: PodRole) -> String {
    match role {
        PodRole::Coordinator => format!("{}-coordinator", job.name),
        PodRole::Worker(index) => format!("{}-worker-{index}", job.name),
    }
}
