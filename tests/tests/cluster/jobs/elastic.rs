//! Workers come and go on a cluster: by `kubectl scale`, by eviction, by `spec.suspend`, and with
//! their job.

use lockstep_tests::{
    checkpoints::{damage, folder_of, steps},
    cluster::wait_for,
};
use serde_json::{Value, json};

use crate::{pods::restricted, shared::PATIENCE};

use super::{
    history::{
        assert_last_step_is_saved, assert_no_step_was_lost, assert_same_weights_as_undisturbed, assert_undisturbed,
        folder_of_job,
    },
    installed::{cluster, cluster_alone},
    job::{Job, exact, glyphs},
};

/// Epochs for more than any of these tests takes: 145,000 steps, or a million of an exact job.
const LONG: u32 = 5000;
/// Epochs for losing a worker on the way and ending: 2,900 steps.
const SHORT: u32 = 100;

fn elastic(mut manifest: Value, least: u32, most: u32) -> Value {
    manifest["spec"]["elastic"] = json!({"minReplicas": least, "maxReplicas": most});
    manifest
}

fn world(status: &Value) -> Option<u64> {
    status["membership"]["worldSize"].as_u64()
}

#[test]
fn scaling_up_and_down_while_training_loses_no_step() {
    let Some(cluster) = cluster("scaling_up_and_down_while_training_loses_no_step") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "scale");
    let mut manifest = elastic(exact("lenet", LONG), 1, 4);
    // The operator makes the certificates and mounts them from the job's Secret. Every pod has
    // eth0.
    let communication =
        json!({"algorithm": "canonicalTree", "encryption": "tls", "interfaces": ["eth0"], "socketsPerPeer": 2});
    manifest["spec"]["communication"] = communication;
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    let status = job.wait("its communication", |status| status["progress"]["communication"].is_object());
    let sums = &status["progress"]["communication"];
    assert_eq!((&sums["link"], &sums["encryption"]), (&json!("tcp"), &json!("tls")), "{sums:#}");
    let scale = |workers: &str| job.kubectl(&["scale", "trainingjob", "lenet", &format!("--replicas={workers}")]);
    scale("4");
    job.wait("four workers", |status| world(status) == Some(4));
    scale("1");
    let status = job.wait("one worker", |status| world(status) == Some(1) && status["replicas"] == 1);
    assert_eq!((&status["restarts"], &status["failures"]), (&json!(0), &json!(0)), "{status:#}");
    let described = job.describe();
    for event in ["from 2 to 4 workers", "from 4 to 1 workers"] {
        assert!(described.contains(event), "{event}: {described}");
    }

    let refused = client.kubectl(&["-n", namespace.name(), "scale", "trainingjob", "lenet", "--replicas=5"]);
    let refused = format!("{:#}", refused.expect_err("above maxReplicas"));
    assert!(refused.contains("spec.elastic.maxReplicas"), "{refused}");

    assert_undisturbed(&cluster, namespace.name(), &job, 0);
}

#[test]
fn a_newcomer_that_cannot_see_the_groups_storage_is_refused_while_the_group_trains() {
    let name = "a_newcomer_that_cannot_see_the_groups_storage_is_refused_while_the_group_trains";
    let Some(cluster) = cluster(name) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "blind");
    let mut manifest = elastic(exact("lenet", LONG), 1, 2);
    manifest["spec"]["replicas"] = json!(1);
    manifest["spec"]["failurePolicy"] = json!({"backoffLimit": 100});
    manifest["spec"]["template"]["spec"]["volumes"][0] = json!({"name": "checkpoints", "emptyDir": {}});
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    let scale = |workers: &str| job.kubectl(&["scale", "trainingjob", "lenet", &format!("--replicas={workers}")]);
    scale("2");
    let is_blind = |failure: &Value| {
        let message = failure["message"].as_str().unwrap_or_default();
        message.contains("lenet-worker-1 cannot see what another worker wrote there")
    };
    let status = job.wait("the refusal", |status| is_blind(&status["lastFailure"]));
    assert_eq!(
        (&status["lastFailure"]["pod"], &status["restarts"]),
        (&json!("lenet-worker-1"), &json!(0)),
        "{status:#}"
    );
    scale("1");
    job.wait("one worker", |status| world(status) == Some(1) && status["replicas"] == 1);
    job.wait_for_step(job.reported_step() + 50);
    let changes = job.group()["status"]["changes"].take();
    let is_rollback = |change: &Value| change["rollback"] == true;
    assert!(!changes.as_array().expect("changes").iter().any(is_rollback), "{changes:#}");
}

