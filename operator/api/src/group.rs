//! The custom resource `TrainingGroup`: the durable record of a job's membership.

use kube::CustomResource;
use lockstep_launch::{Ending, GroupChange, Progress};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The group as the coordinator recorded it.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "lockstep.dev",
    version = "v1alpha1",
    kind = "TrainingGroup",
    plural = "traininggroups",
    namespaced,
    status = "TrainingGroupStatus",
    shortname = "tg",
    doc = "The durable record of a TrainingJob's membership. The operator makes it with the job's name. Only the job's coordinator writes it.",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct TrainingGroupSpec {
    /// The membership that the coordinator last agreed on with the workers. It is opaque to
    /// Kubernetes. Default: none, before the first agreement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "opaque")]
    pub record: Option<Value>,
}

/// The coordinator's reports.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrainingGroupStatus {
    /// The newest report of progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The newest changes of the membership, oldest first. Older changes are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<GroupChange>,
    /// The result of the job, once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

fn opaque(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true})
}

#[cfg(test)]
mod tests {
    use kube::Resource;
    use lockstep_launch::training_group;

    use super::*;

    #[test]
    fn the_names_are_those_of_the_launch_contract() {
        assert_eq!(TrainingGroup::group(&()), training_group::API_GROUP);
        assert_eq!(TrainingGroup::version(&()), training_group::VERSION);
        assert_eq!(TrainingGroup::kind(&()), training_group::KIND);
        assert_eq!(TrainingGroup::plural(&()), training_group::PLURAL);
        let text = serde_json::json!({training_group::RECORD: {"a": 1}});
        assert!(serde_json::from_value::<TrainingGroupSpec>(text).expect("a spec").record.is_some());
        let text = serde_json::json!({
            training_group::PROGRESS: Progress::default(), training_group::CHANGES: [GroupChange::default()], training_group::ENDING: Ending::default(),
        });
        let status: TrainingGroupStatus = serde_json::from_value(text).expect("a status");
        assert!(status.progress.is_some() && status.ending.is_some() && status.changes.len() == 1);
    }
}
