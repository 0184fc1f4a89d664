//! A change of the group: one line of a run's history.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Progress;

/// The step from one generation to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GroupChange {
    /// Time at which the new membership was recorded, RFC 3339.
    pub time: String,
    /// Number of the new generation.
    pub generation: u64,
    /// Number of workers in it.
    pub workers: u32,
    /// Optimiser steps that it begins with.
    pub step: u64,
    /// Pods that joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<String>,
    /// Pods that left as planned, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Departure>,
    /// Pods that were lost, with the symptom.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Departure>,
    /// The failure, if no pod was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// True if the group goes back to `step`, because nobody was left that held the steps after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback: bool,
    /// Number of the repeated steps that a report or a change had announced before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redone: u64,
    /// Seconds from the first sign of the need to change until the new membership was recorded.
    pub seconds: f64,
    /// Digest of the chain of all memberships up to this one.
    pub history: String,
}

/// The furthest step that a run has announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    generation: u64,
    step: u64,
}

impl Reached {
    /// Takes a report into account. A report of an older generation is ignored.
    pub fn reported(&mut self, report: &Progress) {
        if report.generation >= self.generation {
            let before = if report.generation == self.generation { self.step } else { 0 };
            *self = Self { generation: report.generation, step: report.step.max(before) };
        }
    }

    /// Takes a change into account, and counts in it the announced steps that it takes back.
    pub fn changed(&mut self, change: &mut GroupChange) {
        if change.generation <= self.generation {
            return;
        }
        if change.rollback {
            change.redone = change.redone.max(self.step.saturating_sub(change.step));
        }
        *self = Self { generation: change.generation, step: change.step };
    }
}

/// A pod that has left the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Departure {
    /// Name of the pod.
    pub pod: String,
    /// Reason of its departure.
    pub reason: String,
}

/// One sentence: the cause, then the cost.
impl fmt::Display for GroupChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gone = |word: &str, gone: &[Departure]| -> Vec<String> {
            gone.iter().map(|Departure { pod, reason }| format!("{pod} {word} ({reason})")).collect()
        };
        let mut parts = gone("was lost", &self.lost);
        parts.extend(gone("left", &self.left));
        parts.extend(self.joined.iter().map(|pod| format!("{pod} joined")));
        parts.extend(self.broken.clone());
        let workers = if self.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", self.workers) };
        let verb = if self.rollback { "goes back to" } else { "goes on from" };
        write!(f, "{}: {workers}, {verb} step {}", parts.join(", "), self.step)?;
        match self.redone {
            0 => Ok(()),
            1 => f.write_str(", 1 step is done again"),
            redone => write!(f, ", {redone} steps are done again"),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reads_as_a_sentence() {
        let gone = |pod: &str, reason: &str| Departure { pod: pod.into(), reason: reason.into() };
        let change = GroupChange {
            workers: 2,
            step: 70,
            joined: vec!["w-3".into()],
            left: vec![gone("w-2", "SIGTERM")],
            lost: vec![gone("w-1", "closed its connection")],
            ..GroupChange::default()
        };
        assert_eq!(
            change.to_string(),
            "w-1 was lost (closed its connection), w-2 left (SIGTERM), w-3 joined: 2 workers, goes on from step 70"
        );
        let alone = GroupChange { workers: 1, rollback: true, joined: vec!["w-0".into()], ..GroupChange::default() };
        assert_eq!(alone.to_string(), "w-0 joined: 1 worker, goes back to step 0");
        let redone = |redone| GroupChange { redone, ..alone.clone() }.to_string();
        assert_eq!(redone(1), "w-0 joined: 1 worker, goes back to step 0, 1 step is done again");
        assert_eq!(redone(12), "w-0 joined: 1 worker, goes back to step 0, 12 steps are done again");
    }

    #[test]
    fn announced_steps_that_a_change_takes_back_count_as_redone() {
        let report = |generation, step| Progress { generation, step, ..Progress::default() };
        let change = |generation, step, rollback| GroupChange { generation, step, rollback, ..GroupChange::default() };
        let mut reached = Reached::default();
        let mut redone = |report: Option<Progress>, mut change: GroupChange| {
            report.iter().for_each(|report| reached.reported(report));
            reached.changed(&mut change);
            change.redone
        };
        assert_eq!(redone(None, change(1, 0, false)), 0);
        assert_eq!(redone(Some(report(1, 62)), change(2, 50, true)), 12);
        assert_eq!(redone(None, change(3, 50, true)), 0, "nothing was announced since the last rollback");
        assert_eq!(redone(Some(report(1, 62)), change(4, 50, true)), 0, "a report of an older generation is ignored");
        assert_eq!(redone(Some(report(4, 49)), change(5, 50, true)), 0, "the report lags behind the steps done");
        assert_eq!(redone(Some(report(5, 60)), change(6, 70, false)), 0);
        assert_eq!(redone(None, change(7, 50, true)), 20, "the change before announced them");
        assert_eq!(redone(Some(report(7, 60)), change(7, 50, true)), 0, "the change was known before");
        assert_eq!(
            redone(None, GroupChange { redone: 14, ..change(8, 50, true) }),
            14,
            "the change itself counts more"
        );
    }
}
