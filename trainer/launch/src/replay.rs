//! The facts that repeat a training bit for bit: the memberships that trained, and the plan by
//! which each summed its gradients.

use serde::{Deserialize, Serialize};

use crate::LaunchError;

/// Name of the file in a job's folder with a line of JSON for each [`AgreedPlan`].
pub const PLANS_FILE: &str = "plans.jsonl";
/// Variable of a worker that repeats an earlier run: a [`Replay`] as JSON.
pub const REPLAY: &str = "LOCKSTEP_REPLAY";

/// A plan that a membership agreed on, from step `step` on. A member stores its line before the
/// next step ends, and no step can end without that member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgreedPlan {
    /// Number of the generation.
    pub generation: u64,
    /// Number of its workers.
    pub workers: u32,
    /// Optimiser steps done before.
    pub step: u64,
    /// The plan, in the trainer's own format.
    pub plan: String,
}

/// The decisions that a worker repeats instead of making them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// Plan of an [`AgreedPlan`].
    pub plan: String,
    /// Optimiser step that ends the job; `None` for the job's own last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
}

impl Replay {
    /// Returns the value for [`REPLAY`].
    #[must_use]
    pub fn to_value(&self) -> String {
        // A text and a number always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the environment through `lookup`. Returns `None` for a worker that decides for itself.
    ///
    /// # Errors
    /// The variable is malformed.
    pub fn read(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Option<Self>, LaunchError> {
        let Some(value) = lookup(REPLAY) else { return Ok(None) };
        serde_json::from_str(&value).map(Some).map_err(|error| LaunchError::new(REPLAY, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_reads_back_from_its_variable() {
        let whole = Replay { plan: r#"{"words":[1]}"#.into(), last_step: None };
        for replay in [whole.clone(), Replay { last_step: Some(u64::MAX), ..whole }] {
            let value = replay.to_value();
            assert_eq!(Replay::read(|name| (name == REPLAY).then(|| value.clone())), Ok(Some(replay)));
        }
        assert_eq!(Replay::read(|_| None), Ok(None));
        let error = Replay::read(|_| Some("{".to_owned())).expect_err("malformed").to_string();
        assert!(error.contains(REPLAY), "{error}");
    }
}
