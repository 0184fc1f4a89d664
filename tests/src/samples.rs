//! The samples that the steps of a run took, as its metrics log reports them.

use anyhow::{Context as _, ensure};
use lockstep_data::{Batches, Permutation, Tally, glyphs};
use lockstep_launch::{DatasetFormat, Workload};
use serde::Deserialize;

/// A line of metrics.jsonl about a step.
#[derive(Deserialize)]
struct Line {
    step: u64,
    loss: Option<f64>,
    samples: Option<u64>,
    sample_hash: Option<u64>,
}

/// Checks that all ranks together took each step's samples once, in the order of the epoch. Returns
/// the number of steps that report their samples.
///
/// A step that no living worker has seen reports neither its samples nor its loss.
///
/// # Errors
/// A step took other samples or does not report them, or the samples are not glyphs.
pub fn each_was_taken_once(workload: &Workload, metrics_log: &str) -> anyhow::Result<u64> {
    let Workload { dataset, training, .. } = workload;
    ensure!(dataset.format == DatasetFormat::Glyphs, "the number of samples is known only for glyphs");
    let len = glyphs::draw(dataset.samples as usize, training.seed, dataset.evaluation_fraction).train.len() as u64;
    let first = Batches::constant(len, training.global_batch_size.into());
    let batches = training
        .batch_size_schedule
        .iter()
        .fold(first, |batches, change| batches.changed(change.epoch.into(), change.global_batch_size.into()));
    let mut reported = 0;
    // The log also holds evaluations, and its last line may be incomplete.
    for line in metrics_log.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
        let Line { step, loss, samples, sample_hash } = line;
        let Some(samples) = samples else {
            ensure!(loss.is_none(), "step {step} reports its loss, but not its samples");
            continue;
        };
        let hash = sample_hash.with_context(|| format!("step {step} has no hash"))?;
        let taken = Tally { samples, hash, contents: 0 };
        let expected = batches.step(step - 1);
        let order = Permutation::new(training.seed, expected.epoch, len);
        let expected =
            (expected.cursor..expected.cursor + expected.samples).map(|position| order.at(position)).collect();
        ensure!(taken == expected, "step {step} took other samples: {taken:?}, the next ones are {expected:?}");
        reported += 1;
    }
    Ok(reported)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A job of 18 samples in batches of 8. Every third step is a short one.
    fn workload() -> Workload {
        let workload = json!({
            "model": {"name": "lenet5"},
            "dataset": {"format": "glyphs", "samples": 20},
            "training": {"epochs": 2, "globalBatchSize": 8, "seed": 3},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        });
        serde_json::from_value(workload).expect("a workload")
    }

    fn line(step: u64, ids: impl Iterator<Item = u64>) -> String {
        let Tally { samples, hash, .. } = ids.collect();
        json!({"step": step, "loss": 0.5, "samples": samples, "sample_hash": hash}).to_string()
    }

    fn batch(step: u64) -> impl Iterator<Item = u64> {
        let first = (step - 1) % 3 * 8;
        let order = Permutation::new(3, (step - 1) / 3, 18);
        (first..(first + 8).min(18)).map(move |position| order.at(position))
    }

    #[test]
    fn steps_with_the_right_samples_pass_and_unseen_steps_are_not_counted() {
        let mut lines: Vec<_> = (1..=6).map(|step| line(step, batch(step))).collect();
        lines.insert(3, json!({"step": 3, "evaluation": {"loss": 0.5}}).to_string());
        lines.push(json!({"step": 7, "loss": null, "samples": null, "sample_hash": null}).to_string());
        assert_eq!(each_was_taken_once(&workload(), &lines.join("\n")).expect("each once"), 6);
    }

    #[test]
    fn a_missing_or_repeated_sample_is_found_and_so_is_a_line_without_samples() {
        let refuses = |line: String, named: &str| {
            let error = each_was_taken_once(&workload(), &line).expect_err(named).to_string();
            assert!(error.contains(named), "{error}");
        };
        refuses(line(4, batch(4).skip(1)), "step 4 took other samples");
        refuses(line(4, batch(4).skip(1).chain(batch(4).nth(1))), "step 4 took other samples");
        refuses(line(4, batch(1)), "step 4 took other samples");
        refuses(json!({"step": 4, "loss": 0.5}).to_string(), "not its samples");
    }
}