#[test]
fn an_evicted_worker_leaves_after_a_step_and_is_replaced() {
    let Some(cluster) = cluster("an_evicted_worker_leaves_after_a_step_and_is_replaced") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "evict");
    let job = Job::apply(client, namespace.name(), "lenet", &elastic(exact("lenet", LONG), 1, 2).to_string());
    job.wait_for_step(20);
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "lenet-worker-1", "namespace": namespace.name()},
    });
    client
        .create_raw(
            &format!("/api/v1/namespaces/{}/pods/lenet-worker-1/eviction", namespace.name()),
            &eviction.to_string(),
        )
        .expect("evicted");
    let status = job.wait("a replacement", |status| status["replacements"] == 1);
    assert_eq!((&status["restarts"], &status["failures"]), (&json!(0), &json!(0)), "{status:#}");
    job.wait("both workers again", |status| status["replacing"].is_null() && status["readyReplicas"] == 2);
    let left = job.group()["status"]["changes"]
        .as_array()
        .expect("changes")
        .iter()
        .any(|change| change["left"][0]["pod"] == "lenet-worker-1" && change["lost"].is_null());
    assert!(left, "it did not leave as planned: {:#}", job.group()["status"]["changes"]);
    job.wait_for_event(&["lenet-worker-1 left (asked to stop within 30 s)", "agreed on in"]);

    assert_undisturbed(&cluster, namespace.name(), &job, 0);
}

fn suspend(job: &Job<'_>, suspend: bool) {
    let patch = json!({"spec": {"suspend": suspend}}).to_string();
    job.kubectl(&["patch", "tj", "lenet", "--type=merge", "-p", &patch]);
}

#[test]
fn a_suspended_job_has_no_pods_and_resumes_from_its_step() {
    let Some(cluster) = cluster("a_suspended_job_has_no_pods_and_resumes_from_its_step") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "suspend");
    let job = Job::apply(client, namespace.name(), "lenet", &exact("lenet", LONG).to_string());
    job.wait_for_step(20);
    suspend(&job, true);
    let status = job.wait_for_phase("Suspended");
    assert_eq!(job.kubectl(&["get", "pods", "-o", "name"]), "", "{status:#}");
    let rested = job.group()["spec"]["record"]["rested"].as_u64().expect("the step at which it rests");
    assert_eq!(status["lastCheckpoint"]["step"].as_u64(), Some(rested), "{status:#}");
    suspend(&job, false);
    let status = job.wait("a later step", |status| status["progress"]["step"].as_u64() > Some(rested));
    assert_eq!((&status["restarts"], &status["failures"]), (&json!(0), &json!(0)), "{status:#}");
    job.wait_for_event(&[&format!("of step {rested} or later")]);

    assert_undisturbed(&cluster, namespace.name(), &job, 0);
}

#[test]
fn a_damaged_checkpoint_is_skipped_and_reported_until_there_is_a_newer_one() {
    let Some(cluster) = cluster("a_damaged_checkpoint_is_skipped_and_reported_until_there_is_a_newer_one") else {
        return;
    };
    let client = cluster.client();
    let namespace = restricted(client, "damaged");
    let mut manifest = exact("lenet", LONG);
    manifest["spec"]["checkpoint"]["intervalSeconds"] = json!(15);
    // A suspension is no failure.
    manifest["spec"]["failurePolicy"] = json!({"backoffLimit": 0});
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait("a checkpoint", |status| status["lastCheckpoint"]["step"].is_u64());
    suspend(&job, true);
    let status = job.wait_for_phase("Suspended");
    let damaged = status["lastCheckpoint"]["step"].as_u64().expect("the last step");
    let folder = folder_of_job(&cluster.folder_of(namespace.name(), "checkpoints").expect("the volume"));
    let whole = steps(&folder).into_iter().filter(|step| *step < damaged).max();
    damage(&folder_of(&folder, damaged)).expect("damaged");

    suspend(&job, false);
    let reported = |status: &Value| status["progress"]["damagedCheckpoint"]["step"].as_u64();
    let status = job.wait("the report", |status| reported(status) == Some(damaged));
    assert_eq!((&status["restarts"], &status["failures"]), (&json!(0), &json!(0)), "{status:#}");
    let changes = job.group()["status"]["changes"].clone();
    let last = &changes[changes.as_array().map_or(0, |changes| changes.len() - 1)];
    assert_eq!((last["step"].as_u64(), &last["rollback"]), (whole, &json!(true)), "{changes:#}");
    job.wait_for_event(&["CheckpointDamaged"]);
    let newest = |status: &Value| status["lastCheckpoint"]["step"].as_u64();
    let status = job.wait("a newer checkpoint", |status| newest(status) > Some(damaged) && reported(status).is_none());
    assert_eq!((&status["restarts"], &status["failures"]), (&json!(0), &json!(0)), "{status:#}");
    job.delete();
}

