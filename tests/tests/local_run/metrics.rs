//! The metrics of a run: Prometheus' own tool accepts them, and they tell the truth.

use std::{
    net::TcpListener,
    process::Command,
    time::{Duration, Instant},
};

use lockstep_tests::{
    chart::{promtool, promtool_objections},
    metrics::{address, of_job, of_worker, value},
    prometheus::Prometheus,
    skip,
};
use serde_json::json;

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
    let [flops, speed] = ["lockstep_model_flops_per_second", "lockstep_throughput_samples_per_second"]
        .map(|metric| value(&job, metric).expect(metric));
    // `lockstep summary lenet5` prints the multiply-accumulates of a forward pass.
    assert!((flops / (6.0 * 416_520.0 * speed) - 1.0).abs() < 1e-9, "{flops} FLOP/s at {speed} samples/s");
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

/// A run of a model that only sleeps, and a Prometheus that scrapes it.
struct KnownTimes {
    run: Run,
    prometheus: Prometheus<'static>,
}

impl KnownTimes {
    /// Starts two workers. The times are milliseconds a sample: computing on worker 0, computing on
    /// worker 1, reading on both. Each worker has half of a step's 64 samples.
    fn start(name: &str, times: [f64; 3]) -> Self {
        let trainer = lockstep_tests::products().join("examples/known_times");
        let manifest = Manifest::glyphs(1000, 1000)
            .replaced("{name: lenet5}", "{name: own}")
            .replaced("{format: glyphs, samples: 1000}", "{format: own}")
            .replaced("bucketBytes: 64Ki", "backend: tcp");
        let variables = vec![("KNOWN_TIMES".to_owned(), times.map(|time| time.to_string()).join(" "))];
        let arguments = ["--trainer", trainer.to_str().expect("UTF-8")];
        let run = Run::with_variables(name, &manifest, &arguments, variables);
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let prometheus = Prometheus::start(&free.to_string(), |program| Command::new(program)).expect("Prometheus");
        run.wait_for_step(20);
        let target = |process: &str| {
            let address = address(run.folder(), process).expect("it serves metrics");
            json!({"targets": [address], "labels": {"pod": process}})
        };
        prometheus.scrape(&["worker-0", "worker-1", "coordinator"].map(target)).expect("targets");
        Self { run, prometheus }
    }

    /// Lets it train for as long as the rates of the queries look back.
    fn train(&self) {
        let end = Instant::now() + WINDOW + Duration::from_secs(3);
        self.run.wait_until("some seconds of training", || Instant::now() > end);
    }

    /// Returns the only value of a query.
    fn value(&self, query: &str) -> f64 {
        let found = self.prometheus.query(query).expect("an answer");
        let [value] = found[..] else { panic!("{query}: {found:?}\n{}", self.run.said()) };
        value
    }

    /// Asserts that a value is within 5 % of the truth.
    fn assert(&self, query: &str, truth: f64) {
        let found = self.value(query);
        assert!((found / truth - 1.0).abs() < 0.05, "{query} is {found}, not {truth}");
    }
}

/// The time over which rates are taken.
const WINDOW: Duration = Duration::from_secs(8);

/// Returns the query for the seconds that a worker spends with a phase in a step.
fn per_step(worker: usize, phase: &str) -> String {
    let seconds = format!("rate(lockstep_phase_seconds_total{{pod=\"worker-{worker}\",phase=\"{phase}\"}}[8s])");
    format!("sum({seconds}) / sum(rate(lockstep_steps_total{{pod=\"worker-{worker}\"}}[8s]))")
}

#[test]
fn prometheus_knows_the_phases_and_efficiencies_of_a_job_with_known_times() {
    let test = "prometheus_knows_the_phases_and_efficiencies_of_a_job_with_known_times";
    if let Err(why) = promtool() {
        return skip(test, &format!("{why:#}"));
    }
    let _alone = alone();
    let known = KnownTimes::start("known-times", [1.0, 2.0, 0.5]);
    known.train();
    let wait = "barrier_wait";
    for (worker, phase, truth) in
        [(0, "compute", 0.032), (1, "compute", 0.064), (0, wait, 0.032), (0, "data", 0.016), (1, "data", 0.016)]
    {
        known.assert(&per_step(worker, phase), truth);
    }
    let waited = known.value(&per_step(1, wait));
    assert!(waited < 0.002, "worker 1 is the slowest and waited {waited} s a step for others");
    for worker in [0, 1] {
        // Counters and heartbeat are from the same scrapes.
        let of_worker = format!("pod=\"worker-{worker}\"");
        let all = known.value(&format!("sum(rate(lockstep_phase_seconds_total{{{of_worker}}}[8s]))"));
        let wall = known.value(&format!("deriv(lockstep_heartbeat_timestamp_seconds{{{of_worker}}}[8s])"));
        assert!((all / wall - 1.0).abs() < 0.01, "the phases of worker {worker} add up to {all} of {wall} s");
    }
    known.assert("lockstep_throughput_samples_per_second", 64.0 / 0.080);
    known.assert("lockstep_load_balance_ratio", 0.75);
    known.assert("lockstep_communication_efficiency_ratio", 0.8);
    known.assert("lockstep_parallel_efficiency_ratio", 0.6);
    // The sum of the only gradient, a cache line, takes 32 ms on worker 0 and none on worker 1.
    known.assert("lockstep_allreduce_bus_bandwidth_bytes_per_second", 64.0 / 0.016);
}

#[test]
fn made_up_loads_have_the_load_balance_and_the_efficiencies_that_pop_tells() {
    let test = "made_up_loads_have_the_load_balance_and_the_efficiencies_that_pop_tells";
    if let Err(why) = promtool() {
        return skip(test, &format!("{why:#}"));
    }
    let _alone = alone();
    // Load balance = (a + b) / 2b, communication efficiency = b / (b + the rest of the step).
    for (balance, communication) in [(0.73, 0.41), (0.67, 0.19), (0.65, 0.31)] {
        let slow = 0.8;
        let times = [slow * (2.0 * balance - 1.0), slow, slow / communication - slow];
        let known = KnownTimes::start("made-up-loads", times);
        known.train();
        known.assert("lockstep_load_balance_ratio", balance);
        known.assert("lockstep_communication_efficiency_ratio", communication);
        known.assert("lockstep_parallel_efficiency_ratio", balance * communication);
    }
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
