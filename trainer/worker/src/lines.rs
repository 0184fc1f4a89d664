//! The lines of the metrics log.

use std::collections::BTreeMap;

pub(crate) use lockstep_checkpoint::Evaluation;
use lockstep_launch::Progress;
use serde::Serialize;

/// One step of the whole group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StepLine {
    pub step: u64,
    pub epoch: u64,
    pub generation: u64,
    pub world_size: u32,
    /// The mean loss over the global batch, in nats. `None` if no surviving worker knows it.
    pub loss: Option<f64>,
    /// The number of samples that all ranks took.
    pub samples: Option<u64>,
    /// A hash of the samples that all ranks took; see [`lockstep_data::Tally`].
    pub sample_hash: Option<u64>,
    /// A hash of the numbers of these samples with their pixels, as they were after every random
    /// change, and their labels. `None` for a model whose program brings its samples.
    pub data_hash: Option<u64>,
    /// The fingerprint of a window of the state after the step, equal on all ranks. Each step looks
    /// at another window; 128 of them cover the state.
    pub state_hash: Option<u32>,
    pub learning_rate: f32,
    pub samples_per_second: f64,
    pub step_seconds: f64,
    /// True if the step changed no weight, because its loss or a gradient was not finite.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// The time at which the reporting worker had done the step, in RFC 3339.
    pub time: String,
}

impl StepLine {
    /// Returns the line of a step that was done and whose figures are lost. `epoch` epochs are done
    /// after it.
    pub(crate) fn unseen(step: u64, epoch: u64, generation: u64) -> Self {
        Self {
            step,
            epoch,
            generation,
            world_size: 0,
            loss: None,
            samples: None,
            sample_hash: None,
            data_hash: None,
            state_hash: None,
            learning_rate: 0.0,
            samples_per_second: 0.0,
            step_seconds: 0.0,
            skipped: false,
            time: jiff::Timestamp::now().to_string(),
        }
    }
}

/// The line of a step with what the reporting worker knows beside it. A line that is made up later
/// lacks all of that.
#[derive(Debug, Serialize)]
pub(crate) struct ReportedLine<'a> {
    #[serde(flatten)]
    step: &'a StepLine,
    /// Averages over the newest steps, as [`Progress`] has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling_efficiency: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_balance: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    communication_efficiency: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alone_samples_per_second: Option<f64>,
    /// Seconds of each phase of the reporting worker's time since the last line that has some.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    phases: BTreeMap<&'static str, f64>,
}

impl<'a> ReportedLine<'a> {
    /// Adds the averages of a report and the times of the phases to the line of a step.
    pub(crate) fn new(step: &'a StepLine, figures: &Progress, phases: BTreeMap<&'static str, f64>) -> Self {
        let rounded = |share: Option<f64>| share.map(|share| (share * 1e4).round() / 1e4);
        Self {
            step,
            scaling_efficiency: rounded(figures.scaling_efficiency),
            load_balance: rounded(figures.load_balance),
            communication_efficiency: rounded(figures.communication_efficiency),
            alone_samples_per_second: figures.alone_samples_per_second.map(|rate| (rate * 10.0).round() / 10.0),
            phases,
        }
    }
}

/// One evaluation on the held-out samples.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EvaluationLine {
    pub step: u64,
    pub epoch: u64,
    pub evaluation: Evaluation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_line_is_that_of_the_step_with_the_known_averages_behind() {
        let line = StepLine { time: "then".to_owned(), ..StepLine::unseen(7, 0, 1) };
        let figures = Progress { load_balance: Some(0.987_654_3), ..Progress::default() };
        let plain = serde_json::to_string(&line).expect("JSON");
        let told = |phases| serde_json::to_string(&ReportedLine::new(&line, &figures, phases)).expect("JSON");
        let head = plain.strip_suffix('}').expect("an object");
        assert_eq!(told(BTreeMap::new()), format!("{head},\"load_balance\":0.9877}}"));
        assert!(told(BTreeMap::from([("data", 0.25)])).ends_with(",\"phases\":{\"data\":0.25}}"));
    }
}
