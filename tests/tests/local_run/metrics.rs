//! The worker's metrics are what Prometheus takes for good ones.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use lockstep_tests::{chart::promtool_objections, skip};

use crate::run::{Manifest, Run, alone, wait_for};

/// GET of a path on this machine.
pub(crate) fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.0 200").then(|| body.to_owned())
}

/// Where a worker serves its metrics, from its log.
pub(crate) fn metrics_address(run: &Run, worker: u32) -> String {
    let log = run.folder().join(format!("logs/worker-{worker}.log"));
    let mut found = None;
    wait_for("the metrics address", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        found = text.split_whitespace().find_map(|word| word.strip_prefix("metrics=").map(str::to_owned));
        found.is_some()
    });
    found.expect("just found")
}

#[test]
fn a_workers_metrics_please_promtool() {
    let _alone = alone();
    let over_tcp =
        ["--workers", "2", "--set", "spec.communication.backend=tcp", "--set", "spec.communication.wire=bf16"];
    let run = Run::of("metrics", &Manifest::glyphs(10_000, 2000), &over_tcp);
    run.wait_for_step(100);
    let text = get(&metrics_address(&run, 0), "/metrics").expect("served");
    for metric in
        ["lockstep_steps_total", "lockstep_phase_seconds_total", "lockstep_scaling_efficiency_ratio", "lockstep_loss"]
    {
        assert!(text.contains(metric), "{metric} is missing:\n{text}");
    }
    assert!(text.contains("job_name=\"lenet\"") && text.contains("job_namespace=\"local\""), "{text}");
    assert!(text.contains("link=\"tcp\",wire=\"bf16\","), "how gradients travel is missing:\n{text}");
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 130, "{series} series of one worker");
    let steps = text
        .lines()
        .find_map(|line| line.strip_prefix("lockstep_steps_total{")?.rsplit(' ').next()?.parse::<f64>().ok());
    assert!(steps.is_some_and(|steps| steps >= 100.0), "{steps:?}");

    match promtool_objections(&text) {
        Ok(objections) => assert_eq!(objections, "", "{text}"),
        Err(why) => skip("promtool on a worker's metrics", &format!("{why:#}")),
    }
}
