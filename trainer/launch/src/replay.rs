//! What has to be known of a training to do it again to the last bit: which memberships trained, and how each summed its gradients.

use serde::{Deserialize, Serialize};

use crate::LaunchError;

/// Name of the file in a job's folder with a line of JSON for each [`AgreedPlan`].
pub const PLANS_FILE: &str = "plans.jsonl";
/// Set besides a worker's other variables when it repeats what an earlier run did: a [`Replay`] as JSON.
pub const REPLAY: &str = "LOCKSTEP_REPLAY";

/// A membership that is about to train, or to sum in another way from `step` on. Its line is stored before the next step is done, by a member
/// of it: no step can be done without that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgreedPlan {
    /// Its number.
    pub generation: u64,
    /// How many workers belong to it.
    pub workers: u32,
    /// Optimiser steps that are done.
    pub step: u64,
    /// How they sum, as the trainer understands it.
    pub plan: String,
}

/// What a worker is to repeat instead of deciding it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// That of a [`AgreedPlan`].
    pub plan: String,
    /// The optimiser step after which the job counts as done; none for its own last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
}

impl Replay {
    /// As the value of [`REPLAY`].
    #[must_use]
    pub fn to_value(&self) -> String {
        // Text and a number: no reason to fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the environment through `lookup`; `None` for whoever decides for itself.
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
    fn what_is_to_be_repeated_is_read_as_it_was_written() {
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
