//! What a change of the membership was: one line of a run's history.

use std::fmt;

use serde::{Deserialize, Serialize};

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
    /// Seconds from the moment when the need for a change was seen until the new membership was recorded.
    pub seconds: f64,
    /// Digest of the chain of all memberships up to this one.
    pub history: String,
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
        write!(f, "{}: {workers}, {verb} step {}", parts.join(", "), self.step)
    }
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
    }
}
