//! What a change of the membership was: one line of a run's history.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Progress;

/// How one generation followed another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GroupChange {
    /// When the new membership was recorded, RFC 3339.
    pub time: String,
    /// Its number.
    pub generation: u64,
    /// How many workers belong to it.
    pub workers: u32,
    /// Optimiser steps that are done.
    pub step: u64,
    /// Pods that came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<String>,
    /// Pods that went as planned, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Departure>,
    /// Pods that were lost, and what was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Departure>,
    /// What failed although nobody was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Steps after this one had been done before and are done again: nobody was left who held them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback: bool,
    /// So many of these steps had been told of, in a report or in a change.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redone: u64,
    /// Seconds from the moment when the need for a change was seen until the new membership was recorded.
    pub seconds: f64,
    /// Digest of the chain of all memberships up to this one.
    pub history: String,
}

/// How far a run was told to have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    generation: u64,
    step: u64,
}

impl Reached {
    /// By this report; one of a group before the newest tells nothing new.
    pub fn reported(&mut self, report: &Progress) {
        if report.generation >= self.generation {
            let before = if report.generation == self.generation { self.step } else { 0 };
            *self = Self { generation: report.generation, step: report.step.max(before) };
        }
    }

    /// By this change, in which the steps are counted that it takes back.
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

/// A pod that does not belong to the group any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Departure {
    /// Its name.
    pub pod: String,
    /// Why.
    pub reason: String,
}

/// As one sentence: what happened, then what it cost.
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
    fn steps_are_redone_that_were_told_of_and_are_taken_back() {
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
        assert_eq!(redone(None, change(3, 50, true)), 0, "none since it went back before");
        assert_eq!(redone(Some(report(1, 62)), change(4, 50, true)), 0, "an old report tells nothing new");
        assert_eq!(redone(Some(report(4, 49)), change(5, 50, true)), 0, "more was done than was reported");
        assert_eq!(redone(Some(report(5, 60)), change(6, 70, false)), 0);
        assert_eq!(redone(None, change(7, 50, true)), 20, "the change before told of them");
        assert_eq!(redone(Some(report(7, 60)), change(7, 50, true)), 0, "it was told of before");
        assert_eq!(redone(None, GroupChange { redone: 14, ..change(8, 50, true) }), 14, "another knew of more");
    }
}
