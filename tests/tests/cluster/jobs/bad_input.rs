//! A job with bad input reports the fault and the valid choices. Other jobs continue, and the
//! operator survives.

use lockstep_tests::{
    chart::{NAMESPACE, OPERATOR},
    cluster::{Client, SHELL_IMAGE},
};
use serde_json::{Value, json};

use crate::pods::restricted;

#[path = "../../../../operator/api/tests/verdicts/mod.rs"]
mod verdicts;

use verdicts::{Verdict, cases};

use super::{
    installed::any_cluster,
    job::{Job, glyphs},
};

#[test]
fn the_api_server_refuses_manifests_that_violate_the_schema() {
    let Some((cluster, _turn)) = any_cluster("the_api_server_refuses_manifests_that_violate_the_schema") else {
        return;
    };
    let client = cluster.client();
    let namespace = restricted(client, "refused");
    for (change, value, words) in [
        ("/spec/replica", json!(2), &["unknown field", "spec.replica"][..]),
        ("/spec/replicas", json!("two"), &["spec.replicas", "integer"]),
        ("/spec/replicas", json!(1001), &["spec.replicas", "1001", "less than or equal to 1000"]),
        ("/spec/model/name", json!("resnet1000"), &["spec.model", "resnet1000"]),
        ("/spec/training/globalBatchSize", json!(0), &["globalBatchSize", "greater than or equal to 1"]),
        ("/spec/checkpoint/uri", json!("checkpoints"), &["spec.checkpoint.uri", "file://"]),
        ("/spec/checkpoint", json!(null), &["spec.checkpoint", "required to train"]),
        ("/spec/benchmark", json!({"collectives": {}}), &["spec.model", "a benchmark trains nothing: leave it out"]),
    ] {
        let mut manifest = glyphs("wrong", 1);
        set(&mut manifest, change, value);
        let refused = client.apply_to(namespace.name(), &manifest.to_string()).expect_err(change).to_string();
        for word in words {
            assert!(refused.contains(word), "{change}: `{word}` is not in {refused}");
        }
    }
}

