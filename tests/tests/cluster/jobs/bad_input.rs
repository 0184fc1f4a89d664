//! A job with bad input reports the fault and the valid choices. Other jobs continue, and the
//! operator survives.

use lockstep_tests::{
    chart::{NAMESPACE, OPERATOR},
    cluster::{Client, SHELL_IMAGE, wait_for},
};
use serde_json::{Value, json};

use crate::{pods::restricted, shared::PATIENCE};

#[path = "../../../../operator/api/tests/verdicts/mod.rs"]
mod verdicts;

use verdicts::{Verdict, cases, forbidden_changes};

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

#[test]
fn the_api_server_refuses_changes_of_a_job_that_cannot_change() {
    let test = "the_api_server_refuses_changes_of_a_job_that_cannot_change";
    let Some((cluster, _turn)) = any_cluster(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "changes");
    let mut manifest = glyphs("lenet", 1);
    manifest["spec"]["suspend"] = json!(true);
    client.apply_to(namespace.name(), &manifest.to_string()).expect("a job");
    let patch = |change: &Value| {
        let change = json!({"spec": change}).to_string();
        let words = ["patch", "trainingjob", "lenet", "--type=merge", "--dry-run=server", "-p", &change];
        client.kubectl(&[&["-n", namespace.name()][..], &words].concat())
    };
    let differ: Vec<String> = forbidden_changes()
        .into_iter()
        .filter_map(|(field, value)| {
            let answer = patch(&json!({field: value})).map_err(|error| format!("{error:#}"));
            let expected = format!("spec.{field}: cannot change");
            let is_refused = answer.as_ref().is_err_and(|refused| refused.contains(&expected));
            (!is_refused).then(|| format!("{field}: {answer:?}"))
        })
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    let refused = patch(&json!({"replicas": 3})).expect_err("the job is not elastic").to_string();
    assert!(refused.contains("spec.replicas: can change only if spec.elastic gives the bounds"), "{refused}");
    for allowed in [json!({"suspend": false}), json!({"template": {"spec": {"nodeSelector": {"pool": "a"}}}})] {
        patch(&allowed).unwrap_or_else(|error| panic!("{allowed}: {error:#}"));
    }
}

/// A job that waits for something that does not exist: the changes that break a good job, and words
/// of its condition Running.
const WAITING: [(&str, &str, &str, &[&str]); 4] = [
    (
        "no-secret",
        "/spec/template/spec/containers/0/envFrom",
        r#"[{"secretRef": {"name": "no-such-secret"}}]"#,
        &["secret \"no-such-secret\" not found", "create what spec.template names"],
    ),
    (
        "no-volume",
        "/spec/template/spec/volumes/0/persistentVolumeClaim/claimName",
        r#""no-such-claim""#,
        &["persistentvolumeclaim \"no-such-claim\" not found"],
    ),
    (
        "no-gang",
        "/spec/schedulingPolicy",
        r#"{"gang": "volcano"}"#,
        &[
            "spec.schedulingPolicy.gang: volcano: the cluster has no PodGroups of scheduling.volcano.sh",
            "install Volcano",
        ],
    ),
    (
        "no-field",
        "/spec/template/spec/affinity",
        r#"{"nodeAffinity": {"requiredDuringScheduling": {}}}"#,
        &["spec.template.spec.affinity.nodeAffinity.requiredDuringScheduling: unknown: no such field"],
    ),
];

#[test]
fn a_job_that_lacks_something_says_what_and_what_to_do() {
    let test = "a_job_that_lacks_something_says_what_and_what_to_do";
    let Some((cluster, _turn)) = any_cluster(test) else { return };
    let client = cluster.client();
    let (namespace, small) = (restricted(client, "lacks"), restricted(client, "quota"));
    client.kubectl(&["-n", small.name(), "create", "quota", "small", "--hard=pods=1"]).expect("a quota");
    let lacking = WAITING.map(|(name, path, value, words)| {
        let mut manifest = glyphs(name, 1);
        set(&mut manifest, path, serde_json::from_str(value).expect("JSON"));
        (Job::apply(client, namespace.name(), name, &manifest.to_string()), words)
    });
    let crowded = Job::apply(client, small.name(), "crowded", &glyphs("crowded", 1).to_string());
    let good = Job::apply(client, namespace.name(), "good", &glyphs("good", 1).to_string());
    good.wait_for_phase("Complete");
    let quota: &[&str] = &["exceeded quota: small", "requested: pods=1"];
    for (job, words) in lacking.iter().map(|(job, words)| (job, *words)).chain([(&crowded, quota)]) {
        job.wait("its reason", |status| {
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let messages = conditions.iter().filter_map(|condition| condition["message"].as_str());
            messages.into_iter().any(|message| words.iter().all(|word| message.contains(word)))
        });
    }
}

#[test]
fn a_terminating_namespace_takes_its_jobs_along_and_admits_no_other() {
    let test = "a_terminating_namespace_takes_its_jobs_along_and_admits_no_other";
    let Some((cluster, _turn)) = any_cluster(test) else { return };
    let client = cluster.client();
    let (leaving, staying) = (restricted(client, "leaving"), restricted(client, "staying"));
    let restarts_before = operator_restarts(client);
    let job = Job::apply(client, leaving.name(), "lenet", &glyphs("lenet", 5000).to_string());
    job.wait_for_step(1);
    // Something in it has to be let go of first.
    let kept = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kept", "namespace": leaving.name(), "finalizers": ["example.com/kept"]},
    });
    client.apply(&kept.to_string()).expect("a config map");
    client.kubectl(&["delete", "namespace", leaving.name(), "--wait=false"]).expect("deleted");
    let left = || job.kubectl(&["get", "tj,traininggroups,pods", "-o", "name"]);
    wait_for("the job and its pods to go", PATIENCE, || left().is_empty()).unwrap_or_else(|_| panic!("{}", left()));

    let refused = client.apply_to(leaving.name(), &glyphs("late", 1).to_string()).expect_err("it ends").to_string();
    assert!(refused.contains("because it is being terminated"), "{refused}");
    let good = Job::apply(client, staying.name(), "good", &glyphs("good", 1).to_string());
    good.wait_for_phase("Complete");
    assert_eq!(operator_restarts(client), restarts_before, "the operator restarted meanwhile");
    let let_go = r#"{"metadata":{"finalizers":null}}"#;
    job.kubectl(&["patch", "configmap", "kept", "--type=merge", "-p", let_go]);
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
