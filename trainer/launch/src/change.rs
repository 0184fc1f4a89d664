//! What a change of the membership was: one line of a run's history.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Progress;

/// How one generation followed another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Change {
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
    pub left: Vec<Gone>,
    /// Pods that were lost, and what was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Gone>,
    /// What failed although nobody was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Steps after this one had been done before and are done again: nobody was left who held them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback: bool,
    /// So many of these steps had been told of in a report.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redone: u64,
    /// Seconds from the moment when the need for a change was seen until the new membership was recorded.
    pub seconds: f64,
    /// Digest of the chain of all memberships up to this one.
    pub history: String,
}

impl Change {
    /// Counts the steps that are done again after the newest report of all, and after the change `before` this one.
    pub fn count_redone(&mut self, report: &Progress, before: Option<&Self>) {
        let furthest = match before {
            Some(before) if report.generation < before.generation => before.step,
            _ => report.step,
        };
        if self.rollback && report.generation < self.generation {
            self.redone = self.redone.max(furthest.saturating_sub(self.step));
        }
    }
}

/// A pod that does not belong to the group any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gone {
    /// Its name.
    pub pod: String,
    /// Why.
    pub reason: String,
}

/// As one sentence: what happened, then what it cost.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gone = |word: &str, gone: &[Gone]| -> Vec<String> {
            gone.iter().map(|Gone { pod, reason }| format!("{pod} {word} ({reason})")).collect()
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
        let gone = |pod: &str, reason: &str| Gone { pod: pod.into(), reason: reason.into() };
        let change = Change {
            workers: 2,
            step: 70,
            joined: vec!["w-3".into()],
            left: vec![gone("w-2", "SIGTERM")],
            lost: vec![gone("w-1", "closed its connection")],
            ..Change::default()
        };
        assert_eq!(
            change.to_string(),
            "w-1 was lost (closed its connection), w-2 left (SIGTERM), w-3 joined: 2 workers, goes on from step 70"
        );
        let alone = Change { workers: 1, rollback: true, joined: vec!["w-0".into()], ..Change::default() };
        assert_eq!(alone.to_string(), "w-0 joined: 1 worker, goes back to step 0");
        let redone = |redone| Change { redone, ..alone.clone() }.to_string();
        assert_eq!(redone(1), "w-0 joined: 1 worker, goes back to step 0, 1 step is done again");
        assert_eq!(redone(12), "w-0 joined: 1 worker, goes back to step 0, 12 steps are done again");
    }

    #[test]
    fn steps_are_redone_that_were_reported_since_the_change_before() {
        let report = |generation, step| Progress { generation, step, ..Progress::default() };
        let change = |generation, step| Change { generation, step, rollback: true, ..Change::default() };
        let redone = |mut change: Change, report: &Progress, before: Option<&Change>| {
            change.count_redone(report, before);
            change.redone
        };
        assert_eq!(redone(change(3, 50), &report(2, 62), None), 12);
        assert_eq!(redone(change(3, 50), &report(2, 62), Some(&change(2, 40))), 12);
        assert_eq!(redone(change(4, 50), &report(2, 62), Some(&change(3, 50))), 0, "none since it went back before");
        assert_eq!(redone(change(3, 50), &report(2, 49), None), 0, "more was done than was reported");
        assert_eq!(redone(change(3, 50), &report(3, 62), None), 0, "they are done already");
        assert_eq!(redone(Change { rollback: false, ..change(3, 50) }, &report(2, 62), None), 0);
        assert_eq!(redone(Change { redone: 14, ..change(3, 50) }, &report(2, 62), None), 14, "another knew of more");
    }
}
