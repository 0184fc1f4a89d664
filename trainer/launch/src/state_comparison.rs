//! The states of two runs of a job, compared after each step by their metrics logs.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;

/// The steps after which two runs held the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateComparison {
    /// Number of steps that both logs hold.
    pub steps: usize,
    /// The last of these steps.
    pub last: Option<u64>,
    /// The first of these steps after which the states differ.
    pub differ_from: Option<u64>,
}

/// A line about a step with the state after it. The state is absent if no worker was left to report
/// it.
#[derive(Deserialize)]
struct Line {
    step: u64,
    state_hash: u32,
}

impl StateComparison {
    /// Compares the states by the metrics logs of both runs.
    #[must_use]
    pub fn between(one: &str, other: &str) -> Self {
        let (one, other) = (hashes(one), hashes(other));
        let both = || one.iter().filter_map(|(step, hash)| Some((step, hash, other.get(step)?)));
        let differ_from = both().find(|(_, hash, other)| hash != other).map(|(step, ..)| *step);
        Self { steps: both().count(), last: both().next_back().map(|(step, ..)| *step), differ_from }
    }
}

impl fmt::Display for StateComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} steps  ", self.steps)?;
        match self.differ_from {
            None if self.steps == 0 => f.write_str("not compared: no metrics log holds them"),
            None => f.write_str("equal"),
            Some(step) => write!(f, "differ, seen from step {step} on"),
        }
    }
}

/// Returns the hash of the state after each step.
fn hashes(journal: &str) -> BTreeMap<u64, u32> {
    let lines = journal.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.map(|Line { step, state_hash }| (step, state_hash)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_in_both_logs_are_compared() {
        let one = concat!(
            "{\"step\":1,\"state_hash\":7}\n",
            "{\"step\":2,\"state_hash\":8}\n{\"step\":2,\"evaluation\":{\"loss\":0.5}}\n",
            "{\"step\":3,\"state_hash\":null}\n{\"step\":4,\"state_hash\":9}\n",
        );
        let whole = one.replace("null", "5");
        let compared = |one: &str, other: &str| StateComparison::between(one, other).to_string();
        assert_eq!(compared(one, &whole), "after 3 steps  equal");
        assert_eq!(compared(one, &whole.replace('8', "6")), "after 3 steps  differ, seen from step 2 on");
        assert_eq!(compared("", &whole), "after 0 steps  not compared: no metrics log holds them");
        assert_eq!(StateComparison::between(&whole, "{\"step\":3,\"state_hash\":5}\n").last, Some(3));
    }
}
