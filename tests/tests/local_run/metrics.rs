//! The metrics of a run: Prometheus' own tool accepts them, and they tell the truth.

use lockstep_tests::{
    chart::promtool_objections,
    metrics::{of_job, of_worker, value},
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

/// Returns the metrics of the job, once its coordinator serves them.
fn of_the_job(run: &Run) -> String {
    let mut found = None;
    run.wait_until("the coordinator's metrics", || {
        found = of_job(run.folder());
        found.is_some()
    });
    found.expect("just found")
}

#[test]
fn promtool_accepts_the_metrics_of_a_worker_and_of_the_job() {
    let _alone = alone();
    let over_tcp =
        ["--workers", "2", "--set", "spec.communication.backend=tcp", "--set", "spec.communication.wire=bf16"];
    let run = Run::of("metrics", &Manifest::glyphs(10_000, 2000), &over_tcp);
    run.wait_for_step(100);
    // The first reports tell no efficiency.
    run.wait_until("an efficiency", || !baselines(&run).is_empty());
    let noise = || value(&of_the_job(&run), "lockstep_gradient_noise_scale");
    run.wait_until("the gradients' noise", || noise().is_some_and(|noise| noise > 0.0 && noise.is_finite()));
    let (worker, job) = (metrics(&run, 0), of_the_job(&run));
    for metric in ["lockstep_gradient_norm", "lockstep_loss", "lockstep_goodput_ratio", "lockstep_learning_rate"] {
        assert!(job.contains(metric), "{metric} is missing:\n{job}");
        assert!(!worker.contains(metric), "{metric} has two exporters");
    }
    for text in [&worker, &job] {
        assert!(text.contains("job_name=\"lenet\"") && text.contains("job_namespace=\"local\""), "{text}");
    }
    assert!(job.contains("link=\"tcp\",wire=\"bf16\""), "link and wire are missing:\n{job}");
    let series = worker.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 70, "one worker serves {series} series:\n{worker}");
    let steps = value(&worker, "lockstep_steps_total");
    assert!(steps.is_some_and(|steps| steps >= 100.0), "{steps:?}");
    let waited = value(&worker, "lockstep_stable_wait_seconds_total");
    assert!(waited.is_some_and(|waited| waited > 0.0), "the wait for committed steps is missing: {waited:?}");
    assert_eq!(labelled(&worker, "lockstep_collective_bytes_total", "memory"), Some(0.0), "gradients went by TCP");
    assert!(labelled(&worker, "lockstep_collective_bytes_total", "tcp") > Some(0.0), "{worker}");

    for text in [&worker, &job] {
        match promtool_objections(text) {
            Ok(objections) => assert_eq!(objections, "", "{text}"),
            Err(why) => skip("promtool on the metrics of a run", &format!("{why:#}")),
        }
    }
}

#[test]
fn phases_and_efficiencies_of_a_job_with_known_times_are_right() {
    let _alone = alone();
    let trainer = lockstep_tests::products().join("examples/known_times");
    let data = "{format: glyphs, samples: 1000}";
    let manifest = Manifest::glyphs(1000, 1000)
        .replaced("{name: lenet5}", "{name: own}")
        .replaced(data, "{format: own}")
        .replaced("bucketBytes: 64Ki", "backend: tcp");
    let run = Run::of("known-times", &manifest, &["--trainer", trainer.to_str().expect("UTF-8")]);
    run.wait_for_step(50);
    let before = [0, 1].map(|worker| metrics(&run, worker));
    run.wait_for_step(200);
    let after = [0, 1].map(|worker| metrics(&run, worker));
    let job = of_the_job(&run);
    let per_step = |worker: usize, phase: &str| {
        let spent = |text: &str| labelled(text, "lockstep_phase_seconds_total", phase).expect("a phase");
        let steps = |text: &str| value(text, "lockstep_steps_total").expect("steps");
        (spent(&after[worker]) - spent(&before[worker])) / (steps(&after[worker]) - steps(&before[worker]))
    };
    // A step has 32 samples for each worker: 32 ms for worker 0, 64 ms for worker 1.
    for (worker, phase, truth) in [(0, "compute", 0.032), (0, "barrier_wait", 0.032), (1, "compute", 0.064)] {
        let found = per_step(worker, phase);
        assert!((found / truth - 1.0).abs() < 0.05, "{phase} of worker {worker}: {found} s a step, not {truth}");
    }
    let waited = per_step(1, "barrier_wait");
    assert!(waited < 0.002, "worker 1 is the slowest and waited {waited} s a step for others");
    for (metric, truth) in [("lockstep_load_balance_ratio", 0.75), ("lockstep_communication_efficiency_ratio", 1.0)] {
        let found = value(&job, metric).unwrap_or_default();
        assert!((found / truth - 1.0).abs() < 0.05, "{metric} is {found}, not {truth}");
    }
    for (before, after) in before.iter().zip(&after) {
        let wall = |text: &str| value(text, "lockstep_heartbeat_timestamp_seconds").expect("a heartbeat");
        let (phases, wall) = (phases(after) - phases(before), wall(after) - wall(before));
        assert!((phases / wall - 1.0).abs() < 0.01, "the phases add up to {phases} s of {wall} s:\n{after}");
    }
}

/// Returns the seconds of all phases together.
fn phases(text: &str) -> f64 {
    let of_phases = text.lines().filter(|line| line.starts_with("lockstep_phase_seconds_total{"));
    of_phases.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Returns the value of a series with this value of its own label.
fn labelled(text: &str, name: &str, label: &str) -> Option<f64> {
    let of_label = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(&format!("=\"{label}\""));
    text.lines().find(of_label)?.rsplit(' ').next()?.parse().ok()
}

/// Returns the sources of the throughput that the job's scaling efficiency compares with.
fn baselines(run: &Run) -> Vec<String> {
    let text = of_job(run.folder()).unwrap_or_default();
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
    // The report of the group that the second worker joined; its first steps tell no efficiency.
    run.wait_until("two ranks", || value(&of_the_job(&run), "lockstep_world_size") == Some(2.0));
    run.wait_until("an efficiency of two workers", || !baselines(&run).is_empty());
    assert_eq!(baselines(&run), ["measured"], "two workers know what one of them measured");
}
