//! A real Prometheus scrapes operator and workers, every query of the boards has values, and
//! promtool accepts the metrics.

use std::{fs, thread, time::Duration};

use lockstep_tests::{
    boards::{Query, board, queries, range},
    chart::{self, NAMESPACE},
    cluster::{Cluster, wait_for},
    prometheus::{Prometheus, Series},
    target,
};
use serde_json::{Value, json};

use crate::{pods::restricted, shared::PATIENCE};

use super::{
    installed::cluster,
    job::{Job, glyphs},
};

const BOARDS: [&str; 3] = ["job", "fleet", "operator"];
/// The time between two changes of the group: a rate needs some samples.
const PHASE: Duration = Duration::from_secs(10);

/// Prometheus inside the cluster's network, with every container port called `metrics` of some
/// namespaces, as the chart's monitors find them.
struct Scraper<'a> {
    cluster: &'a Cluster,
    namespaces: [&'a str; 2],
    prometheus: Prometheus<'a>,
}

impl<'a> Scraper<'a> {
    /// Each port belongs to one test. Tests run side by side.
    fn start(cluster: &'a Cluster, port: u16, namespaces: [&'a str; 2]) -> Self {
        let prometheus = Prometheus::start(&format!("127.0.0.1:{port}"), |program| cluster.inside(program));
        let scraper = Self { cluster, namespaces, prometheus: prometheus.expect("Prometheus starts") };
        scraper.look_again();
        scraper
    }

    /// Scrapes the pods that there are now.
    fn look_again(&self) {
        let targets: Vec<Value> =
            self.namespaces.iter().flat_map(|namespace| targets(self.cluster, namespace)).collect();
        self.prometheus.scrape(&targets).expect("a list of targets");
    }

    /// Scrapes for a while, whatever pods come and go.
    fn watch(&self, time: Duration) {
        for _ in 0..time.as_secs() {
            self.look_again();
            thread::sleep(Duration::from_secs(1));
        }
    }

    fn wait(&self, query: &str, holds: impl Fn(&[f64]) -> bool) {
        let mut last = Vec::new();
        wait_for(query, PATIENCE, || {
            self.look_again();
            last = self.prometheus.query(query).unwrap_or_default();
            holds(&last)
        })
        .unwrap_or_else(|error| panic!("{error}: {last:?}"));
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
            // A pod that has just been made has none.
            let Some(address) = pod["status"]["podIP"].as_str() else { continue };
            let address = format!("{address}:{}", port["containerPort"]);
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
    let prometheus = Scraper::start(&cluster, 9090, [NAMESPACE, namespace.name()]);
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

#[test]
fn every_query_of_every_board_has_values_on_a_prometheus_that_scraped_an_elastic_run() {
    let test = "every_query_of_every_board_has_values_on_a_prometheus_that_scraped_an_elastic_run";
    let Some(cluster) = cluster(test) else { return };
    let client = cluster.client();
    let namespace = restricted(client, "boards");
    let mut manifest = glyphs("lenet", 5000);
    manifest["spec"]["elastic"] = json!({"minReplicas": 1, "maxReplicas": 3});
    manifest["spec"]["communication"] = json!({"backend": "tcp"});
    // It learns as long as it is watched.
    manifest["spec"]["training"]["schedule"] = json!({"baseLearningRate": 0.0005});
    let job = Job::apply(client, namespace.name(), "lenet", &manifest.to_string());
    let scraper = Scraper::start(&cluster, 9091, [NAMESPACE, namespace.name()]);
    job.wait_for_step(100);
    let ready = |workers: u64| {
        job.wait("workers", |status| {
            scraper.look_again();
            status["readyReplicas"] == workers && status["membership"]["worldSize"] == workers
        });
        scraper.watch(PHASE);
    };
    ready(2);
    // It runs for some seconds, so that its start and its end are seen as well.
    let short = Job::apply(client, namespace.name(), "short", &glyphs("short", 60).to_string());
    // One worker alone gives the line to compare with.
    job.kubectl(&["scale", "tj", "lenet", "--replicas=1"]);
    ready(1);
    job.kubectl(&["scale", "tj", "lenet", "--replicas=3"]);
    ready(3);
    cluster.kill_container(namespace.name(), "lenet-worker-1").expect("killed");
    job.wait("a replacement", |status| status["replacements"] == 1);
    ready(3);
    short.wait_for_phase("Complete");
    scraper.watch(PHASE);

    // Pictures of the boards are drawn from these.
    let folder = target().join("boards");
    fs::create_dir_all(&folder).expect("a folder");
    let mut wrong = Vec::new();
    for name in BOARDS {
        let mut answers = Vec::new();
        for query in queries(&board(name).expect("a board")) {
            let text = query.filled(&[
                ("__rate_interval", "10s"),
                ("__interval", "1s"),
                ("__range", "60s"),
                ("namespace", namespace.name()),
                ("job", "lenet"),
            ]);
            if query.asks_for_names() {
                let (selector, label) = names_asked(&text);
                let found = scraper.prometheus.label_values(selector, label).expect(&text);
                println!("{name:8} {:34} {found:?}", query.of);
                wrong.extend(found.is_empty().then(|| format!("{name}: no names of {text}")));
                continue;
            }
            let series = scraper.prometheus.series(&text).expect(&text);
            wrong.extend(
                objection(&query, &series).map(|objection| format!("{name}: {}: {objection}: {text}", query.of)),
            );
            println!("{name:8} {:34} {:14} {}", query.of, query.legend, extent(&series));
            let raw: Vec<_> = series.into_iter().map(|series| series.raw).collect();
            answers.push(json!({"panel": query.of, "legend": query.legend, "series": raw}));
        }
        fs::write(folder.join(format!("{name}.json")), Value::from(answers).to_string()).expect("written");
    }
    job.delete();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the selector and the label of Grafana's `label_values(SELECTOR, LABEL)`.
fn names_asked(text: &str) -> (&str, &str) {
    let inner = text.strip_prefix("label_values(").and_then(|text| text.strip_suffix(')')).expect("label_values");
    inner.rsplit_once(", ").expect("a selector and a label")
}

/// Returns what is wrong with the answer to a query.
fn objection(query: &Query, series: &[Series]) -> Option<String> {
    let (low, high) = range(query);
    let mut values = series.iter().flat_map(|series| &series.values).peekable();
    if values.peek().is_none() {
        return Some("no values".to_owned());
    }
    let odd = values.find(|value| !value.is_finite() || **value < low || **value > high)?;
    Some(format!("{odd} is not in {low} to {high}"))
}

/// Returns the number of series, and their least and greatest value.
fn extent(series: &[Series]) -> String {
    let values = || series.iter().flat_map(|series| series.values.iter().copied());
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    format!("{:3} series, {least:.4} to {most:.4}", series.len())
}
