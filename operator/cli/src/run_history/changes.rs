//! The changes of the group of a run, with their causes and costs.

use lockstep_launch::GroupChange;
use serde::Serialize;

use crate::metrics_lines::Step;

/// A change of the group, with its cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Change {
    #[serde(flatten)]
    pub change: GroupChange,
    /// Seconds without a new step.
    #[serde(rename = "stalledSeconds", skip_serializing_if = "Option::is_none")]
    pub stalled: Option<f64>,
}

/// Adds the costs to changes, by the steps of the metrics log in their order.
pub(crate) fn with_costs(changes: Vec<GroupChange>, steps: &[Step]) -> Vec<Change> {
    // The time of a step that no worker was left to tell of is of no use.
    let seen: Vec<&Step> = steps.iter().filter(|step| step.loss.is_some()).collect();
    changes.into_iter().map(|change| Change { stalled: stalled(&change, &seen), change }).collect()
}

impl Change {
    /// Returns the causes as a sentence.
    pub(crate) fn cause(&self) -> String {
        let GroupChange { joined, left, lost, broken, rollback, .. } = &self.change;
        let mut causes: Vec<String> =
            lost.iter().map(|gone| format!("{} was lost: {}", gone.pod, gone.reason)).collect();
        causes.extend(left.iter().map(|gone| format!("{} left: {}", gone.pod, gone.reason)));
        if !joined.is_empty() {
            causes.push(format!("{} joined", joined.join(", ")));
        }
        causes.extend(broken.clone());
        if *rollback {
            causes.push("started from a checkpoint: no worker was left with the steps after it".to_owned());
        }
        causes.join("; ")
    }
}

/// Returns the seconds from the last step that counts of the groups before to the first step of
/// this one, less the time of the steps themselves. They cover the detection of the loss, the
/// rendezvous, the catch-up, and steps that were done and lost. Returns `None` for the first group,
/// and for a group of which no step is left.
fn stalled(change: &GroupChange, steps: &[&Step]) -> Option<f64> {
    let (before, after) = steps.split_at(steps.partition_point(|step| step.step <= change.step));
    let before = before.iter().rfind(|step| step.generation < change.generation)?;
    let first = after.first().filter(|step| step.generation == change.generation)?;
    let took = first.time.duration_since(before.time).as_secs_f64();
    Some((took - first.step_seconds * (first.step - before.step) as f64).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics_lines::{Line, parse};

    #[test]
    fn a_stall_lasts_from_the_last_step_that_counts_to_the_next_one() {
        let line = |step: u64, generation: u64, loss: &str, second: f64| {
            let line = format!(
                "{{\"step\":{step},\"generation\":{generation},\"loss\":{loss},\"step_seconds\":0.25,\
                 \"time\":\"2026-11-22T05:12:{second:06.3}Z\"}}"
            );
            let Some(Line::Step(step)) = parse(&line) else { panic!("no step") };
            *step
        };
        let steps = [
            line(9, 1, "0.5", 10.0),
            // No worker was left that had computed this step.
            line(10, 2, "null", 12.0),
            line(11, 2, "0.5", 13.0),
            line(12, 4, "0.5", 13.75),
        ];
        let stalled = |generation, step| {
            with_costs(vec![GroupChange { generation, step, ..GroupChange::default() }], &steps)[0].stalled
        };
        assert_eq!(stalled(1, 0), None, "there was no step before");
        assert_eq!(stalled(2, 10), Some(2.5), "2.5 s beyond the two steps of a quarter of a second");
        assert_eq!(stalled(3, 11), None, "it did no step");
        assert_eq!(stalled(4, 11), Some(0.5));
    }
}