#[test]
fn local_validation_agrees_with_the_api_server() {
    let test = "local_validation_agrees_with_the_api_server";
    let Some((cluster, _turn)) = any_cluster(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "verdicts");
    let differ: Vec<String> = cases()
        .filter_map(|(manifest, change, verdict)| {
            let answer = client.would_create_in(namespace.name(), &manifest);
            (answer.is_ok() != (verdict == Verdict::Taken))
                .then(|| format!("{change:?}: expected {verdict:?}: {answer:?}"))
        })
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

/// A job that cannot succeed: the changes that break a good job, the reason of its failure, and
/// words of the message.
struct Bad {
    name: &'static str,
    changes: Vec<(&'static str, Value)>,
    reason: &'static str,
    words: &'static [&'static str],
}

#[test]
fn bad_jobs_name_their_fault_while_other_jobs_continue() {
    let Some((cluster, _turn)) = any_cluster("bad_jobs_name_their_fault_while_other_jobs_continue") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "bad");
    let restarts_before = operator_restarts(client);
    let bad = bad_jobs();
    let jobs: Vec<(Job<'_>, &Bad)> = bad
        .iter()
        .map(|bad| {
            let mut manifest = glyphs(bad.name, 1);
            for (path, value) in &bad.changes {
                set(&mut manifest, path, value.clone());
            }
            (Job::apply(client, namespace.name(), bad.name, &manifest.to_string()), bad)
        })
        .collect();
    let good = Job::apply(client, namespace.name(), "good", &glyphs("good", 1).to_string());
    good.wait_for_phase("Complete");
    for (job, bad) in &jobs {
        let status = job.wait_for_phase("Failed");
        let conditions = status["conditions"].as_array().expect("conditions");
        let failed = conditions.iter().find(|condition| condition["type"] == "Failed").expect("a condition");
        assert_eq!(failed["reason"], bad.reason, "{}: {failed:#}", bad.name);
        let message = failed["message"].as_str().unwrap_or_default();
        for word in bad.words {
            assert!(message.contains(word), "{}: `{word}` is not in: {message}", bad.name);
        }
    }
    assert_eq!(operator_restarts(client), restarts_before, "the operator restarted meanwhile");
}

fn bad_jobs() -> Vec<Bad> {
    let soon = ("/spec/failurePolicy", json!({"startupTimeoutSeconds": 45}));
    let idx = |script: &str| {
        let data = json!([{"name": "data", "mountPath": "/data"}]);
        let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        vec![
            ("/spec/dataset", json!({"format": "idx", "uri": "file:///data"})),
            (
                "/spec/template/spec/initContainers",
                json!([{
                    "name": "data", "image": SHELL_IMAGE, "command": ["sh", "-c", script],
                    "volumeMounts": data, "securityContext": restricted,
                }]),
            ),
            ("/spec/template/spec/containers/0/volumeMounts/1", data[0].clone()),
            ("/spec/template/spec/volumes/1", json!({"name": "data", "emptyDir": {}})),
        ]
    };
    vec![
        Bad {
            name: "no-image",
            changes: vec![("/spec/template/spec/containers/0/image", json!("nowhere.invalid/trainer:1")), soon.clone()],
            reason: "StartupTimeout",
            words: &["startupTimeoutSeconds", "nowhere.invalid/trainer:1", "for another image delete the job"],
        },
        Bad {
            name: "no-node",
            changes: vec![("/spec/template/spec/nodeSelector", json!({"no": "such-node"})), soon],
            reason: "StartupTimeout",
            words: &["no-node-", "startupTimeoutSeconds", "node(s) didn't match"],
        },
        Bad { name: "no-data", changes: idx("true"), reason: "InvalidInput", words: &["spec.dataset.uri", "/data"] },
        Bad {
            name: "torn-data",
            // An IDX header that promises too many images: magic 2051, then 100 images of 28 by 28.
            changes: idx(
                "cd /data; printf '\\0\\0\\10\\3\\0\\0\\0\\144\\0\\0\\0\\34\\0\\0\\0\\34torn' > train-images-idx3-ubyte; \
                 printf '\\0\\0\\10\\1\\0\\0\\0\\1\\0' > train-labels-idx1-ubyte",
            ),
            reason: "InvalidInput",
            words: &["train-images-idx3-ubyte"],
        },
        Bad {
            name: "few-samples",
            changes: vec![("/spec/dataset/samples", json!(10)), ("/spec/training/globalBatchSize", json!(4096))],
            reason: "InvalidInput",
            words: &["globalBatchSize", "4096"],
        },
        Bad {
            name: "read-only",
            changes: vec![("/spec/template/spec/containers/0/volumeMounts/0/readOnly", json!(true))],
            reason: "InvalidInput",
            words: &["spec.checkpoint.uri", "file:///checkpoints", "ead-only"],
        },
        Bad {
            name: "not-shared",
            changes: vec![("/spec/template/spec/volumes/0", json!({"name": "checkpoints", "emptyDir": {}}))],
            reason: "InvalidInput",
            words: &["spec.checkpoint.uri", "cannot see what another worker wrote", "ReadWriteMany"],
        },
    ]
}

/// Sets a value at a path. The next index of a list appends to the list.
fn set(manifest: &mut Value, path: &str, value: Value) {
    let (parent, last) = path.rsplit_once('/').expect("a path");
    match manifest.pointer_mut(parent).expect(parent) {
        Value::Array(list) => {
            let index: usize = last.parse().expect("an index");
            list.truncate(index.max(list.len()));
            if index == list.len() { list.push(value) } else { list[index] = value }
        }
        object => object[last] = value,
    }
}

fn operator_restarts(client: &Client) -> String {
    let path = "jsonpath={.items[*].metadata.name} {.items[*].status.containerStatuses[*].restartCount}";
    client.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", OPERATOR, "-o", path]).expect("the operator's pod")
}
