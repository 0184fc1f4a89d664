//! A real Prometheus scrapes operator and workers, and promtool accepts their metrics.

use std::{
    fs,
    process::{Child, Stdio},
};

use lockstep_tests::{
    chart::{self, NAMESPACE},
    cluster::{Cluster, wait_for},
};
use serde_json::{Value, json};

use crate::{pods::restricted, shared::PATIENCE};

use super::{
    installed::cluster,
    job::{Job, glyphs},
};

const ADDRESS: &str = "127.0.0.1:9090";

/// Prometheus inside the cluster's network. Dropping it ends it.
struct Prometheus<'a> {
    cluster: &'a Cluster,
    child: Child,
    _folder: tempfile::TempDir,
}

impl<'a> Prometheus<'a> {
    /// Scrapes every container port called `metrics` of the namespaces, as the chart's monitors do.
    ///
    /// Debian's Prometheus is built without discovery of pods, so it gets a list of them.
    fn start(cluster: &'a Cluster, namespaces: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        let targets: Vec<Value> = namespaces.iter().flat_map(|namespace| targets(cluster, namespace)).collect();
        write("targets.json", &Value::from(targets).to_string());
        write(
            "prometheus.yml",
            "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: pods, file_sd_configs: [{files: [targets.json]}]}]\n",
        );
        let child = cluster
            .inside("prometheus")
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address={ADDRESS}"))
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Prometheus starts");
        Self { cluster, child, _folder: folder }
    }

    /// Returns the values of a query, one for each series.
    fn query(&self, query: &str) -> Vec<f64> {
        let mut command = self.cluster.inside("promtool");
        command.args(["query", "instant", "--format=json", &format!("http://{ADDRESS}"), query]);
        let answer = command.output().expect("promtool runs");
        let series: Vec<Value> = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        series.iter().filter_map(|series| series["value"][1].as_str()?.parse().ok()).collect()
    }

    fn wait(&self, query: &str, holds: impl Fn(&[f64]) -> bool) {
        let mut last = Vec::new();
        wait_for(query, PATIENCE, || {
            last = self.query(query);
            holds(&last)
        })
        .unwrap_or_else(|error| panic!("{error}: {last:?}"));
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the container ports called `metrics` of a namespace, each with its pod's name.
fn targets(cluster: &Cluster, namespace: &str) -> Vec<Value> {
    let text = cluster.kubectl(&["-n", namespace, "get", "pods", "-o", "json"]).expect("pods");
    let pods: Value = serde_json::from_str(&text).expect("JSON");
    let mut found = Vec::new();
    for pod in pods["items"].as_array().expect("a list") {
        let containers = pod["spec"]["containers"].as_array().expect("containers");
        let ports = containers.iter().flat_map(|container| container["ports"].as_array().into_iter().flatten());
        for port in ports.filter(|port| port["name"] == "metrics") {
            let address = format!("{}:{}", pod["status"]["podIP"].as_str().expect("an address"), port["containerPort"]);
            found.push(json!({
                "targets": [address], "labels": {"namespace": namespace, "pod": pod["metadata"]["name"]},
            }));
        }
    }
    found
}

#[test]
fn prometheus_scrapes_the_metrics_of_operator_and_workers() {
    let Some(cluster) = cluster("prometheus_scrapes_the_metrics_of_operator_and_workers") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "metrics");
    let job = Job::apply(client, namespace.name(), "lenet", &glyphs("lenet", 2000).to_string());
    job.wait_for_step(100);
    let prometheus = Prometheus::start(&cluster, &[NAMESPACE, namespace.name()]);
    let of_job = format!("namespace=\"{}\"", namespace.name());
    prometheus.wait(&format!("up{{namespace=\"{NAMESPACE}\"}}"), |up| up == [1.0]);
    prometheus.wait(&format!("up{{{of_job},pod=~\"lenet-worker-.*\"}}"), |up| up == [1.0, 1.0]);
    prometheus.wait(&format!("lockstep_steps_total{{{of_job}}}"), |steps| {
        steps.len() == 2 && steps.iter().all(|steps| *steps >= 100.0)
    });
    prometheus.wait(&format!("rate(lockstep_steps_total{{{of_job}}}[10s])"), |rates| {
        rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0)
    });
    prometheus
        .wait(&format!("lockstep_status_phase{{job_namespace=\"{}\",phase=\"Running\"}}", namespace.name()), |phase| {
            phase == [1.0]
        });
}

#[test]
fn promtool_accepts_the_operators_metrics() {
    let Some(cluster) = cluster("promtool_accepts_the_operators_metrics") else { return };
    let client = cluster.client();
    let namespace = restricted(client, "promtool");
    Job::apply(client, namespace.name(), "lenet", &glyphs("lenet", 1).to_string()).wait_for_phase("Complete");
    let text = chart::operator_metrics(client).expect("metrics");
    assert!(text.contains("lockstep_status_phase") && text.contains(namespace.name()), "{text}");
    assert_eq!(chart::promtool_objections(&text).expect("promtool"), "", "{text}");
}
