//! The local cluster is a real one: pods, names, addresses, volumes, limits.

use std::fs;

use lockstep_tests::{
    cluster::{FAKE_NODE_LABEL, wait_for},
    image,
};
use serde_json::json;

use crate::{
    pods::{field, log_of_succeeded, pod, restricted},
    shared::{PATIENCE, cluster},
};

#[test]
fn a_pod_runs_on_every_node_and_prints_its_name() {
    let Some(cluster) = cluster("a_pod_runs_on_every_node_and_prints_its_name") else { return };
    let client = cluster.client();
    let namespace = client.namespace("everywhere").expect("a namespace");
    for node in cluster.nodes() {
        let script = "echo \"user $(id -u) on $(hostname)\"";
        client.apply(&pod(namespace.name(), &format!("on-n{node}"), node, script).to_string()).expect("a pod");
    }
    for node in cluster.nodes() {
        let name = format!("on-n{node}");
        assert_eq!(log_of_succeeded(client, namespace.name(), &name), format!("user 65532 on {name}\n"));
        assert_eq!(field(client, namespace.name(), &name, "{.spec.nodeName}"), format!("n{node}"));
    }
}

#[test]
fn a_service_is_found_by_name_and_reached_by_its_address_from_another_node() {
    let Some(cluster) = cluster("a_service_is_found_by_name_and_reached_by_its_address_from_another_node") else {
        return;
    };
    let client = cluster.client();
    let namespace = client.namespace("service").expect("a namespace");
    let server = pod(
        namespace.name(),
        "server",
        1,
        "mkdir /tmp/www; echo hello > /tmp/www/index.html; httpd -f -p 8080 -h /tmp/www",
    );
    client.apply(&server.to_string()).expect("a server");
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace.name(), "name": "greeting"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    client.apply(&service.to_string()).expect("a service");
    let address = client
        .kubectl(&["-n", namespace.name(), "get", "service", "greeting", "-o", "jsonpath={.spec.clusterIP}"])
        .expect("the service has an address");
    // The log would also hold the error output, where `nc` reports refusals until the server is
    // ready.
    let script = format!(
        "exec 2>/dev/null; name=greeting.{}.svc.cluster.local; \
         until nslookup $name | grep -q {address}; do sleep 0.2; done; \
         until printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc {address} 80 | grep hello; do sleep 0.2; done",
        namespace.name()
    );
    client.apply(&pod(namespace.name(), "visitor", 2, &script).to_string()).expect("a visitor");
    assert_eq!(log_of_succeeded(client, namespace.name(), "visitor"), "hello\n");
}

#[test]
fn a_shared_volume_is_the_same_folder_on_two_nodes_for_restricted_pods() {
    let Some(cluster) = cluster("a_shared_volume_is_the_same_folder_on_two_nodes_for_restricted_pods") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "volume");
    let folder = cluster.shared_volume(namespace.name(), "shared").expect("a volume");
    for (name, node, script) in [
        ("writer", 1, "echo written > /shared/by-writer; until [ -e /shared/by-reader ]; do sleep 0.2; done"),
        (
            "reader",
            2,
            "until [ -s /shared/by-writer ]; do sleep 0.2; done; cat /shared/by-writer; touch /shared/by-reader",
        ),
    ] {
        let mut pod = pod(namespace.name(), name, node, script);
        pod["spec"]["volumes"] = json!([{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
        client.apply(&pod.to_string()).expect("a pod");
    }
    assert_eq!(log_of_succeeded(client, namespace.name(), "reader"), "written\n");
    log_of_succeeded(client, namespace.name(), "writer");
    assert_eq!(fs::read_to_string(folder.join("by-writer")).expect("the host sees it too"), "written\n");
}

#[test]
fn a_claim_without_a_class_gets_a_shared_volume() {
    let Some(cluster) = cluster("a_claim_without_a_class_gets_a_shared_volume") else { return };
    let client = cluster.client();
    let namespace = client.namespace("claim").expect("a namespace");
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": namespace.name(), "name": "checkpoints"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    client.apply(&claim.to_string()).expect("a claim");
    wait_for("the claim to be bound", PATIENCE, || {
        let words = ["-n", namespace.name(), "get", "pvc", "checkpoints", "-o", "jsonpath={.status.phase}"];
        client.kubectl(&words).is_ok_and(|phase| phase == "Bound")
    })
    .expect("bound");
}

#[test]
fn a_data_image_fills_an_empty_volume_of_a_restricted_pod() {
    let Some(cluster) = cluster("a_data_image_fills_an_empty_volume_of_a_restricted_pod") else { return };
    let client = cluster.client();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("labels");
    fs::write(&file, "0123").expect("a file");
    let image = image::data("digits", &[file], &folder.path().join("data-digits.tar")).expect("an image");
    cluster.load_image(&image.path).expect("the nodes import it");
    let namespace = restricted(client, "data");
    let mut reader = pod(namespace.name(), "reader", 3, "cat /data/digits/labels");
    let mount = json!([{"name": "data", "mountPath": "/data/digits"}]);
    let mut copy = reader["spec"]["containers"][0].clone();
    copy["name"] = json!("copy");
    copy["image"] = json!(image.name);
    copy["command"] = json!(["cp", "-r", "/digits/.", "/data/digits/"]);
    copy["securityContext"]["readOnlyRootFilesystem"] = json!(true);
    copy["volumeMounts"] = mount.clone();
    reader["spec"]["initContainers"] = json!([copy]);
    reader["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    reader["spec"]["containers"][0]["volumeMounts"] = mount;
    client.apply(&reader.to_string()).expect("a pod");
    assert_eq!(log_of_succeeded(client, namespace.name(), "reader"), "0123");
}

#[test]
fn a_container_that_takes_too_much_memory_is_killed() {
    let Some(cluster) = cluster("a_container_that_takes_too_much_memory_is_killed") else { return };
    let client = cluster.client();
    let namespace = client.namespace("memory").expect("a namespace");
    let mut hog = pod(namespace.name(), "hog", 1, "head -c 200000000 /dev/zero | tail");
    hog["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "32Mi"}});
    client.apply(&hog.to_string()).expect("a pod");
    let reason = "{.status.containerStatuses[0].state.terminated.reason}";
    wait_for("the container's end", PATIENCE, || !field(client, namespace.name(), "hog", reason).is_empty())
        .expect("ended");
    assert_eq!(field(client, namespace.name(), "hog", reason), "OOMKilled");
}

#[test]
fn pods_on_fake_nodes_become_ready_without_running() {
    let Some(cluster) = cluster("pods_on_fake_nodes_become_ready_without_running") else { return };
    let client = cluster.client();
    cluster.fake_nodes(4).expect("fake nodes");
    let namespace = client.namespace("fake").expect("a namespace");
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace.name(), "name": "many"},
        "spec": {
            "replicas": 100,
            "selector": {"matchLabels": {"app": "many"}},
            "template": {
                "metadata": {"labels": {"app": "many"}},
                "spec": {
                    "nodeSelector": {FAKE_NODE_LABEL: "fake"},
                    "tolerations": [{"key": FAKE_NODE_LABEL, "operator": "Exists"}],
                    "containers": [{"name": "c", "image": "nowhere.invalid/nothing:1"}],
                },
            },
        },
    });
    client.apply(&deployment.to_string()).expect("a deployment");
    client
        .kubectl(&["-n", namespace.name(), "rollout", "status", "deployment/many", "--timeout=90s"])
        .expect("all of them are ready");
}
