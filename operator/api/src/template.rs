//! The template of a job's pods. Its whole schema would make up half of the CRD. So the CRD leaves
//! the rare parts open, and this module checks them when a job is read: an unknown field there
//! would otherwise be lost without a word.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Value, json};

use crate::schema::{problems, schema_of};

/// Parts of a pod's schema that the CRD leaves open.
const OPEN: [&str; 12] = [
    "/affinity/properties/nodeAffinity",
    "/affinity/properties/podAffinity",
    "/affinity/properties/podAntiAffinity",
    "/containers/items/properties/lifecycle",
    "/containers/items/properties/livenessProbe",
    "/containers/items/properties/readinessProbe",
    "/containers/items/properties/startupProbe",
    "/initContainers/items/properties/lifecycle",
    "/initContainers/items/properties/livenessProbe",
    "/initContainers/items/properties/readinessProbe",
    "/initContainers/items/properties/startupProbe",
    "/ephemeralContainers/items",
];

/// Rare sources of volumes, which the CRD leaves open too.
const RARE_VOLUMES: [&str; 21] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "iscsi",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// The whole schema of a pod.
static POD: LazyLock<Value> = LazyLock::new(schema_of::<PodSpec>);

/// Opens the rare parts of a pod's schema.
pub(crate) fn open(pod: &mut Value) {
    let volumes = RARE_VOLUMES.map(|source| format!("/volumes/items/properties/{source}"));
    for path in OPEN.into_iter().chain(volumes.iter().map(String::as_str)) {
        if let Some(part) = pod["properties"].pointer_mut(path) {
            *part = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        }
    }
}

/// Reads a template. An error names each field that no pod has.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PodTemplateSpec>, D::Error> {
    let Some(template) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    let wrong = template.get("spec").map(|pod| problems(pod, &POD, "spec.template.spec")).unwrap_or_default();
    if !wrong.is_empty() {
        return Err(D::Error::custom(wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")));
    }
    serde_json::from_value(template).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainingJob;

    fn job(pod: Value) -> Result<TrainingJob, String> {
        serde_json::from_value(json!({
            "apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "lenet"},
            "spec": {"template": {"spec": pod}},
        }))
        .map_err(|error| error.to_string())
    }

    #[test]
    fn every_open_part_is_a_part_of_a_pod() {
        for path in OPEN
            .into_iter()
            .map(str::to_owned)
            .chain(RARE_VOLUMES.map(|name| format!("/volumes/items/properties/{name}")))
        {
            assert!(POD["properties"].pointer(&path).is_some(), "{path}");
        }
    }

    #[test]
    fn a_mistake_in_an_open_part_is_an_error_that_names_the_field() {
        let trainer = json!([{"name": "trainer"}]);
        let cases = [
            (
                json!({"containers": trainer, "affinity": {"nodeAffinity": {"requiredDuringScheduling": {}}}}),
                "spec.template.spec.affinity.nodeAffinity.requiredDuringScheduling: unknown: no such field",
            ),
            (
                json!({"containers": [{"name": "trainer", "livenessProbe": {"periodSeconds": "2"}}]}),
                "spec.template.spec.containers[0].livenessProbe.periodSeconds: \"2\": a whole number",
            ),
            (
                json!({"containers": trainer, "volumes": [{"name": "v", "projected": {"source": []}}]}),
                "spec.template.spec.volumes[0].projected.source: unknown: no such field; did you mean `sources`?",
            ),
        ];
        for (pod, expected) in cases {
            let error = job(pod).expect_err("refused");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn open_parts_without_mistakes_are_kept() {
        let pod = json!({
            "containers": [{"name": "trainer", "livenessProbe": {"periodSeconds": 2, "exec": {"command": ["true"]}}}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}},
            ]}},
            "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}],
        });
        let template = job(pod.clone()).expect("a job").spec.template.expect("a template");
        assert_eq!(serde_json::to_value(template).expect("JSON")["spec"], pod);
    }
}
