//! The scrape configuration of docs/on-a-cluster.md, for a Prometheus without its operator.

use std::fs;

use serde_json::{Value, json};

use super::files::{list, promtool, read, text};

const PAGE: &str = "docs/on-a-cluster.md";
/// How the page finds pods. Debian's Prometheus is built without it.
const DISCOVERY: &str = "kubernetes_sd_configs: [{role: pod}]";
/// A pod's namespace, name, port, its label `part-of`, and whether it has a job's name.
const PODS: [[&str; 5]; 4] = [
    ["lockstep-system", "lockstep-operator-1", "metrics", "lockstep", ""],
    ["ml", "lenet-worker-0", "metrics", "", "true"],
    ["ml", "lenet-coordinator", "control", "", "true"],
    ["web", "shop", "metrics", "shop", ""],
];

#[test]
fn the_documented_scrape_configuration_keeps_the_metrics_ports_of_lockstep_with_their_pods() {
    let test = "the_documented_scrape_configuration_keeps_the_metrics_ports_of_lockstep_with_their_pods";
    let page = read(PAGE);
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let written = blocks.into_iter().find(|block| block.starts_with("scrape_configs:"));
    let written = written.unwrap_or_else(|| panic!("{PAGE} has no scrape configuration"));
    assert!(written.contains(DISCOVERY), "{PAGE}: {written}");
    let targets: Vec<Value> = PODS.iter().map(target).collect();
    let written = written.replace(DISCOVERY, &format!("static_configs: {}", Value::from(targets)));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("prometheus.yaml");
    fs::write(&file, written).expect("written");
    let file = file.display().to_string();
    let words = ["check", "service-discovery", "--timeout=1s", &file, "lockstep"];
    let Some(found) = promtool(test, &words) else { return };
    let found: Value = serde_json::from_str(&found).expect("JSON");
    let labels = list(&found).iter().map(|target| &target["labels"]).filter(|labels| labels["pod"].is_string());
    let mut kept: Vec<_> = labels.map(|labels| [text(&labels["namespace"]), text(&labels["pod"])]).collect();
    // Each run of promtool gives the targets in another order.
    kept.sort_unstable();
    assert_eq!(kept, [["lockstep-system", "lockstep-operator-1"], ["ml", "lenet-worker-0"]]);
}

/// A port of a pod, with the labels that Prometheus' discovery gives it.
fn target([namespace, pod, port, part_of, has_job]: &[&str; 5]) -> Value {
    json!({"targets": [format!("{pod}-{port}:1")], "labels": {
        "__meta_kubernetes_namespace": namespace,
        "__meta_kubernetes_pod_name": pod,
        "__meta_kubernetes_pod_container_port_name": port,
        "__meta_kubernetes_pod_label_app_kubernetes_io_part_of": part_of,
        "__meta_kubernetes_pod_labelpresent_lockstep_dev_job_name": has_job,
    }})
}
