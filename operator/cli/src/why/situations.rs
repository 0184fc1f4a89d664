//! The situations of `testdata/why`: facts in short, and the whole answer. They are the
//! specification. `UPDATE=1 cargo test` writes the answers anew.

use std::{collections::BTreeMap, fs, path::Path};

use jiff::Timestamp;
use lockstep_api::{TrainingJob, label};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::answer,
    facts::{EventSeen, Facts, OperatorSeen},
    finding::text,
    local,
};
use crate::scrape::WorkerTime;

/// The line between the facts and the answer.
const ANSWER: &str = "\n=> \n";

/// The facts of a situation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Situation {
    #[serde(default = "noon")]
    now: Timestamp,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Fields of the spec, beside those of a small job.
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
    #[serde(default)]
    group: Value,
    #[serde(default)]
    pods: Vec<PodInShort>,
    #[serde(default)]
    events: Vec<EventSeen>,
    #[serde(default)]
    quotas: Vec<Value>,
    #[serde(default)]
    limit_ranges: Vec<String>,
    operators: Option<Vec<OperatorSeen>>,
    #[serde(default)]
    workers: Vec<WorkerTime>,
}

/// A pod with what matters here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PodInShort {
    name: String,
    node: Option<String>,
    #[serde(default)]
    ready: bool,
    /// When its trainer began to run.
    since: Option<String>,
    /// The scheduler's words.
    unschedulable: Option<String>,
    /// The reason and message of a container that waits.
    waits: Option<[String; 2]>,
    #[serde(default = "trainer")]
    image: String,
    #[serde(default)]
    requests: BTreeMap<String, String>,
}

fn trainer() -> String {
    "lockstep.dev/trainer:1".to_owned()
}

fn noon() -> Timestamp {
    "2026-11-28T12:00:00Z".parse().expect("a time")
}

impl Situation {
    fn facts(self) -> Facts {
        let mut spec = json!({
            "replicas": 2, "model": {"name": "lenet5"}, "dataset": {"format": "glyphs", "samples": 2000},
            "training": {"epochs": 10, "globalBatchSize": 64}, "checkpoint": {"uri": "file:///checkpoints"},
        });
        for (field, value) in self.spec.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let job: TrainingJob = serde_json::from_value(json!({
            "apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {
                "name": "lenet", "namespace": "vision", "uid": "u-1", "generation": 1, "labels": self.labels,
                "creationTimestamp": "2026-11-28T11:58:00Z",
            },
            "spec": spec, "status": self.status,
        }))
        .expect("a job");
        Facts {
            now: self.now,
            namespace: "vision".to_owned(),
            job,
            group: serde_json::from_value(self.group).expect("a group"),
            pods: self.pods.into_iter().map(PodInShort::pod).collect(),
            events: self.events,
            quotas: self.quotas.into_iter().map(|quota| serde_json::from_value(quota).expect("a quota")).collect(),
            limit_ranges: self.limit_ranges,
            operators: self.operators,
            workers: self.workers,
            unread: Vec::new(),
        }
    }
}

impl PodInShort {
    fn pod(self) -> k8s_openapi::api::core::v1::Pod {
        let Self { name, node, ready, since, unschedulable, waits, image, requests } = self;
        let index = name.strip_prefix("lenet-worker-");
        let role = if index.is_some() { label::WORKER } else { label::COORDINATOR };
        let state = match (&since, &waits) {
            (Some(since), _) => json!({"running": {"startedAt": since}}),
            (None, Some([reason, message])) => json!({"waiting": {"reason": reason, "message": message}}),
            (None, None) => json!({"waiting": {"reason": "ContainerCreating"}}),
        };
        let mut conditions = vec![json!({"type": "Ready", "status": if ready { "True" } else { "False" }})];
        let mut statuses = json!([{
            "name": "trainer", "image": image, "imageID": "", "ready": ready, "restartCount": 0, "state": state,
        }]);
        if let Some(message) = unschedulable {
            statuses = json!([]);
            conditions.push(json!({
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            }));
        }
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "uid": name,
                "labels": {
                    label::ROLE: role, label::INDEX: index.unwrap_or("0"), label::ATTEMPT: "0", label::JOB_UID: "u-1",
                },
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "trainer", "image": image, "resources": {"requests": requests}}],
            },
            "status": {
                "phase": if since.is_some() { "Running" } else { "Pending" },
                "conditions": conditions, "containerStatuses": statuses,
            },
        }))
        .expect("a pod")
    }
}

fn for_each(folder: &str, answer: impl Fn(&str) -> String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(folder);
    let mut paths: Vec<_> =
        fs::read_dir(&folder).expect("situations").map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no situation in {}", folder.display());
    for path in paths {
        let situation = fs::read_to_string(&path).expect("readable");
        let (facts, expected) = situation.split_once(ANSWER).unwrap_or((situation.trim_end(), ""));
        let found = answer(facts);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, format!("{facts}{ANSWER}{found}")).expect("written");
        } else {
            assert_eq!(found, expected, "{}", path.display());
        }
    }
}

#[test]
fn each_situation_of_a_job_has_its_answer() {
    for_each("why", |facts| {
        let situation: Situation = serde_saphyr::from_str(facts).unwrap_or_else(|error| panic!("{error}:\n{facts}"));
        text(&answer(&situation.facts()))
    });
}

#[test]
fn each_situation_of_a_run_has_its_answer() {
    for_each("why-run", |facts| {
        let facts = serde_saphyr::from_str(facts).unwrap_or_else(|error| panic!("{error}:\n{facts}"));
        text(&local::answer(&facts))
    });
}
