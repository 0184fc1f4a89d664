//! The answer about a job in a cluster: facts in, findings out, the most important first.

use lockstep_api::Phase;

use super::{
    facts::Facts,
    failing::{failed, failing},
    finding::Finding,
    refused, resting, waiting,
    working::{complete, resizing, slow, well},
};

/// Finds what is the matter with a job.
pub(super) fn answer(facts: &Facts) -> Vec<Finding> {
    if let Some(foreign) = resting::foreign(facts) {
        return vec![foreign];
    }
    match facts.status().phase {
        Some(Phase::Complete) => return vec![complete(facts)],
        Some(Phase::Failed) => return vec![failed(facts)],
        _ => {}
    }
    let mut found: Vec<Finding> = resting::silent_operator(facts).into_iter().collect();
    if let Some(suspended) = resting::suspended(facts) {
        found.push(suspended);
        return found;
    }
    found.extend(refused::finding(facts));
    found.extend(waiting::findings(facts));
    found.extend(failing(facts));
    if found.is_empty() {
        found.extend(waiting::beginning(facts));
    }
    found.extend(resizing(facts));
    found.extend(slow(facts));
    if found.is_empty() {
        found.push(match facts.status().phase {
            Some(Phase::Running) => well(facts),
            _ => Finding::new(format!("{} was just created; the operator is about to act on it.", facts.name()))
                .next(facts.lockstep("watch", ""), "follow it"),
        });
    }
    found
}
