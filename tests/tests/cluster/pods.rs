//! Pods of busybox, and their results.

use lockstep_tests::cluster::{Client, Namespace, SHELL_IMAGE, wait_for};
use serde_json::{Value, json};

use crate::shared::PATIENCE;

/// Returns a pod of busybox on a node. It satisfies the restricted profile and runs a script once.
pub(crate) fn pod(namespace: &str, name: &str, node: u32, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": format!("n{node}")},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "shell", "image": SHELL_IMAGE, "command": ["sh", "-c", script],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

pub(crate) fn field(client: &Client, namespace: &str, pod: &str, path: &str) -> String {
    client.kubectl(&["-n", namespace, "get", "pod", pod, "-o", &format!("jsonpath={path}")]).expect("a pod")
}

fn phase(client: &Client, namespace: &str, pod: &str) -> String {
    field(client, namespace, pod, "{.status.phase}")
}

pub(crate) fn log_of_succeeded(client: &Client, namespace: &str, pod: &str) -> String {
    wait_for("the pod to succeed", PATIENCE, || phase(client, namespace, pod) == "Succeeded").unwrap_or_else(|error| {
        panic!("{error}: {}", client.kubectl(&["-n", namespace, "describe", "pod", pod]).unwrap_or_default())
    });
    client.kubectl(&["-n", namespace, "logs", pod]).expect("its log")
}

/// Makes a namespace that admits only pods of the restricted profile.
pub(crate) fn restricted<'a>(client: &'a Client, prefix: &str) -> Namespace<'a> {
    let namespace = client.namespace(prefix).expect("a namespace");
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    client.kubectl(&["label", "namespace", namespace.name(), enforce]).expect("a label");
    namespace
}
