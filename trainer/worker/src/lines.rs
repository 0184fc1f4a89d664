//! The lines of the metrics log.

pub(crate) use lockstep_checkpoint::Evaluation;
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

/// One evaluation on the held-out samples.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EvaluationLine {
    pub step: u64,
    pub epoch: u64,
    pub evaluation: Evaluation,
}
