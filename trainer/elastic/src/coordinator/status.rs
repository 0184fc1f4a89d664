use std::{fmt, time::Duration};

use super::{Coordinator, Phase};

/// The state of the group, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The current stage of the coordinator.
    pub stage: Stage,
    /// The newest agreed generation, of this run or an earlier one.
    pub generation: Option<u64>,
    /// The connected pods in rank order.
    pub connected: Vec<String>,
    /// The missing pods in rank order.
    pub missing: Vec<String>,
    /// The connected pods that have been silent for [`super::SUSPECT_AFTER`].
    pub suspected: Vec<String>,
}

/// The stage of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for members.
    Gathering,
    /// Enough members are connected, and the generation is being agreed.
    Forming,
    /// The group trains.
    Running,
    /// The group is over.
    Ended,
}

impl Coordinator {
    /// Returns the stage of the group, and its connected and missing pods.
    #[must_use]
    pub fn status(&self, now: Duration) -> Status {
        let members = &self.config.members;
        let wanted: Vec<&String> = match &self.phase {
            Phase::Running(running) => running.active().members.iter().map(|ranked| &ranked.pod).collect(),
            Phase::Gathering(_) | Phase::Preparing(_) | Phase::Ended => {
                members.iter().take(self.config.replicas).collect()
            }
        };
        let is_here = |pod: &String| self.peers.contains_key(pod);
        let silent = self.silent_pods(now);
        let stage = match self.phase {
            Phase::Ended => Stage::Ended,
            Phase::Running(_) => Stage::Running,
            Phase::Preparing(_) => Stage::Forming,
            Phase::Gathering(_) if self.swapping.is_some() => Stage::Forming,
            Phase::Gathering(_) => Stage::Gathering,
        };
        Status {
            stage,
            generation: self.active().map(|active| active.generation),
            suspected: members.iter().filter(|pod| silent.contains(pod.as_str())).cloned().collect(),
            connected: members.iter().filter(|pod| is_here(pod)).cloned().collect(),
            missing: wanted.into_iter().filter(|pod| !is_here(pod)).cloned().collect(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, generation, connected, missing, suspected } = self;
        let here = connected.len();
        match (stage, missing.as_slice()) {
            (Stage::Ended, _) => f.write_str("the group is over"),
            (Stage::Forming, _) => write!(f, "forming a group of {here} workers"),
            (Stage::Gathering, []) => write!(f, "all {here} workers are here"),
            (_, [pod]) => write!(f, "waiting for {pod}, with {here} workers here"),
            (Stage::Running, []) if suspected.is_empty() => {
                write!(f, "generation {} runs with {here} workers", generation.unwrap_or_default())
            }
            (Stage::Running, []) => write!(f, "no sign of life from {}", suspected.join(", ")),
            (_, missing) => {
                write!(f, "waiting for {} workers: {}", missing.len(), missing.join(", "))
            }
        }
    }
}
