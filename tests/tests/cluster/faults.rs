//! Nodes and the control plane fail as real ones do, and come back.

use std::fs;

use lockstep_tests::cluster::wait_for;
use serde_json::json;

use crate::{
    pods::pod,
    shared::{PATIENCE, cluster_alone},
};

#[test]
fn a_node_without_power_is_lost_and_comes_back() {
    let Some(cluster) = cluster_alone("a_node_without_power_is_lost_and_comes_back") else { return };
    cluster.power_off(3).expect("power off");
    wait_for("the node to be lost", PATIENCE, || !cluster.is_ready(3)).expect("lost");
    cluster.power_on(3).expect("power on");
    cluster.wait_for_node(3).expect("back");
}

#[test]
fn a_node_without_cable_is_lost_and_comes_back() {
    let Some(cluster) = cluster_alone("a_node_without_cable_is_lost_and_comes_back") else { return };
    cluster.isolate(2).expect("unplugged");
    wait_for("the node to be lost", PATIENCE, || !cluster.is_ready(2)).expect("lost");
    cluster.heal(2).expect("plugged");
    cluster.wait_for_node(2).expect("back");
}

#[test]
fn a_pod_outlives_its_nodes_kubelet() {
    let Some(cluster) = cluster_alone("a_pod_outlives_its_nodes_kubelet") else { return };
    let client = cluster.client();
    let namespace = client.namespace("kubelet").expect("a namespace");
    let folder = cluster.shared_volume(namespace.name(), "shared").expect("a volume");
    let script = "while :; do date +%s%N > /shared/now.new; mv /shared/now.new /shared/now; sleep 0.1; done";
    let mut clock = pod(namespace.name(), "clock", 1, script);
    clock["spec"]["volumes"] = json!([{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]);
    clock["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
    client.apply(&clock.to_string()).expect("a pod");
    let now = || fs::read_to_string(folder.join("now")).unwrap_or_default();
    wait_for("the pod to run", PATIENCE, || !now().is_empty()).expect("runs");
    cluster.stop_kubelet(1).expect("stopped");
    let then = now();
    wait_for("the pod to run on", PATIENCE, || now() != then).expect("runs on");
    cluster.start_kubelet(1).expect("started");
    cluster.wait_for_node(1).expect("ready");
}

#[test]
fn what_was_written_outlives_the_api_server_and_etcd() {
    let Some(cluster) = cluster_alone("what_was_written_outlives_the_api_server_and_etcd") else { return };
    let client = cluster.client();
    let namespace = client.namespace("outage").expect("a namespace");
    client
        .kubectl(&["-n", namespace.name(), "create", "configmap", "note", "--from-literal=text=kept"])
        .expect("a note");
    cluster.restart_etcd().expect("etcd is back");
    cluster.restart_api_server().expect("the API server is back");
    let words = ["-n", namespace.name(), "get", "configmap", "note", "-o", "jsonpath={.data.text}"];
    assert_eq!(client.kubectl(&words).expect("the note"), "kept");
}