#[test]
fn a_deleted_job_saves_its_state_and_ends_long_before_its_grace_period() {
    let test = "a_deleted_job_saves_its_state_and_ends_long_before_its_grace_period";
    let Some(cluster) = cluster(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "gone");
    let mut manifest = glyphs("lenet", LONG);
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(600);
    manifest["spec"]["checkpoint"]["intervalSeconds"] = json!(600);
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    // The job's record, and the coordinator's right to write it, vanish with the job. The pods are
    // still there then.
    job.delete();
    let pods = || job.kubectl(&["get", "pods", "-o", "name"]);
    wait_for("all pods to be gone", PATIENCE, || pods().is_empty())
        .unwrap_or_else(|error| panic!("{error}: {}", pods()));
    assert_last_step_is_saved(&cluster, namespace.name());
}

#[test]
fn a_job_that_reuses_a_name_learns_nothing_from_the_job_before() {
    let Some(cluster) = cluster("a_job_that_reuses_a_name_learns_nothing_from_the_job_before") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "again");
    let [mut manifest, mut other] = ["lenet", "other"].map(|name| glyphs(name, LONG));
    // This job keeps the account with which the coordinators of the namespace write.
    other["spec"]["template"]["spec"]["nodeSelector"] = json!({"no": "such-node"});
    let other = Job::apply(client, namespace.name(), "other", &other.to_string());
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(60);
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    job.wait_for_step(20);
    // The frozen coordinator sends its last report when the next job's group exists.
    cluster.freeze_container(namespace.name(), "lenet-coordinator").expect("frozen");
    let coordinator = || {
        let words = ["get", "pod", "lenet-coordinator", "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"];
        job.kubectl(&words)
    };
    let before = coordinator();
    job.delete();
    wait_for("the deleted job to be gone", PATIENCE, || {
        job.kubectl(&["get", "tj", "lenet", "--ignore-not-found", "-o", "name"]).is_empty()
    })
    .expect("gone");
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    let ours = job.kubectl(&["get", "tj", "lenet", "-o", "jsonpath={.metadata.uid}"]);
    let group = || -> Value {
        let group = job.kubectl(&["get", "traininggroup", "lenet", "--ignore-not-found", "-o", "json"]);
        serde_json::from_str(&group).unwrap_or_default()
    };
    wait_for("its group", PATIENCE, || group()["metadata"]["ownerReferences"][0]["uid"] == ours.as_str())
        .expect("made");
    cluster.thaw_container(namespace.name(), "lenet-coordinator").expect("the coordinator still runs");
    wait_for("the coordinator of the deleted job to be gone", PATIENCE, || {
        let is_gone = coordinator() != before;
        let status = group()["status"].take();
        assert!(status.is_null(), "{status:#}");
        is_gone
    })
    .expect("gone");
    job.wait_for_step(20);
    job.delete();
    other.delete();
}

#[test]
fn a_worker_whose_node_lost_power_is_replaced_and_the_job_completes_without_losing_a_step() {
    let test = "a_worker_whose_node_lost_power_is_replaced_and_the_job_completes_without_losing_a_step";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "node");
    // The job needs both workers. The remaining one keeps the state and waits.
    let mut manifest = glyphs("lenet", SHORT);
    manifest["spec"]["communication"] = json!({"algorithm": "ring"});
    manifest["spec"]["devicesPerWorker"] = json!(2);
    manifest["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"lockstep.dev/role": "worker"}},
    }]);
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    // The loss of a node shows sooner on a pod that was ready.
    job.wait("both workers", |status| status["phase"] == "Running");
    let node = job.nodes_of_workers().first().and_then(|node| node.strip_prefix('n')?.parse().ok()).expect("a node");
    cluster.power_off(node).expect("power off");

    let lost = job.wait("a replacement", |status| status["replacements"].as_u64() > Some(0));
    assert_eq!((&lost["restarts"], &lost["failures"]), (&json!(0), &json!(0)), "{lost:#}");
    let status = job.wait_for_phase("Complete");
    assert_eq!(status["restarts"], 0, "{status:#}");
    let done = assert_no_step_was_lost(&cluster, namespace.name(), &job);
    assert_eq!(status["progress"]["totalSteps"].as_u64(), Some(done), "{status:#}");
    assert_same_weights_as_undisturbed(&cluster, namespace.name(), &manifest);
    cluster.power_on(node).expect("power on");
    cluster.wait_for_node(node).expect("back");
}
