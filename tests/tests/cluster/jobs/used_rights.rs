//! The rights of operator and coordinators, and their requests in the API server's audit log: each
//! request has its right, and each right its request.

use std::collections::BTreeSet;

use lockstep_tests::{
    chart::NAMESPACE,
    cluster::{Client, Request, wait_for},
};
use serde_json::{Value, json};

use crate::{
    pods::{pod, restricted},
    shared::PATIENCE,
};

use super::{
    installed::cluster_alone,
    job::{Job, glyphs},
};

/// Group, resource and verb, as a rule of RBAC names them.
type Right = (String, String, String);

/// Rights that this test need not see in use, and why the operator has them.
const UNSEEN: [(&str, &str, &str); 6] = [
    // The API server asks for it when an object blocks the deletion of its owner, in clusters with
    // the admission plugin OwnerReferencesPermissionEnforcement.
    ("lockstep.dev", "trainingjobs/finalizers", "update"),
    // A job that was stored before the CRD refused it is read as it is.
    ("lockstep.dev", "trainingjobs", "get"),
    // This cluster lacks the kind: it takes Kubernetes 1.36 and the feature gate GenericWorkload.
    ("scheduling.k8s.io", "podgroups", "create"),
    // The operator can only grant what it has: the coordinators have these.
    ("lockstep.dev", "traininggroups", "update"),
    ("lockstep.dev", "traininggroups/status", "get"),
    ("lockstep.dev", "traininggroups/status", "patch"),
];

/// The back ends of gang scheduling that a cluster gets by an installation, the groups of their
/// API, and the versions.
const GANGS: [(&str, &str, &str); 3] = [
    ("volcano", "scheduling.volcano.sh", "v1beta1"),
    ("coscheduling", "scheduling.x-k8s.io", "v1alpha1"),
    ("kai", "scheduling.run.ai", "v2alpha2"),
];

#[test]
fn operator_and_coordinators_use_each_of_their_rights_and_need_no_other() {
    let test = "operator_and_coordinators_use_each_of_their_rights_and_need_no_other";
    let Some(cluster) = cluster_alone(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "used");
    let before = cluster.requests().expect("the audit log").len();
    use_all_rights(client, namespace.name());

    // The older requests include those of the operator when it was installed.
    let requests = cluster.requests().expect("the audit log");
    let operator = format!("system:serviceaccount:{NAMESPACE}:lockstep-operator");
    let coordinator = format!("system:serviceaccount:{}:lockstep-coordinator", namespace.name());
    let denied: Vec<&Request> = requests[before..]
        .iter()
        .filter(|request| request.is_denied && [&operator, &coordinator].contains(&&request.account))
        .collect();
    assert!(denied.is_empty(), "denied: {denied:#?}");

    let rules = |words: &[&str]| {
        let object: Value = serde_json::from_str(&client.kubectl(words).expect("rights")).expect("JSON");
        granted(&object["rules"])
    };
    let mut of_operator = rules(&["get", "clusterrole", "lockstep-operator", "-o", "json"]);
    of_operator.extend(rules(&["-n", NAMESPACE, "get", "role", "lockstep-operator-lease", "-o", "json"]));
    let of_coordinator = rules(&["-n", namespace.name(), "get", "role", "lockstep-coordinator", "-o", "json"]);
    let unseen: BTreeSet<Right> =
        UNSEEN.map(|(group, resource, verb)| right(group, resource, verb)).into_iter().collect();
    println!("{} rights of the operator, {} of a coordinator", of_operator.len(), of_coordinator.len());
    let idle = &of_operator - &used(&requests, &operator);
    assert_eq!(&idle - &unseen, BTreeSet::new(), "rights that the operator does not use");
    assert_eq!(&of_coordinator - &used(&requests, &coordinator), BTreeSet::new(), "that a coordinator does not use");
    let free = |used: BTreeSet<Right>, granted: &BTreeSet<Right>| &used - granted;
    assert_eq!(free(used(&requests, &operator), &of_operator), BTreeSet::new(), "used without a rule of the chart");
    assert_eq!(free(used(&requests, &coordinator), &of_coordinator), BTreeSet::new(), "used without a rule");
}

fn right(group: &str, resource: &str, verb: &str) -> Right {
    (group.to_owned(), resource.to_owned(), verb.to_owned())
}

