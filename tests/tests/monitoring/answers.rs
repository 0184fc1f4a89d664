//! The boards' queries have the right answers to series that are written down here. promtool
//! computes the answers.

use std::fs;

use lockstep_tests::boards::{Query, board, queries};
use serde_json::{Value, json};

use super::files::promtool;

const VARIABLES: [(&str, &str); 4] =
    [("__interval", "1m"), ("__rate_interval", "4m"), ("namespace", "ml"), ("job", "lenet")];

/// Prometheus may scrape once a minute only. That is the time between two points of Grafana's
/// marks.
#[test]
fn a_change_is_marked_once_if_prometheus_scrapes_once_a_minute() {
    let test = "a_change_is_marked_once_if_prometheus_scrapes_once_a_minute";
    let of_job = "job_namespace=\"ml\",job_name=\"lenet\"";
    let cases = [
        ("Group changes", format!("lockstep_generation{{{of_job}}}"), "1x3 2x6", "{job_name=\"lenet\"}", 2),
        (
            "Restarts",
            format!("lockstep_worker_restarts_total{{{of_job},reason=\"oom\"}}"),
            "0x3 1x6",
            "{reason=\"oom\"}",
            1,
        ),
    ];
    for (mark, series, values, labels, value) in cases {
        let series = [(series.as_str(), values)];
        expect(test, "job", mark, &series, "3m", &[]);
        expect(test, "job", mark, &series, "4m", &[(labels, value)]);
        expect(test, "job", mark, &series, "5m", &[]);
    }
}

#[test]
fn workers_are_wanted_only_by_jobs_that_have_not_ended_and_are_not_suspended() {
    let test = "workers_are_wanted_only_by_jobs_that_have_not_ended_and_are_not_suspended";
    let jobs =
        [("runs", "Running"), ("waits", "Pending"), ("rests", "Suspended"), ("done", "Complete"), ("bad", "Failed")];
    let of_jobs = jobs.map(|(job, phase)| {
        let of_job = format!("job_namespace=\"ml\",job_name=\"{job}\"");
        [
            format!("lockstep_workers{{{of_job},state=\"desired\"}}"),
            format!("lockstep_status_phase{{{of_job},phase=\"{phase}\"}}"),
        ]
    });
    let wanted = of_jobs.iter().map(|[workers, _]| (workers.as_str(), "4x9"));
    let phases = of_jobs.iter().map(|[_, phase]| (phase.as_str(), "1x9"));
    let series: Vec<_> = wanted.chain(phases).collect();
    for panel in ["Workers wanted", "Workers wanted and ready"] {
        expect(test, "fleet", panel, &series, "5m", &[("{}", 8)]);
        expect(test, "fleet", panel, &[], "5m", &[("{}", 0)]);
    }
}

#[test]
fn refused_objects_are_no_failed_reconciliations() {
    let test = "refused_objects_are_no_failed_reconciliations";
    let series = [
        ("lockstep_reconciles_total{result=\"error\"}", "0+60x30"),
        ("lockstep_reconcile_errors_total{reason=\"refused\"}", "0+60x30"),
        ("lockstep_reconcile_errors_total{reason=\"request\"}", "0x30"),
    ];
    expect(test, "operator", "Failed reconciliations", &series, "20m", &[("{}", 0)]);
    let requests = [series[0], ("lockstep_reconcile_errors_total{reason=\"request\"}", "0+60x30")];
    expect(test, "operator", "Failed reconciliations", &requests, "20m", &[("{}", 1)]);
    expect(test, "operator", "Failed reconciliations", &[], "20m", &[("{}", 0)]);
}

/// Expects what the first query of a panel or a mark answers at a moment. A series has a value for
/// each minute.
fn expect(test: &str, name: &str, of: &str, series: &[(&str, &str)], at: &str, samples: &[(&str, u32)]) {
    let board = board(name).unwrap_or_else(|error| panic!("{error:#}"));
    let query: Option<Query> = queries(&board).into_iter().find(|query| query.of == of);
    let query = query.unwrap_or_else(|| panic!("{name}: no query of {of}")).filled(&VARIABLES);
    let series: Vec<Value> =
        series.iter().map(|(series, values)| json!({"series": series, "values": values})).collect();
    let samples: Vec<Value> = samples.iter().map(|(labels, value)| json!({"labels": labels, "value": value})).collect();
    let asked = json!([{"expr": query, "eval_time": at, "exp_samples": samples}]);
    let cases = json!({"evaluation_interval": "1m", "tests": [
        {"name": format!("{of} at {at}"), "interval": "1m", "input_series": series, "promql_expr_test": asked},
    ]});
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cases.yaml");
    fs::write(&file, cases.to_string()).expect("written");
    _ = promtool(test, &["test", "rules", &file.display().to_string()]);
}
