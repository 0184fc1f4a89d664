//! Steps that only the workers' memory holds, because the storage refuses the checkpoint.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Characters of a reason in a report.
const MAX_REASON: usize = 500;

/// The steps that no checkpoint holds, because saves fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Unsaved {
    /// Optimiser steps in the newest checkpoint; 0 if there is none.
    pub since_step: u64,
    /// Reason why the newest save failed, and the remedy.
    pub reason: String,
    /// True while the workers stand still until the storage takes their state.
    #[serde(default)]
    pub waits: bool,
}

impl Unsaved {
    /// Describes saves that have failed since the checkpoint of `since_step`.
    #[must_use]
    pub fn new(since_step: u64, reason: &str, waits: bool) -> Self {
        let reason = match reason.char_indices().nth(MAX_REASON) {
            Some((end, _)) => format!("{}…", &reason[..end]),
            None => reason.to_owned(),
        };
        Self { since_step, reason, waits }
    }
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { since_step, reason, waits } = self;
        match (waits, since_step) {
            (true, 0) => write!(f, "the workers wait for the storage, nothing is saved: {reason}"),
            (true, step) => write!(f, "the workers wait for the storage, nothing is saved since step {step}: {reason}"),
            (false, 0) => write!(f, "no checkpoint could be saved yet: {reason}; training goes on"),
            (false, step) => write!(f, "no checkpoint is saved since step {step}: {reason}; training goes on"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_last_saved_step_and_says_if_training_goes_on() {
        let said = |step, waits| Unsaved::new(step, "disk full; free some", waits).to_string();
        assert_eq!(said(0, false), "no checkpoint could be saved yet: disk full; free some; training goes on");
        assert_eq!(said(7, false), "no checkpoint is saved since step 7: disk full; free some; training goes on");
        assert_eq!(
            said(7, true),
            "the workers wait for the storage, nothing is saved since step 7: disk full; free some"
        );
    }

    #[test]
    fn a_long_reason_is_cut() {
        let cut = Unsaved::new(7, &"ü".repeat(MAX_REASON + 1), false).reason;
        assert_eq!(cut.chars().count(), MAX_REASON + 1);
        assert!(cut.ends_with("ü…"), "{cut}");
    }
}
