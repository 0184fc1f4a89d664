//! Prometheus' own tool accepts the worker's metrics.

use lockstep_tests::{
    chart::promtool_objections,
    metrics::{of_worker, value},
    skip,
};

use crate::run::{Manifest, Run, alone};

/// Returns the metrics of a worker, once it serves them.
pub(crate) fn metrics(run: &Run, worker: usize) -> String {
    let mut found = None;
    run.wait_until("a worker's metrics", || {
        found = of_worker(run.folder(), worker);
        found.is_some()
    });
    found.expect("just found")
}

#[test]
fn promtool_accepts_a_workers_metrics() {
    let _alone = alone();
    let over_tcp =
        ["--workers", "2", "--set", "spec.communication.backend=tcp", "--set", "spec.communication.wire=bf16"];
    let run = Run::of("metrics", &Manifest::glyphs(10_000, 2000), &over_tcp);
    run.wait_for_step(100);
    // The first reports tell no efficiency.
    run.wait_until("an efficiency", || !baselines(&run).is_empty());
    let noise = || value(&metrics(&run, 0), "lockstep_gradient_noise_scale");
    run.wait_until("the gradients' noise", || noise().is_some_and(|noise| noise > 0.0 && noise.is_finite()));
    let text = metrics(&run, 0);
    for metric in ["lockstep_steps_total", "lockstep_phase_seconds_total", "lockstep_gradient_norm", "lockstep_loss"] {
        assert!(text.contains(metric), "{metric} is missing:\n{text}");
    }
    assert!(text.contains("job_name=\"lenet\"") && text.contains("job_namespace=\"local\""), "{text}");
    assert!(text.contains("link=\"tcp\",wire=\"bf16\","), "link and wire are missing:\n{text}");
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 130, "one worker serves {series} series");
    let steps = value(&text, "lockstep_steps_total");
    assert!(steps.is_some_and(|steps| steps >= 100.0), "{steps:?}");
    let waited = value(&text, "lockstep_stable_wait_seconds_total");
    assert!(waited.is_some_and(|waited| waited > 0.0), "the wait for committed steps is missing: {waited:?}");

    match promtool_objections(&text) {
        Ok(objections) => assert_eq!(objections, "", "{text}"),
        Err(why) => skip("promtool on a worker's metrics", &format!("{why:#}")),
    }
}

/// Returns the sources of the throughput that a worker's scaling efficiency compares with.
fn baselines(run: &Run) -> Vec<String> {
    let text = of_worker(run.folder(), 0).unwrap_or_default();
    let series = text.lines().filter(|line| line.starts_with("lockstep_scaling_efficiency_ratio{"));
    series.filter_map(|line| Some(line.split("baseline=\"").nth(1)?.split('"').next()?.to_owned())).collect()
}

#[test]
fn the_efficiency_is_estimated_until_one_worker_has_trained_alone() {
    let _alone = alone();
    let elastic = ["--workers", "2", "--set", "spec.elastic.minReplicas=1", "--set", "spec.elastic.maxReplicas=2"];
    let run = Run::of("efficiency", &Manifest::glyphs(10_000, 2000), &elastic);
    run.wait_until("an efficiency by an estimate", || baselines(&run) == ["estimated"]);
    run.scale(1);
    run.wait_until("the throughput of one worker", || baselines(&run) == ["measured"]);
    run.scale(2);
    run.wait_for_workers_again(2);
    let text = metrics(&run, 0);
    run.wait_until("more steps", || {
        let steps = |text: &str| value(text, "lockstep_steps_total").unwrap_or_default();
        steps(&metrics(&run, 0)) > steps(&text) + 50.0
    });
    assert_eq!(baselines(&run), ["measured"], "two workers know what one of them measured");
}
