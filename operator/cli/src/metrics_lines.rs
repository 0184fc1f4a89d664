//! The lines of a run's metrics log, as its readers see them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

/// A line of the metrics log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Line {
    Step(Box<Step>),
    Evaluation(Evaluation),
}

/// One step of the whole group.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Step {
    pub step: u64,
    #[serde(default)]
    pub epoch: u64,
    pub generation: u64,
    /// 0 if no worker was left that had seen the step: its other figures are of no use then.
    #[serde(default)]
    pub world_size: u32,
    /// Nats. None if nobody was left that had computed it, or if it was not finite.
    pub loss: Option<f64>,
    #[serde(default)]
    pub learning_rate: f64,
    #[serde(default)]
    pub samples_per_second: f64,
    pub step_seconds: f64,
    pub time: Timestamp,
    /// 0 to 1, over the newest steps.
    pub scaling_efficiency: Option<f64>,
    pub load_balance: Option<f64>,
    pub communication_efficiency: Option<f64>,
    /// Throughput of one worker that trains the same global batch by itself.
    pub alone_samples_per_second: Option<f64>,
    /// Seconds of the reporting worker's time since the last line that has some.
    #[serde(default)]
    pub phases: BTreeMap<String, f64>,
}

/// One evaluation on the held-out samples.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct Evaluation {
    pub step: u64,
    #[serde(rename = "evaluation")]
    pub figures: Figures,
}

/// The results of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct Figures {
    /// Nats.
    pub loss: Option<f64>,
    /// 0 to 1.
    pub accuracy: Option<f64>,
}

/// Reads a line. Returns `None` for a torn line, and for one of another kind.
pub(crate) fn parse(line: &str) -> Option<Line> {
    // A step may tell of a phase of this name, which is a number.
    if line.contains("\"evaluation\":{") {
        return serde_json::from_str(line).ok().map(Line::Evaluation);
    }
    serde_json::from_str(line).ok().map(|step| Line::Step(Box::new(step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_evaluations_are_told_apart() {
        let time = "2026-11-22T05:12:10Z";
        let step = format!("{{\"step\":9,\"generation\":1,\"loss\":null,\"step_seconds\":0.25,\"time\":\"{time}\"}}");
        let Some(Line::Step(found)) = parse(&step) else { panic!("no step") };
        assert_eq!((found.step, found.loss, found.world_size), (9, None, 0));
        let with_phases = step.replace('}', ",\"phases\":{\"evaluation\":0.5}}");
        assert!(matches!(parse(&with_phases), Some(Line::Step(found)) if found.phases["evaluation"] == 0.5));
        let evaluation = "{\"step\":9,\"epoch\":1,\"evaluation\":{\"loss\":0.5,\"accuracy\":0.75}}";
        let Some(Line::Evaluation(found)) = parse(evaluation) else { panic!("no evaluation") };
        assert_eq!((found.step, found.figures.accuracy), (9, Some(0.75)));
        assert_eq!(parse(&step[..20]), None, "torn");
    }
}
