//! `docs/metrics.md`, made from the table.

use std::fmt::Write as _;

use crate::table::{self, Exporter, Kind, Metric, Unit};

/// Returns the page in Markdown.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(HEAD);
    for (exporter, title, about) in SECTIONS {
        let _ = write!(
            page,
            "\n## {title}\n\n{about}\n\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n"
        );
        for metric in table::ALL.iter().filter(|metric| metric.exporter == exporter) {
            page.push_str(&row(metric));
        }
    }
    page
}

const HEAD: &str = "<!-- Made from trainer/metrics/src/table.rs by its test `page`; do not edit. -->\n\
# Metrics\n\n\
Every process of Lockstep serves Prometheus metrics at `/metrics`: the operator on port 8080, the pods of\n\
a job on port 9464, and the processes of a `lockstep run` where their logs say `metrics=ADDRESS`. The\n\
chart's `metrics.serviceMonitor.enabled` and `metrics.podMonitor.enabled` let a Prometheus operator find\n\
them.\n";

const SECTIONS: [(Exporter, &str, &str); 5] = [
    (
        Exporter::Job,
        "Of a job",
        "In a cluster the operator exports them; a `lockstep run` has them from its coordinator. So each job has\neach series once. They have the labels `job_namespace` and `job_name`, and end with the job.",
    ),
    (
        Exporter::JobInCluster,
        "Of a job in a cluster",
        "The operator exports them, with the labels `job_namespace` and `job_name`.",
    ),
    (
        Exporter::Worker,
        "Of a worker",
        "Each worker exports them about itself, with the labels `job_namespace` and `job_name`. The scrape adds the\npod. The phases are `compute` (forward, backward, update), `data` (waits for samples), `barrier_wait` (waits\nfor slower ranks), `exposed_comm` (waits for sums that computation did not hide), `checkpoint`, `resize`\n(from the end of one group to the first step of the next), `evaluation`, and `other` (start-up, reports).",
    ),
    (Exporter::Operator, "Of the operator", "They are about the operator itself and about all jobs together."),
    (
        Exporter::Process,
        "Of every process",
        "Beside `process_cpu_seconds_total`, `process_resident_memory_bytes` and the like, under their usual names.",
    ),
];

fn row(metric: &Metric) -> String {
    let Metric { name, kind, unit, labels, exporter: _, meaning } = metric;
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let unit = match unit {
        Unit::Seconds => "s",
        Unit::Timestamp => "s since 1970",
        Unit::Bytes => "bytes",
        Unit::Ratio => "0 to 1",
        Unit::SamplesPerSecond => "samples/s",
        Unit::BytesPerSecond => "bytes/s",
        Unit::FlopsPerSecond => "FLOP/s",
        Unit::Count | Unit::Value => "",
    };
    let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
    format!("| `{name}` | {kind} | {unit} | {} | {meaning} |\n", labels.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, page()).expect("written");
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(found, page(), "run: UPDATE=1 cargo test --release --locked -p lockstep-metrics");
    }
}
