//! Nodes, images and the control plane fail while a job trains. The job continues, or resumes once
//! they are back, and loses no step.

use lockstep_tests::{
    cluster::{Client, Cluster, wait_for},
    images,
};
use serde_json::{Value, json};

use crate::{pods::restricted, shared::PATIENCE};

use super::{
    history::{assert_undisturbed, assert_undisturbed_states},
    installed::{cluster, cluster_alone},
    job::{Job, exact, glyphs},
};

/// Epochs for more than the outages take on most machines: a million steps.
const LONG: u32 = 5000;
/// Steps that prove that training goes on.
const MORE: u64 = 200;

/// Returns a job of two workers on separate nodes. One worker is enough to train.
fn apart() -> Value {
    let mut manifest = exact("lenet", LONG);
    manifest["spec"]["elastic"] = json!({"minReplicas": 1, "maxReplicas": 3});
    manifest["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"lockstep.dev/role": "worker"}},
    }]);
    manifest
}

fn world(status: &Value) -> Option<u64> {
    status["membership"]["worldSize"].as_u64()
}

/// Checks that nothing failed or restarted, that every step is in the metrics log once, and that
/// the states up to `through` are those of an undisturbed run.
fn assert_unharmed(cluster: &Cluster, namespace: &str, job: &Job<'_>, through: u64) {
    let status = job.status();
    assert_eq!((&status["restarts"], &status["failures"]), (&json!(0), &json!(0)), "{status:#}");
    assert_undisturbed(cluster, namespace, job, through);
}

/// Returns the number of the node of a worker.
fn node_of(job: &Job<'_>, worker: usize) -> u32 {
    let nodes = job.nodes_of_workers();
    nodes.get(worker).and_then(|node| node.strip_prefix('n')?.parse().ok()).expect("a node")
}

#[test]
fn training_goes_on_while_the_control_plane_is_restarted() {
    let Some(cluster) = cluster_alone("training_goes_on_while_the_control_plane_is_restarted") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "plane");
    let job = Job::apply(client, namespace.name(), "lenet", &apart().to_string());
    job.wait("both workers", |status| status["phase"] == "Running");
    let before = job.reported_step();
    cluster.restart_etcd().expect("etcd is back");
    cluster.restart_api_server().expect("the API server is back");
    job.wait_for_step(before + MORE);
    let status =
        job.wait("the report of that step", |status| status["progress"]["step"].as_u64() >= Some(before + MORE));
    assert_eq!((&status["replacements"], world(&status)), (&json!(0), Some(2)), "a worker was replaced: {status:#}");
    assert_unharmed(&cluster, namespace.name(), &job, before + MORE);
}

#[test]
fn a_worker_trains_on_while_its_nodes_kubelet_is_stopped() {
    let Some(cluster) = cluster_alone("a_worker_trains_on_while_its_nodes_kubelet_is_stopped") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "kubelet");
    let mut manifest = apart();
    // The tolerations keep the pods from being evicted before the kubelet is back.
    let stays = |key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    let keys = ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"];
    manifest["spec"]["template"]["spec"]["tolerations"] = keys.map(stays).into_iter().collect();
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait("both workers", |status| status["phase"] == "Running");
    let node = node_of(&job, 1);
    cluster.stop_kubelet(node).expect("stopped");
    wait_for("the node to be lost", PATIENCE, || !cluster.is_ready(node)).expect("lost");
    let before = job.reported_step();
    job.wait_for_step(before + MORE);
    let status = job.status();
    assert_eq!((&status["replacements"], world(&status)), (&json!(0), Some(2)), "a worker was lost: {status:#}");
    cluster.start_kubelet(node).expect("started");
    cluster.wait_for_node(node).expect("back");
    job.wait_for_step(before + 2 * MORE);
    assert_unharmed(&cluster, namespace.name(), &job, before + 2 * MORE);
}

#[test]
fn training_goes_on_without_a_disconnected_node_and_uses_it_again_once_it_is_back() {
    let test = "training_goes_on_without_a_disconnected_node_and_uses_it_again_once_it_is_back";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "cable");
    let job = Job::apply(client, namespace.name(), "lenet", &apart().to_string());
    job.wait("both workers", |status| status["phase"] == "Running");
    let coordinator = job.kubectl(&["get", "pod", "lenet-coordinator", "-o", "jsonpath={.spec.nodeName}"]);
    let worker = job.nodes_of_workers().iter().position(|node| *node != coordinator).expect("another node");
    let node = node_of(&job, worker);
    cluster.isolate(node).expect("unplugged");
    job.wait("one worker", |status| world(status) == Some(1));
    job.wait("a replacement", |status| status["replacements"] == 1);
    cluster.heal(node).expect("plugged");
    cluster.wait_for_node(node).expect("back");
    job.wait("both workers again", |status| status["replacing"].is_null() && world(status) == Some(2));
    let before = job.reported_step();
    job.wait_for_step(before + MORE);
    assert_unharmed(&cluster, namespace.name(), &job, before + MORE);
}

