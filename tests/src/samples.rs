//! Which samples the steps of a run took, as its journal tells, and which ones they had to take.

use anyhow::{Context as _, ensure};
use lockstep_data::{Permutation, Step, Tally, glyphs};
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

/// Checks that all ranks together took in each step the samples that are next in the order of its epoch, each once; how many steps of the
/// journal tell. Those do not of which nobody is left who had seen it, nor what their loss was.
///
/// # Errors
/// A step took others, or hides which; the samples are not glyphs.
pub fn each_was_taken_once(workload: &Workload, journal: &str) -> anyhow::Result<u64> {
    let Workload { dataset, training, .. } = workload;
    ensure!(dataset.format == DatasetFormat::Glyphs, "how many samples there are is known of glyphs only");
    let len = glyphs::draw(dataset.samples as usize, training.seed, dataset.evaluation_fraction).train.len() as u64;
    let mut told = 0;
    // Evaluations are lines too, and the last one may be under way.
    for line in journal.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
        let Line { step, loss, samples, sample_hash } = line;
        let Some(samples) = samples else {
            ensure!(loss.is_none(), "step {step} tells its loss, and not of which samples");
            continue;
        };
        let taken = Tally { samples, hash: sample_hash.with_context(|| format!("step {step} has no hash"))? };
        let expected = Step::at(step - 1, len, u64::from(training.global_batch_size));
        let order = Permutation::new(training.seed, expected.epoch, len);
        let expected = (expected.cursor..expected.cursor + expected.samples).map(|place| order.at(place)).collect();
        ensure!(taken == expected, "step {step} took other samples: {taken:?}, the next ones are {expected:?}");
        told += 1;
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Of 18 samples in batches of 8: the third step is a short one.
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
        let Tally { samples, hash } = ids.collect();
        json!({"step": step, "loss": 0.5, "samples": samples, "sample_hash": hash}).to_string()
    }

    fn batch(step: u64) -> impl Iterator<Item = u64> {
        let place = (step - 1) % 3 * 8;
        let order = Permutation::new(3, (step - 1) / 3, 18);
        (place..(place + 8).min(18)).map(move |place| order.at(place))
    }

    #[test]
    fn steps_that_took_their_samples_pass_and_those_that_nobody_knows_are_not_counted() {
        let mut lines: Vec<_> = (1..=6).map(|step| line(step, batch(step))).collect();
        lines.insert(3, json!({"step": 3, "evaluation": {"loss": 0.5}}).to_string());
        lines.push(json!({"step": 7, "loss": null, "samples": null, "sample_hash": null}).to_string());
        assert_eq!(each_was_taken_once(&workload(), &lines.join("\n")).expect("each once"), 6);
    }

    #[test]
    fn a_sample_that_is_missing_or_there_twice_is_found_and_so_is_a_line_that_does_not_tell() {
        let refuses = |line: String, named: &str| {
            let error = each_was_taken_once(&workload(), &line).expect_err(named).to_string();
            assert!(error.contains(named), "{error}");
        };
        refuses(line(4, batch(4).skip(1)), "step 4 took other samples");
        refuses(line(4, batch(4).skip(1).chain(batch(4).nth(1))), "step 4 took other samples");
        refuses(line(4, batch(1)), "step 4 took other samples");
        refuses(json!({"step": 4, "loss": 0.5}).to_string(), "not of which samples");
    }
}
