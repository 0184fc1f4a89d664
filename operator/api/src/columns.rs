//! The columns of `kubectl get`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Texts for the columns of kubectl get.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct JobColumns {
    /// Workers that have joined, and workers wanted, as 2/2. For a complete job: the workers that
    /// saw its end. For a failed job: a dash.
    pub workers: String,
    /// The share of the steps that is done, as 43%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Samples per second of the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<String>,
    /// Scaling efficiency, as 93% or 93% (estimated).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<String>,
    /// Workers that were lost and started again.
    #[serde(default)]
    pub restarts: String,
    /// Load balance and communication efficiency, as 98% x 95%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<String>,
    /// Share of the run's time that went into steps that count, as 88%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<String>,
    /// Training loss in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Time until the last step, as 2m10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<String>,
}