#[test]
fn training_goes_on_while_the_coordinators_node_is_disconnected_and_a_new_coordinator_takes_over() {
    let test = "training_goes_on_while_the_coordinators_node_is_disconnected_and_a_new_coordinator_takes_over";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "chair");
    let job = Job::apply(client, namespace.name(), "lenet", &apart().to_string());
    job.wait("both workers", |status| status["phase"] == "Running");
    let coordinator = || ["{.metadata.uid}", "{.spec.nodeName}"].map(|of| of_coordinator(client, namespace.name(), of));
    let [before, node] = coordinator();
    let number: u32 = node.strip_prefix('n').and_then(|number| number.parse().ok()).expect("a node");
    let with_it = job.nodes_of_workers().iter().filter(|worker| **worker == node).count();
    cluster.isolate(number).expect("unplugged");
    // The operator may have been on that node. It is then replaced first.
    wait_for("another coordinator", 2 * PATIENCE, || {
        let [uid, other] = coordinator();
        !uid.is_empty() && uid != before && !other.is_empty() && other != node
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", job.describe()));
    let step = job.reported_step();
    job.wait_for_step(step + MORE);
    // The old coordinator still runs there and finds that it no longer owns the record.
    cluster.heal(number).expect("plugged");
    cluster.wait_for_node(number).expect("back");
    let whole = |status: &Value| status["replacing"].is_null() && world(status) == Some(2);
    let status = job.wait("both workers", whole);
    assert_eq!(status["replacements"].as_u64(), Some(with_it as u64), "{status:#}");
    let step = job.reported_step();
    job.wait_for_step(step + MORE);
    assert_unharmed(&cluster, namespace.name(), &job, step + MORE);
}

/// Returns a field of the coordinator's pod; empty if there is none.
fn of_coordinator(client: &Client, namespace: &str, field: &str) -> String {
    let path = format!("jsonpath={field}");
    let words = ["-n", namespace, "get", "pod", "lenet-coordinator", "--ignore-not-found", "-o", &path];
    client.kubectl(&words).unwrap_or_default()
}

/// The taint that asks pods to leave a node that will be removed. Tools that watch a cloud's
/// notices set such a taint.
const NOTICE: &str = "example.com/spot-notice";

/// The way in which a node is emptied.
#[derive(Clone, Copy)]
enum Emptied {
    Drained,
    Tainted,
}

/// A node that accepts pods again when this is dropped.
struct Closed<'a> {
    cluster: &'a Cluster,
    node: String,
    emptied: Emptied,
}

impl<'a> Closed<'a> {
    fn emptied(emptied: Emptied, cluster: &'a Cluster, node: String) -> Self {
        let closed = Self { cluster, node, emptied };
        let node = &closed.node;
        match emptied {
            Emptied::Drained => {
                let drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=80s"];
                let evicted = cluster.kubectl(&drain).expect("drained");
                assert!(evicted.contains("lenet-worker-1 evicted"), "{evicted}");
            }
            Emptied::Tainted => {
                cluster.kubectl(&["taint", "node", node, &format!("{NOTICE}=:NoExecute")]).expect("tainted");
            }
        }
        closed
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let Self { cluster, node, emptied } = self;
        let opened = match emptied {
            Emptied::Drained => cluster.kubectl(&["uncordon", node]),
            Emptied::Tainted => cluster.kubectl(&["taint", "node", node, &format!("{NOTICE}-")]),
        };
        if let Err(error) = opened {
            eprintln!("the tests after this one lack {node}: {error:#}");
        }
    }
}

/// Empties the node of one of two workers. Checks that the worker leaves after a step and is
/// replaced elsewhere.
fn assert_no_step_is_lost(test: &str, emptied: Emptied) {
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "emptied");
    let job = Job::apply(client, namespace.name(), "lenet", &apart().to_string());
    job.wait("both workers", |status| status["phase"] == "Running");
    let before = job.reported_step();
    let closed = Closed::emptied(emptied, &cluster, format!("n{}", node_of(&job, 1)));
    job.wait("a replacement", |status| status["replacements"] == 1);
    job.wait("both workers again", |status| status["replacing"].is_null() && world(status) == Some(2));
    assert!(!job.nodes_of_workers().contains(&closed.node), "{}", job.describe());
    job.wait_for_step(before + MORE);
    let changes = job.group()["status"]["changes"].clone();
    let changes = changes.as_array().expect("changes");
    let left = |change: &Value| change["left"][0]["pod"] == "lenet-worker-1";
    assert!(changes.iter().any(left) && changes.iter().all(|change| change["lost"].is_null()), "{changes:#?}");
    assert_unharmed(&cluster, namespace.name(), &job, before + MORE);
}