/// Takes jobs through all that operator and coordinators do.
fn use_all_rights(client: &Client, namespace: &str) {
    let apply = |name: &'static str, changes: Value| {
        let mut manifest = glyphs(name, 5000);
        let spec = manifest["spec"].as_object_mut().expect("a spec");
        spec.extend(changes.as_object().expect("fields").clone());
        Job::apply(client, namespace, name, &manifest.to_string())
    };
    let job = apply("lenet", json!({"communication": {"encryption": "tls"}}));
    job.wait_for_step(1);
    let suspend = |suspend: bool| {
        let change = json!({"spec": {"suspend": suspend}}).to_string();
        job.kubectl(&["patch", "tj", "lenet", "--type=merge", "-p", &change]);
    };
    suspend(true);
    job.wait_for_phase("Suspended");
    suspend(false);
    job.wait_for_phase("Running");

    let short = apply("short", json!({"ttlSecondsAfterFinished": 1, "training": {"epochs": 1}}));
    let jobs = || short.kubectl(&["get", "tj", "-o", "name"]);
    wait_for("the job that may live for a second", PATIENCE, || !jobs().contains("/short")).expect("deleted");

    // Somebody else has an object of the name that the job needs: the operator looks whose it is.
    let group = json!({
        "apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingGroup", "metadata": {"name": "taken-group"}, "spec": {},
    });
    client.apply_to(namespace, &group.to_string()).expect("a record");
    client.apply(&pod(namespace, "taken-pod-coordinator", 1, "sleep 600").to_string()).expect("a pod");
    for name in ["taken-group", "taken-pod"] {
        let job = apply(name, json!({}));
        job.wait("whose it is", |status| status.to_string().contains("one that belongs to something else exists"));
    }

    let native = apply("native", json!({"schedulingPolicy": {"gang": "native"}}));
    native.wait("what the cluster lacks", |status| status.to_string().contains("no PodGroups of scheduling.k8s.io"));

    let crds: Vec<Value> = GANGS.iter().map(|(_, group, version)| pod_groups(group, version)).collect();
    let crds = json!({"apiVersion": "v1", "kind": "List", "items": crds}).to_string();
    client.apply(&crds).expect("definitions");
    for (gang, group, version) in GANGS {
        // A definition is served some time after it is established.
        let path = format!("/apis/{group}/{version}/namespaces/{namespace}/podgroups");
        wait_for("the kind to be served", PATIENCE, || client.kubectl(&["get", "--raw", &path]).is_ok()).expect(group);
        let job = apply(gang, json!({"schedulingPolicy": {"gang": gang}}));
        let words = ["get", &format!("podgroups.{group}"), gang];
        wait_for("the group of a gang", PATIENCE, || {
            client.kubectl(&[&["-n", namespace], &words[..]].concat()).is_ok()
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", job.describe()));
    }
    for (_, group, _) in GANGS {
        client.kubectl(&["delete", "crd", &format!("podgroups.{group}")]).expect("deleted");
    }
}

/// Returns a definition of `PodGroup`s that takes any content. No scheduler looks at them.
fn pod_groups(group: &str, version: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("podgroups.{group}")},
        "spec": {
            "group": group,
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "scope": "Namespaced",
            "versions": [{
                "name": version, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

fn granted(rules: &Value) -> BTreeSet<Right> {
    let texts = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).expect("a list of texts") };
    let mut granted = BTreeSet::new();
    for rule in rules.as_array().expect("rules") {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                granted.extend(texts(&rule["verbs"]).into_iter().map(|verb| (group.clone(), resource.clone(), verb)));
            }
        }
    }
    granted
}

/// Returns the rights that an account's requests needed. A server-side apply that makes an object
/// needs the right to create it, too.
fn used(requests: &[Request], account: &str) -> BTreeSet<Right> {
    let mut used = BTreeSet::new();
    for Request { group, resource, verb, code, .. } in
        requests.iter().filter(|request| request.account == account && !request.resource.is_empty())
    {
        used.insert((group.clone(), resource.clone(), verb.clone()));
        if verb == "patch" && *code == 201 {
            used.insert((group.clone(), resource.clone(), "create".to_owned()));
        }
    }
    used
}

#[test]
fn a_right_is_used_by_a_request_of_its_group_resource_and_verb() {
    let rules = json!([{"apiGroups": ["", "apps"], "resources": ["pods", "pods/log"], "verbs": ["get"]}]);
    assert_eq!(granted(&rules).len(), 4);
    let request = |verb: &str, code: u64| Request {
        account: "a".to_owned(),
        resource: "pods".to_owned(),
        verb: verb.to_owned(),
        code,
        ..Request::default()
    };
    let requests = [request("get", 200), request("patch", 201)];
    assert_eq!(used(&requests, "a"), ["get", "patch", "create"].map(|verb| right("", "pods", verb)).into());
    assert_eq!(used(&requests, "b"), BTreeSet::new());
}
