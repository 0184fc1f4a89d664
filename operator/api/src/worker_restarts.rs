//! The workers that a job has lost, counted by reason.

use lockstep_lifecycle::LossKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lost workers by reason.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerRestarts {
    /// Failures of the worker itself.
    pub crash: u32,
    /// Memory ran out.
    pub oom: u32,
    /// Its room was given to others.
    pub preempted: u32,
    /// It was drained, evicted or deleted.
    pub evicted: u32,
    /// Its node was lost.
    pub node_lost: u32,
    /// It stood still.
    pub hung: u32,
}

impl WorkerRestarts {
    /// Counts a lost worker.
    pub fn add(&mut self, kind: LossKind) {
        let count = match kind {
            LossKind::Crash => &mut self.crash,
            LossKind::Oom => &mut self.oom,
            LossKind::Preempted => &mut self.preempted,
            LossKind::Evicted => &mut self.evicted,
            LossKind::NodeLost => &mut self.node_lost,
            LossKind::Hung => &mut self.hung,
        };
        *count = count.saturating_add(1);
    }

    /// Each count with its reason, as metrics name it.
    #[must_use]
    pub const fn by_reason(&self) -> [(&'static str, u32); 6] {
        let Self { crash, oom, preempted, evicted, node_lost, hung } = *self;
        [
            (LossKind::Crash.name(), crash),
            (LossKind::Oom.name(), oom),
            (LossKind::Preempted.name(), preempted),
            (LossKind::Evicted.name(), evicted),
            (LossKind::NodeLost.name(), node_lost),
            (LossKind::Hung.name(), hung),
        ]
    }

    /// The sum of all counts.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.by_reason().iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.total() == 0
    }
}