#[test]
fn a_drained_node_costs_no_step() {
    assert_no_step_is_lost("a_drained_node_costs_no_step", Emptied::Drained);
}

#[test]
fn a_node_with_a_termination_notice_costs_no_step() {
    assert_no_step_is_lost("a_node_with_a_termination_notice_costs_no_step", Emptied::Tainted);
}

/// Refuses the records of jobs in a namespace until this is dropped.
struct Refused<'a>(&'a Cluster);

impl<'a> Refused<'a> {
    fn records_in(namespace: &str, cluster: &'a Cluster) -> Self {
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "no-records"},
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": ["lockstep.dev"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["traininggroups"],
                }]},
                "validations": [{"expression": "false", "message": "no record is good enough", "reason": "RequestEntityTooLarge"}],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "no-records"},
            "spec": {
                "policyName": "no-records", "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
            },
        });
        let refused = Self(cluster);
        for object in [policy, binding] {
            cluster.apply(&object.to_string()).expect("applied");
        }
        refused
    }
}

impl Drop for Refused<'_> {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            if let Err(error) = self.0.kubectl(&["delete", kind, "no-records", "--ignore-not-found"]) {
                eprintln!("records of the tests after this one may be refused: {error:#}");
            }
        }
    }
}

#[test]
fn a_job_whose_record_is_refused_saves_its_state_names_the_reason_and_resumes_later() {
    let test = "a_job_whose_record_is_refused_saves_its_state_names_the_reason_and_resumes_later";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "refused-record");
    let mut manifest = apart();
    manifest["spec"]["failurePolicy"] = json!({"backoffLimit": 20});
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    let refused = Refused::records_in(namespace.name(), &cluster);
    let status = job.wait("another attempt", |status| status["restarts"].as_u64() > Some(0));
    drop(refused);
    let message = status["lastFailure"]["message"].as_str().unwrap_or_default();
    for words in ["which is saved", "TrainingGroup lenet is refused", "no record is good enough (413)", "maxReplicas"] {
        assert!(message.contains(words), "`{words}` is not in: {message}");
    }
    let step = message.split_once("stopped after step ").and_then(|(_, rest)| rest.split_once(',')?.0.parse().ok());
    let saved: u64 = step.unwrap_or_else(|| panic!("{message}"));
    job.wait_for_step(saved + MORE);
    // The record was refused, so it could not say that the state is saved.
    let changes = job.group()["status"]["changes"].clone();
    let begun = changes.as_array().and_then(|changes| changes.iter().find(|change| change["rollback"] == true));
    assert_eq!(begun.and_then(|change| change["step"].as_u64()), Some(saved), "{changes:#}");
    assert!(begun.is_some_and(|change| change["redone"].is_null()), "steps were done again: {changes:#}");
    assert_undisturbed_states(&cluster, namespace.name(), &job, saved + MORE);
}

/// Loads all images into every node when this is dropped.
struct Loaded<'a>(&'a Cluster);

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        for archive in images() {
            if let Err(error) = self.0.load_image(archive) {
                eprintln!("the tests after this one lack an image: {error:#}");
            }
        }
    }
}

#[test]
fn training_goes_on_while_a_new_worker_waits_for_its_image() {
    let Some(cluster) = cluster_alone("training_goes_on_while_a_new_worker_waits_for_its_image") else {
        return;
    };
    let client = cluster.client();
    let namespace = restricted(client, "image");
    let job = Job::apply(client, namespace.name(), "lenet", &apart().to_string());
    job.wait("both workers", |status| status["phase"] == "Running");
    let image = job.kubectl(&["get", "pod", "lenet-worker-0", "-o", "jsonpath={.spec.containers[0].image}"]);
    let loaded = Loaded(&cluster);
    cluster.remove_image(&image).expect("removed");
    job.kubectl(&["scale", "tj", "lenet", "--replicas=3"]);
    let said = |status: &Value| status["conditions"].to_string().contains(&image);
    job.wait("the missing image", said);
    let before = job.reported_step();
    job.wait_for_step(before + MORE);
    drop(loaded);
    job.wait("all three workers", |status| world(status) == Some(3));
    assert_unharmed(&cluster, namespace.name(), &job, before + MORE);
}

#[test]
fn a_worker_that_exceeds_its_memory_limit_fails_the_job_as_oom_killed() {
    let Some(cluster) = cluster("a_worker_that_exceeds_its_memory_limit_fails_the_job_as_oom_killed") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "memory");
    let mut manifest = glyphs("lenet", 1);
    manifest["spec"]["dataset"]["samples"] = 150_000.into();
    manifest["spec"]["failurePolicy"] = json!({"backoffLimit": 0});
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    let status = job.wait_for_phase("Failed");
    assert_eq!(status["lastFailure"]["reason"], "OOMKilled", "{status:#}");
}
