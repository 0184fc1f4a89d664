use std::{fmt, time::Duration};

use super::{Coordinator, Phase};

/// How far the group is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What the coordinator is doing.
    pub stage: Stage,
    /// The newest agreed generation, in this run or before.
    pub generation: Option<u64>,
    /// Pods that are connected, in rank order.
    pub connected: Vec<String>,
    /// Pods that are not, in rank order.
    pub missing: Vec<String>,
    /// Pods that are connected but have been silent for [`super::SUSPECT_AFTER`].
    pub suspected: Vec<String>,
    /// Rank-to-be of the first that is missing, counted from one.
    next: usize,
}

/// What a coordinator is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waiting for members.
    Gathering,
    /// All are here; the generation is being agreed.
    Forming,
    /// The group trains.
    Running,
    /// The group is over.
    Ended,
}

impl Coordinator {
    /// Who is here and who is missing.
    #[must_use]
    pub fn status(&self, now: Duration) -> Status {
        let members = &self.config.members;
        let (connected, missing): (Vec<_>, Vec<_>) =
            members.iter().cloned().partition(|pod| self.peers.contains_key(pod));
        let silent = self.silent_pods(now);
        Status {
            stage: match self.phase {
                Phase::Gathering => Stage::Gathering,
                Phase::Allocating { .. } | Phase::Preparing { .. } | Phase::Activating => Stage::Forming,
                Phase::Running(_) => Stage::Running,
                Phase::Ended => Stage::Ended,
            },
            generation: self.active().map(|active| active.generation),
            next: members.iter().position(|pod| missing.contains(pod)).map_or(members.len(), |rank| rank + 1),
            suspected: members.iter().filter(|pod| silent.contains(pod.as_str())).cloned().collect(),
            connected,
            missing,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, generation, connected, missing, suspected, next } = self;
        let workers = connected.len() + missing.len();
        match (stage, missing.as_slice()) {
            (Stage::Ended, _) => f.write_str("the group is over"),
            (Stage::Forming, _) => write!(f, "forming a group of {workers} workers"),
            (Stage::Gathering, []) => write!(f, "all {workers} workers are here"),
            (_, [pod]) => write!(f, "waiting for worker {next} of {workers}: {pod}"),
            (Stage::Running, []) if suspected.is_empty() => {
                write!(f, "generation {} runs with {workers} workers", generation.unwrap_or_default())
            }
            (Stage::Running, []) => write!(f, "no sign of life from {}", suspected.join(", ")),
            (_, missing) => {
                write!(f, "waiting for {} of {workers} workers: {}", missing.len(), missing.join(", "))
            }
        }
    }
}
