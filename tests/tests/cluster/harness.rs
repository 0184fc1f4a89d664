//! The local cluster is a real one, and its nodes fail as real ones do.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use lockstep_tests::cluster::wait_for;

use crate::shared::{NODES, SHELL_IMAGE, cluster, kubectl};

/// Nodes are taken for lost after 16 s; everything here is faster than this.
const PATIENCE: Duration = Duration::from_secs(90);

fn pod(name: &str, namespace: &str, node: u32, script: &str, claim: Option<&str>) -> String {
    let (mounts, volumes) = match claim {
        Some(claim) => (
            "volumeMounts: [{name: shared, mountPath: /shared}]".to_owned(),
            format!("volumes: [{{name: shared, persistentVolumeClaim: {{claimName: {claim}}}}}]"),
        ),
        None => ("volumeMounts: []".to_owned(), "volumes: []".to_owned()),
    };
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}, spec: {{\
         nodeName: n{node}, restartPolicy: Never, terminationGracePeriodSeconds: 1, {volumes}, containers: [{{name: c, image: \"{SHELL_IMAGE}\", \
         command: [/bin/busybox, sh, -c, \"{script}\"], {mounts}}}]}}}}\n---\n"
    )
}

#[test]
fn pods_on_every_node_run_find_each_other_by_name_and_share_a_volume() {
    let Some(cluster) = cluster("pods_on_every_node_run") else { return };
    kubectl(cluster, &["create", "namespace", "harness"]);
    let folder = cluster.shared_volume("harness", "shared").expect("a volume");
    let mut yaml = "{apiVersion: v1, kind: Service, metadata: {name: first, namespace: harness}, spec: {selector: {app: w1}, \
                    ports: [{port: 80, targetPort: 8080}]}}\n---\n"
        .to_owned();
    let serve = "echo hello > /shared/index.html; /bin/busybox httpd -f -p 8080 -h /shared";
    yaml += &pod("w1", "harness", 1, serve, Some("shared"));
    let fetch = "until /bin/busybox nslookup first.harness.svc.cluster.local; do /bin/busybox sleep 0.2; done; \
                 until /bin/busybox nc $FIRST_SERVICE_HOST 80 < /dev/null; do /bin/busybox sleep 0.2; done; \
                 until /bin/busybox test -s /shared/index.html; do /bin/busybox sleep 0.2; done; /bin/busybox cat /shared/index.html";
    for node in 2..=NODES {
        yaml += &pod(&format!("w{node}"), "harness", node, fetch, Some("shared"));
    }
    cluster.apply(&yaml).expect("applied");
    for node in 2..=NODES {
        let name = format!("w{node}");
        wait_for("the pod's end", PATIENCE, || {
            kubectl(cluster, &["-n", "harness", "get", "pod", &name, "-o", "jsonpath={.status.phase}"]) == "Succeeded"
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", kubectl(cluster, &["-n", "harness", "describe", "pods"])));
        assert!(kubectl(cluster, &["-n", "harness", "logs", &name]).contains("hello"));
    }
    assert_eq!(std::fs::read_to_string(folder.join("index.html")).expect("the host sees the volume"), "hello\n");
    kubectl(cluster, &["delete", "namespace", "harness", "--wait=false"]);
}

#[test]
fn a_node_without_power_is_lost_and_comes_back() {
    let Some(cluster) = cluster("a_node_without_power_is_lost") else { return };
    cluster.power_off(3);
    wait_for("the node to be lost", PATIENCE, || !cluster.is_ready(3)).expect("lost");
    cluster.power_on(3).expect("power");
    cluster.wait_for_node(3).expect("back");
}

#[test]
fn a_node_without_cable_is_lost_and_comes_back() {
    let Some(cluster) = cluster("a_node_without_cable_is_lost") else { return };
    cluster.isolate(2).expect("unplugged");
    wait_for("the node to be lost", PATIENCE, || !cluster.is_ready(2)).expect("lost");
    cluster.heal(2).expect("plugged");
    cluster.wait_for_node(2).expect("back");
}

#[test]
fn a_killed_owner_leaves_nothing_behind() {
    if let Err(why) = lockstep_tests::cluster::available() {
        lockstep_tests::skip("a_killed_owner_leaves_nothing_behind", &why);
        return;
    }
    // An owner that dies before it stops anything: the guard alone has to do it.
    let namespace = Path::new("/run/netns/lockstep-bench");
    let made = Command::new("ip").args(["netns", "add", "lockstep-bench"]).status().expect("ip runs");
    assert!(made.success());
    let mut guard = Command::new(env!("CARGO_BIN_EXE_lockstep-cluster-guard"))
        .args(["guard", "bench"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the guard starts");
    assert!(namespace.exists(), "it waits as long as its owner lives");
    drop(guard.stdin.take());
    assert!(guard.wait().expect("it ends").success());
    assert!(!namespace.exists(), "the namespace is left behind");
}
