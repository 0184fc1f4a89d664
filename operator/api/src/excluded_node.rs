use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A node that was lost under pods of a job.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedNode {
    /// Its name.
    pub node: String,
    /// The number of times that it was lost within the hour.
    pub losses: u32,
    /// The time of the newest loss. An hour later the node is forgotten.
    pub last_loss: Time,
}
