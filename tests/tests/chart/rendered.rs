//! The objects of the chart for each way to install it.

use std::{collections::BTreeSet, fs};

use lockstep_tests::{
    chart::{
        NAMESPACE,
        variants::{VARIANTS, Variant},
    },
    root,
};
use serde_json::{Value, json};

use super::objects::{kinds, name, only, refused, rendered};

/// Kinds without a namespace.
const SPAN_THE_CLUSTER: [&str; 4] =
    ["ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

#[test]
fn in_every_variant_each_object_has_its_own_name_a_namespace_and_the_part_of_label() {
    let test = "in_every_variant_each_object_has_its_own_name_a_namespace_and_the_part_of_label";
    for Variant { name: variant, words } in VARIANTS {
        let Some(objects) = rendered(test, words) else { return };
        let mut seen = BTreeSet::new();
        for object in &objects {
            let (kind, metadata) = (object["kind"].as_str().expect("a kind"), &object["metadata"]);
            let at = format!("{variant}: {kind} {}", name(object));
            assert_eq!(metadata["labels"]["app.kubernetes.io/part-of"], "lockstep", "{at}");
            assert_eq!(metadata["namespace"].is_null(), SPAN_THE_CLUSTER.contains(&kind), "{at}");
            assert!(seen.insert((kind, metadata["namespace"].as_str(), name(object))), "{at} twice");
        }
    }
}

#[test]
fn in_every_variant_pods_are_restricted() {
    for Variant { name: variant, words } in VARIANTS {
        let Some(objects) = rendered("in_every_variant_pods_are_restricted", words) else { return };
        let pods = [
            only(&objects, "Deployment", "").pointer("/spec/template/spec").expect("a pod"),
            &only(&objects, "Pod", "-test")["spec"],
        ];
        for pod in pods {
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{variant}");
            assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{variant}");
            for container in pod["containers"].as_array().expect("containers") {
                let context = &container["securityContext"];
                assert_eq!(context["allowPrivilegeEscalation"], false, "{variant}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{variant}");
                assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{variant}");
            }
        }
    }
}

#[test]
fn several_operators_are_spread_and_keep_one_through_an_eviction() {
    let test = "several_operators_are_spread_and_keep_one_through_an_eviction";
    let Some(one) = rendered(test, &[]) else { return };
    let Some(two) = rendered(test, &["--set", "replicas=2"]) else { return };
    let spread = |objects: &[Value]| {
        let deployment = only(objects, "Deployment", "-operator");
        deployment.pointer("/spec/template/spec/topologySpreadConstraints/0/topologyKey").cloned()
    };
    assert_eq!((spread(&one), spread(&two)), (None, Some(json!("kubernetes.io/hostname"))));
    assert!(!kinds(&one).contains(&"PodDisruptionBudget"));
    assert_eq!(only(&two, "PodDisruptionBudget", "-operator")["spec"]["minAvailable"], 1);
}

#[test]
fn an_operator_of_some_namespaces_has_a_role_in_each_and_none_of_the_cluster() {
    let test = "an_operator_of_some_namespaces_has_a_role_in_each_and_none_of_the_cluster";
    let Some(objects) = rendered(test, &["--set", "watchNamespaces={one,two}"]) else { return };
    for kind in ["Role", "RoleBinding"] {
        let found = objects.iter().filter(|object| object["kind"] == kind && name(object) == "lockstep-operator");
        let namespaces: Vec<_> = found.map(|object| object["metadata"]["namespace"].clone()).collect();
        assert_eq!(namespaces, ["one", "two"], "{kind}");
    }
    assert!(!kinds(&objects).contains(&"ClusterRoleBinding"));
    let arguments = only(&objects, "Deployment", "-operator").pointer("/spec/template/spec/containers/0/args");
    let arguments = arguments.and_then(Value::as_array).expect("arguments");
    assert!(arguments.contains(&json!("--namespace=one")) && arguments.contains(&json!("--namespace=two")));
}

#[test]
fn nothing_spans_the_cluster_if_that_is_asked_for() {
    let variant = VARIANTS.iter().find(|variant| variant.name == "without anything that spans the cluster");
    let words = variant.expect("such a variant").words;
    let Some(objects) = rendered("nothing_spans_the_cluster_if_that_is_asked_for", words) else { return };
    for kind in kinds(&objects) {
        assert!(!SPAN_THE_CLUSTER.contains(&kind), "{kind}");
    }
}

#[test]
fn who_may_edit_jobs_may_scale_them_and_who_may_view_them_sees_their_scale() {
    let test = "who_may_edit_jobs_may_scale_them_and_who_may_view_them_sees_their_scale";
    let Some(objects) = rendered(test, &[]) else { return };
    let verbs = |role: &str| -> Vec<Value> {
        let rules = only(&objects, "ClusterRole", role)["rules"].as_array().expect("rules");
        let of_scale = |rule: &&Value| {
            rule["apiGroups"] == json!(["lockstep.dev"])
                && rule["resources"].as_array().is_some_and(|named| named.contains(&json!("trainingjobs/scale")))
        };
        rules.iter().filter(of_scale).map(|rule| rule["verbs"].clone()).collect()
    };
    assert_eq!(verbs("-view"), [json!(["get"])]);
    assert_eq!(verbs("-edit"), [json!(["get", "patch", "update"])]);
}

#[test]
fn each_board_is_a_config_map_with_the_files_text_the_sidecars_label_and_a_folder() {
    let test = "each_board_is_a_config_map_with_the_files_text_the_sidecars_label_and_a_folder";
    let words = [
        "--set",
        "metrics.dashboards.enabled=true,metrics.dashboards.namespace=grafana,metrics.dashboards.folder=Training",
    ];
    let Some(objects) = rendered(test, &words) else { return };
    for board in ["job", "fleet", "operator"] {
        let found = only(&objects, "ConfigMap", &format!("-dashboard-{board}"));
        assert_eq!(found["metadata"]["namespace"], "grafana");
        assert_eq!(found["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(found["metadata"]["annotations"], json!({"grafana_folder": "Training"}));
        let file = fs::read_to_string(root().join(format!("charts/lockstep/files/dashboards/{board}.json")));
        let text = found["data"][format!("lockstep-{board}.json")].as_str().expect("a board");
        assert_eq!(text.trim_end(), file.expect("a board").trim_end(), "{board}");
    }
}

#[test]
fn alerts_can_be_left_out_and_get_labels_and_addresses_of_runbooks() {
    let test = "alerts_can_be_left_out_and_get_labels_and_addresses_of_runbooks";
    let on = "metrics.prometheusRule.enabled=true,metrics.prometheusRule.labels.release=p";
    let Some(whole) = rendered(test, &["--set", on]) else { return };
    let moved = "metrics.prometheusRule.runbookBaseUrl=https://runbooks.example/,metrics.prometheusRule.disabledAlerts=\
                 {LockstepOperatorDown},metrics.prometheusRule.alertLabels.team=ml,\
                 metrics.prometheusRule.alertLabels.severity=none";
    let Some(fewer) = rendered(test, &["--set", on, "--set", moved]) else { return };
    let alerts = |objects: &[Value]| -> Vec<Value> {
        let rule = only(objects, "PrometheusRule", "lockstep");
        assert_eq!(rule["metadata"]["labels"]["release"], "p");
        let groups = rule["spec"]["groups"].as_array().expect("groups");
        groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
    };
    let (whole, fewer) = (alerts(&whole), alerts(&fewer));
    assert_eq!(fewer.len() + 1, whole.len());
    assert!(whole.iter().any(|alert| alert["alert"] == "LockstepOperatorDown"));
    for alert in &whole {
        let keys = |of: &str| alert[of].as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            (keys("labels"), keys("annotations")),
            (vec!["severity".into()], vec!["description".into(), "summary".into()])
        );
    }
    for alert in fewer {
        let name = alert["alert"].as_str().expect("a name");
        assert_ne!(name, "LockstepOperatorDown");
        assert_eq!(alert["labels"]["team"], "ml", "{name}");
        assert_ne!(alert["labels"]["severity"], "none", "{name}");
        assert_eq!(alert["annotations"]["runbook_url"], format!("https://runbooks.example/{name}.md"));
    }
}

#[test]
fn monitors_carry_the_labels_that_prometheus_selects_by() {
    let words = [
        "--set",
        "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=p,metrics.podMonitor.enabled=true,\
         metrics.podMonitor.labels.release=q,watchNamespaces={one}",
    ];
    let Some(objects) = rendered("monitors_carry_the_labels_that_prometheus_selects_by", &words) else { return };
    assert_eq!(only(&objects, "ServiceMonitor", "-operator")["metadata"]["labels"]["release"], "p");
    let workers = only(&objects, "PodMonitor", "-workers");
    assert_eq!(workers["metadata"]["labels"]["release"], "q");
    assert_eq!(workers["spec"]["namespaceSelector"], json!({"matchNames": ["one"]}));
}

#[test]
fn a_network_policy_lets_in_who_is_named_and_the_pod_of_helm_test() {
    let words =
        ["--set", "networkPolicy.enabled=true,networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus"];
    let Some(objects) = rendered("a_network_policy_lets_in_who_is_named_and_the_pod_of_helm_test", &words) else {
        return;
    };
    let policy = only(&objects, "NetworkPolicy", "-operator");
    let from = policy.pointer("/spec/ingress/0/from").and_then(Value::as_array).expect("peers");
    assert_eq!(from[0]["podSelector"]["matchLabels"], json!({"app": "prometheus"}));
    let test_labels = &from[1]["podSelector"]["matchLabels"];
    let test_pod = only(&objects, "Pod", "-test");
    for (key, value) in test_labels.as_object().expect("labels") {
        assert_eq!(&test_pod["metadata"]["labels"][key], value, "{key}");
    }
    let selected = &policy["spec"]["podSelector"]["matchLabels"];
    assert_eq!(selected, &only(&objects, "Deployment", "-operator")["spec"]["selector"]["matchLabels"]);
    assert_eq!(only(&objects, "Deployment", "-operator")["metadata"]["namespace"], NAMESPACE);
}

#[test]
fn wrong_values_are_refused_by_name() {
    let cases = [
        ("replica=2", "replica"),
        ("replicas=two", "replicas"),
        ("metrics.serviceMonitor.enable=true", "enable"),
        ("watchNamespaces={Not_A_Name}", "watchNamespaces"),
        ("podSecurityContext.runAsNotRoot=true", "runAsNotRoot"),
        ("affinity.nodes=true", "affinity"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("networkPolicy.apiServerPorts={70000}", "apiServerPorts"),
        ("metrics.prometheusRule.runbookBaseUrl=docs", "runbookBaseUrl"),
        ("metrics.dashboards.labels.grafana_dashboard=null", "labels"),
        (
            "metrics.prometheusRule.enabled=true,metrics.prometheusRule.disabledAlerts={LockstepNoSuch}",
            "there is no alert LockstepNoSuch; the alerts are LockstepJobStalled",
        ),
        (
            "metrics.serviceMonitor.enabled=true,metrics.service.enabled=false",
            "metrics.serviceMonitor.enabled: it scrapes the Service; set metrics.service.enabled=true",
        ),
        ("serviceAccount.create=false", "serviceAccount.name: name the service account to use"),
    ];
    for (words, expected) in cases {
        let Some(message) = refused("wrong_values_are_refused_by_name", &["--set", words]) else { return };
        assert!(message.contains(expected), "{words}: {message}");
    }
}
