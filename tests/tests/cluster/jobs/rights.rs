//! The rights to write records.

use lockstep_tests::chart::NAMESPACE;

use crate::pods::restricted;

use super::{
    installed::any_cluster,
    job::{Job, glyphs},
};

#[test]
fn only_its_own_coordinator_writes_a_record() {
    let Some((cluster, _turn)) = any_cluster("only_its_own_coordinator_writes_a_record") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "rights");
    let job = Job::apply(client, namespace.name(), "lenet", &glyphs("lenet", 5000).to_string());
    job.wait_for_step(1);
    let account = format!("--as=system:serviceaccount:{}:lockstep-coordinator", namespace.name());
    let group = format!("--as-group=system:serviceaccounts:{}", namespace.name());
    let write = |pod: &str| {
        let as_pod = format!("--as-user-extra=authentication.kubernetes.io/pod-name={pod}");
        let change = r#"{"metadata":{"labels":{"seen":"yes"}}}"#;
        let words = ["-n", namespace.name(), &account, &group, &as_pod, "patch", "traininggroup", "lenet"];
        client.kubectl(&[&words[..], &["--subresource=status", "--type=merge", "-p", change]].concat())
    };
    let refused = write("other-coordinator").expect_err("another job's coordinator").to_string();
    assert!(refused.contains("TrainingGroup lenet is written by the pod lenet-coordinator only"), "{refused}");
    write("lenet-coordinator").expect("its own coordinator");
}

/// What the accounts of Lockstep may not do, as `kubectl auth can-i` asks for it.
const DENIED_TO_OPERATOR: [&str; 16] = [
    "get secrets",
    "list secrets",
    "watch secrets",
    "delete secrets",
    "get configmaps",
    "create pods --subresource=exec",
    "get pods --subresource=log",
    "patch pods",
    "create serviceaccounts --subresource=token",
    "impersonate serviceaccounts",
    "escalate roles",
    "bind clusterroles",
    "create clusterroles",
    "patch trainingjobs",
    "list nodes",
    "delete namespaces",
];
const DENIED_TO_COORDINATOR: [&str; 14] = [
    "patch traininggroups",
    "update traininggroups --subresource=status",
    "list traininggroups",
    "create traininggroups",
    "delete traininggroups",
    "get trainingjobs",
    "patch trainingjobs",
    "patch trainingjobs --subresource=status",
    "get secrets",
    "list pods",
    "delete pods",
    "create pods",
    "get configmaps",
    "create events",
];

#[test]
fn operator_and_coordinator_may_not_do_what_is_not_theirs() {
    let Some((cluster, _turn)) = any_cluster("operator_and_coordinator_may_not_do_what_is_not_theirs") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "denied");
    let job = Job::apply(client, namespace.name(), "lenet", &glyphs("lenet", 5000).to_string());
    job.wait_for_step(1);
    let may = |account: &str, place: &str, question: &str| {
        let account = format!("--as=system:serviceaccount:{account}");
        let words: Vec<&str> = question.split(' ').collect();
        let asked = client.kubectl(&[&["auth", "can-i", "-n", place, account.as_str()], &words[..]].concat());
        // The answer no is a failure with that word.
        asked.is_ok_and(|answer| answer.trim().ends_with("yes"))
    };
    let operator = format!("{NAMESPACE}:lockstep-operator");
    let coordinator = format!("{}:lockstep-coordinator", namespace.name());
    assert!(may(&operator, namespace.name(), "create secrets") && may(&operator, namespace.name(), "delete pods"));
    assert!(may(&coordinator, namespace.name(), "update traininggroups/lenet"));
    for question in DENIED_TO_OPERATOR {
        assert!(!may(&operator, namespace.name(), question), "the operator may {question}");
    }
    for question in DENIED_TO_COORDINATOR {
        assert!(!may(&coordinator, namespace.name(), question), "a coordinator may {question}");
    }
    for question in ["get traininggroups", "update traininggroups"] {
        assert!(!may(&coordinator, NAMESPACE, question), "a coordinator may {question} of another namespace");
    }
    let worker = format!("{}:default", namespace.name());
    for question in ["get traininggroups", "get secrets", "list pods", "get trainingjobs"] {
        assert!(!may(&worker, namespace.name(), question), "the account of workers may {question}");
    }
}

#[test]
fn a_workers_pod_has_no_token_and_a_coordinators_pod_has_one() {
    let Some((cluster, _turn)) = any_cluster("a_workers_pod_has_no_token_and_a_coordinators_pod_has_one") else {
        return;
    };
    let client = cluster.client();
    let namespace = restricted(client, "token");
    let job = Job::apply(client, namespace.name(), "lenet", &glyphs("lenet", 5000).to_string());
    job.wait_for_step(1);
    let pod = |name: &str| job.kubectl(&["get", "pod", name, "-o", "json"]);
    for worker in ["lenet-worker-0", "lenet-worker-1"] {
        let text = pod(worker);
        assert!(!text.contains("serviceAccountToken") && !text.contains("kubernetes.io/serviceaccount"), "{text}");
        assert!(text.contains("\"automountServiceAccountToken\": false"), "{text}");
    }
    assert!(pod("lenet-coordinator").contains("kubernetes.io/serviceaccount"));
}
