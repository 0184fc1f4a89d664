//! The benchmark of the collectives on the cluster's network.

use std::collections::BTreeMap;

use crate::pods::restricted;

use super::{
    installed::cluster,
    job::{Job, example},
};

#[test]
fn a_benchmark_leaves_its_table_in_the_log_of_worker_0_and_in_the_status() {
    let Some(cluster) = cluster("a_benchmark_leaves_its_table_in_the_log_of_worker_0_and_in_the_status") else {
        return;
    };
    let client = cluster.client();
    let namespace = restricted(client, "collectives");
    let manifest = example("collectives.yaml").replace("maxBytes: 64Mi", "maxBytes: 1Mi");
    let job = Job::apply(client, namespace.name(), "collectives", &manifest);
    let status = job.wait_for_phase("Complete");
    let condition =
        status["conditions"].as_array().expect("conditions").iter().find(|known| known["type"] == "Complete");
    let message = condition.and_then(|condition| condition["message"].as_str()).unwrap_or_default();
    assert!(message.contains("best bus bandwidth") && message.contains("over 4 workers"), "{status:#}");
    assert_eq!(status["progress"]["percent"], 100, "{status:#}");

    let rows = status["benchmark"]["collectives"]["rows"].as_array().expect("a table");
    let mut chosen = BTreeMap::<u64, usize>::new();
    for row in rows {
        let count = chosen.entry(row["bytes"].as_u64().expect("a size")).or_default();
        *count += usize::from(row["chosen"] == true);
    }
    let expected: BTreeMap<u64, usize> = (0..6).map(|step| (1024 << (2 * step), 1)).collect();
    assert_eq!(chosen, expected, "{rows:#?}");

    let log = job.kubectl(&["logs", "collectives-worker-0"]);
    for row in rows {
        let [algorithm, microseconds] = [&row["algorithm"], &row["microseconds"]];
        let (algorithm, time) = (algorithm.as_str().expect("a name"), microseconds.as_f64().expect("a time"));
        // The log rounds the measured figure, and the status rounds the reported one.
        let in_log = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let shown = words.get(2).and_then(|shown| shown.parse::<f64>().ok());
            words.get(1) == Some(&algorithm) && shown.is_some_and(|shown| (shown - time).abs() <= 0.11)
        };
        assert!(log.lines().any(in_log), "{algorithm} {time}:\n{log}");
    }
}
