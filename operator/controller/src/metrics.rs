//! Metrics for Prometheus, as the table in `lockstep-metrics` lists them. At each scrape the gauges
//! of a job are made from its last known status, so that they end with the job.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::ResourceExt;
use lockstep_api::{Phase, Reason, TrainingJob, TrainingJobStatus};
use lockstep_launch::{Elastic, GroupChange, StandardError};
use lockstep_metrics::{Exporter, JobSeries, Sample, changes, no_change, progress, reached, table};
use prometheus::{Error, Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder};

use crate::work_queue::WorkQueue;

/// Buckets of the duration of one reconciliation, in seconds.
const RECONCILE_SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0];
/// Buckets of the time that a job's news waits, in seconds.
const WAIT_SECONDS: [f64; 8] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];
/// Buckets of the time that a job takes to start, in seconds.
const START_SECONDS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

/// How a reconciliation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReconcileResult {
    /// Everything is done.
    Success,
    /// The job changed meanwhile, so it is reconciled again.
    Outdated,
    /// Something failed, so it is tried again.
    Error,
}

impl ReconcileResult {
    const ALL: [Self; 3] = [Self::Success, Self::Outdated, Self::Error];

    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Outdated => "outdated",
            Self::Error => "error",
        }
    }
}

/// Why a reconciliation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// The API server refuses an object for its content, or a quota does.
    Refused,
    /// Something else has an object of the name.
    Taken,
    /// The system grants no randomness.
    Credentials,
    /// A request failed, or the operator lacks a right.
    Request,
}

impl FailureReason {
    const ALL: [Self; 4] = [Self::Refused, Self::Taken, Self::Credentials, Self::Request];

    fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Taken => "taken",
            Self::Credentials => "credentials",
            Self::Request => "request",
        }
    }
}

/// How jobs end.
const ENDS: [(Phase, Reason); 7] = [
    (Phase::Complete, Reason::TrainingComplete),
    (Phase::Complete, Reason::BenchmarkComplete),
    (Phase::Failed, Reason::InvalidSpec),
    (Phase::Failed, Reason::InvalidInput),
    (Phase::Failed, Reason::BackoffLimitExceeded),
    (Phase::Failed, Reason::StartupTimeout),
    (Phase::Failed, Reason::DeadlineExceeded),
];

/// All metrics of the operator.
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: IntCounterVec,
    errors: IntCounterVec,
    duration: Histogram,
    queue: WorkQueue,
    queue_depth: IntGauge,
    queue_wait: Histogram,
    time_to_running: Histogram,
    time_to_first_step: Histogram,
    /// Requests to the API server.
    pub(crate) api_requests: IntCounterVec,
    watch_restarts: IntCounter,
    leader: IntGauge,
    dropped_lines: IntCounter,
    finished: IntCounterVec,
    count: GaugeVec,
    jobs: Mutex<BTreeMap<(String, String), LastSeen>>,
    series: JobSeries,
}

/// The last known state of a job.
#[derive(Clone)]
struct LastSeen {
    uid: String,
    /// The least, greatest and wanted number of workers.
    bounds: [u32; 3],
    status: TrainingJobStatus,
    /// True once it was in phase Running, as far as this process knows.
    has_run: bool,
}

impl Metrics {
    /// Registers all metrics, with counters at 0.
    pub(crate) fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        let reconciles = table::RECONCILES.whole_counters(&registry)?;
        for result in ReconcileResult::ALL {
            reconciles.with_label_values(&[result.label()]).reset();
        }
        let errors = table::RECONCILE_ERRORS.whole_counters(&registry)?;
        for reason in FailureReason::ALL {
            errors.with_label_values(&[reason.label()]).reset();
        }
        let finished = table::JOBS_FINISHED.whole_counters(&registry)?;
        for (result, reason) in ENDS {
            finished.with_label_values(&[result.to_string(), reason.to_string()]).reset();
        }
        let build: Gauge = table::BUILD_INFO.gauges(&registry)?.with_label_values(&[env!("CARGO_PKG_VERSION")]);
        build.set(1.0);
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(Self {
            reconciles,
            errors,
            duration: table::RECONCILE_DURATION.histogram(&registry, &RECONCILE_SECONDS)?,
            queue: WorkQueue::default(),
            queue_depth: table::WORKQUEUE_DEPTH.whole_gauge(&registry)?,
            queue_wait: table::WORKQUEUE_WAIT.histogram(&registry, &WAIT_SECONDS)?,
            time_to_running: table::TIME_TO_RUNNING.histogram(&registry, &START_SECONDS)?,
            time_to_first_step: table::TIME_TO_FIRST_STEP.histogram(&registry, &START_SECONDS)?,
            api_requests: table::API_REQUESTS.whole_counters(&registry)?,
            watch_restarts: table::WATCH_RESTARTS.whole_counter(&registry)?,
            leader: table::LEADER.whole_gauge(&registry)?,
            dropped_lines: table::LOG_LINES_DROPPED.whole_counter(&registry)?,
            finished,
            count: table::JOBS.gauges(&registry)?,
            jobs: Mutex::new(BTreeMap::new()),
            series: JobSeries::new(&registry, &[Exporter::Job, Exporter::JobInCluster])?,
            registry,
        })
    }

    /// Counts a reconciliation that ended.
    pub(crate) fn reconciled(&self, result: ReconcileResult, took: Duration) {
        self.reconciles.with_label_values(&[result.label()]).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// Notes that a job waits for its reconciliation.
    pub(crate) fn has_news(&self, namespace: String, name: String) {
        self.queue.news((namespace, name), Instant::now());
    }

    /// Notes that the turn of a job has come, or that it is gone.
    pub(crate) fn takes_turn(&self, namespace: String, name: String) {
        if let Some(waited) = self.queue.turn(&(namespace, name), Instant::now()) {
            self.queue_wait.observe(waited.as_secs_f64());
        }
    }

    /// Counts a reconciliation that failed.
    pub(crate) fn failed(&self, reason: FailureReason) {
        self.errors.with_label_values(&[reason.label()]).inc();
    }

    /// Counts an interrupted watch.
    pub(crate) fn watch_restarted(&self) {
        self.watch_restarts.inc();
    }

    /// Notes whether this process leads.
    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Notes the status of a job at `now`, and counts its end and the changes of its membership.
    pub(crate) fn saw(
        &self,
        job: &TrainingJob,
        status: &TrainingJobStatus,
        membership: &[GroupChange],
        now: Timestamp,
    ) {
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        let replicas = job.spec.replicas;
        let Elastic { min_replicas, max_replicas } = job.spec.elastic.unwrap_or(Elastic::fixed(replicas));
        let bounds = [min_replicas, max_replicas, replicas];
        let key = (namespace.clone(), name.clone());
        let mut jobs = self.jobs();
        let earlier = jobs.remove(&key).filter(|earlier| job.uid().as_ref() == Some(&earlier.uid));
        let is_running = status.phase == Some(Phase::Running);
        // A job that another process saw begin may have run before.
        let had_run = earlier.as_ref().map_or_else(|| is_running || has_stepped(status), |earlier| earlier.has_run);
        let has_run = had_run || is_running;
        jobs.insert(key, LastSeen { uid: job.uid().unwrap_or_default(), bounds, status: status.clone(), has_run });
        drop(jobs);
        let Some(LastSeen { status: earlier, .. }) = earlier else {
            return self.series.write(&namespace, &name, &no_change());
        };
        let reason = status.reason.as_deref().unwrap_or_default();
        let was_over = earlier.phase.is_some_and(Phase::is_finished);
        if let Some(phase) = status.phase.filter(|phase| phase.is_finished() && !was_over) {
            self.finished.with_label_values(&[phase.to_string().as_str(), reason]).inc();
        }
        if let Some(start) = &status.start_time {
            let took = now.duration_since(start.0).as_secs_f64().max(0.0);
            // The first step may be reported before the pods are known to be ready.
            if is_running && !had_run && earlier.restarts == 0 {
                self.time_to_running.observe(took);
            }
            let is_judged = status.conditions.iter().any(|known| known.type_ == "Running");
            if has_stepped(status) && !has_stepped(&earlier) && is_judged {
                self.time_to_first_step.observe(took);
            }
        }
        self.series.write(&namespace, &name, &changed(&earlier, status, membership));
    }

    /// Forgets a job that is gone.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        self.jobs().remove(&(namespace.to_owned(), name.to_owned()));
        self.series.forget(namespace, name);
    }

    /// Writes all metrics in Prometheus' text format.
    pub(crate) fn text(&self) -> Result<String, Error> {
        self.queue_depth.set(self.queue.depth() as i64);
        self.dropped_lines.inc_by(StandardError::dropped_lines().saturating_sub(self.dropped_lines.get()));
        // The lock is held until the samples are gathered: a second scrape resets the series.
        let families = {
            let jobs = self.jobs();
            self.write(&jobs);
            self.registry.gather()
        };
        let mut text = String::new();
        TextEncoder::new().encode_utf8(&families, &mut text)?;
        Ok(text)
    }

    fn write(&self, jobs: &BTreeMap<(String, String), LastSeen>) {
        self.count.reset();
        self.series.clear_gauges();
        let mut counts: HashMap<(&str, Phase), f64> = HashMap::new();
        for ((namespace, name), LastSeen { uid: _, has_run: _, bounds, status }) in jobs {
            *counts.entry((namespace, status.phase.unwrap_or(Phase::Pending))).or_default() += 1.0;
            let mut samples = of_status(*bounds, status);
            let of_report = if trains(status) { progress } else { reached };
            samples.extend(status.report().iter().flat_map(of_report));
            self.series.write(namespace, name, &samples);
            self.series.set_counters(namespace, name, &restarts(status));
        }
        for ((namespace, phase), value) in counts {
            self.count.with_label_values(&[namespace, &phase.to_string()]).set(value);
        }
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<(String, String), LastSeen>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_stepped(status: &TrainingJobStatus) -> bool {
    status.progress.as_ref().is_some_and(|progress| progress.step > 0)
}

/// The samples of a job that only the operator knows.
fn of_status([min, max, desired]: [u32; 3], status: &TrainingJobStatus) -> Vec<Sample> {
    let now = status.phase.unwrap_or(Phase::Pending);
    let phases =
        Phase::ALL.map(|each| Sample::new(table::STATUS_PHASE, &[&each.to_string()], f64::from(u8::from(each == now))));
    let workers = [("min", min), ("max", max), ("desired", desired), ("ready", status.ready_replicas)];
    let workers = workers.map(|(state, count)| Sample::new(table::WORKERS, &[state], count.into()));
    phases.into_iter().chain(workers).collect()
}

fn restarts(status: &TrainingJobStatus) -> Vec<Sample> {
    let by_reason = status.worker_restarts.by_reason().into_iter();
    by_reason.map(|(reason, count)| Sample::new(table::WORKER_RESTARTS, &[reason], count.into())).collect()
}

/// False if the job rests, or has ended.
fn trains(status: &TrainingJobStatus) -> bool {
    !matches!(status.phase, None | Some(Phase::Pending | Phase::Suspended | Phase::Complete | Phase::Failed))
}

/// The samples of the changes of the membership that a status has and an earlier one lacks.
fn changed(earlier: &TrainingJobStatus, status: &TrainingJobStatus, membership: &[GroupChange]) -> Vec<Sample> {
    let generation = |status: &TrainingJobStatus| Some(status.membership.as_ref()?.last_change.as_ref()?.generation);
    let (Some(before), Some(now)) = (generation(earlier), generation(status)) else { return Vec::new() };
    let mut new: Vec<_> = membership.iter().filter(|change| (before + 1..=now).contains(&change.generation)).collect();
    new.sort_by_key(|change| change.generation);
    let mut world = earlier.membership.as_ref().map(|known| known.world_size);
    new.into_iter().flat_map(|change| changes(world.replace(change.workers), change)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(name: &str) -> TrainingJob {
        serde_json::from_value(json!({
            "apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": "team", "uid": name},
            "spec": {"replicas": 3, "model": {"name": "lenet5"}, "dataset": {"format": "glyphs"},
                     "checkpoint": {"uri": "file:///c"}},
        }))
        .expect("a job")
    }

    fn status(phase: &str) -> TrainingJobStatus {
        serde_json::from_value(json!({
            "phase": phase, "reason": "R", "readyReplicas": 2, "startTime": "2026-01-01T00:00:00Z",
            "progress": {"step": 5, "totalSteps": 10, "epoch": 1, "percent": 50, "loss": 0.5},
        }))
        .expect("a status")
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:30Z".parse().expect("a time")
    }

    #[test]
    fn the_series_of_a_job_end_with_it() {
        let metrics = Metrics::new().expect("registered");
        metrics.saw(&job("a"), &status("Running"), &[], now());
        metrics.saw(&job("b"), &status("Running"), &[], now());
        let text = metrics.text().expect("text");
        assert!(text.contains("lockstep_progress_ratio{job_name=\"a\",job_namespace=\"team\"} 0.5"), "{text}");
        assert!(text.contains("lockstep_jobs{job_namespace=\"team\",phase=\"Running\"} 2"), "{text}");
        metrics.forget("team", "a");
        let text = metrics.text().expect("text");
        assert!(!text.contains("job_name=\"a\"") && text.contains("job_name=\"b\""), "{text}");
    }

    #[test]
    fn a_job_that_ended_keeps_what_it_reached_and_has_no_group() {
        let metrics = Metrics::new().expect("registered");
        for (phase, trains) in [("Running", true), ("Restarting", true), ("Suspended", false), ("Complete", false)] {
            metrics.saw(&job("a"), &status(phase), &[], now());
            let text = metrics.text().expect("text");
            assert!(text.contains("lockstep_global_step{"), "{phase}: {text}");
            assert_eq!(text.contains("lockstep_world_size{"), trains, "{phase}: {text}");
        }
    }

    #[test]
    fn a_job_counts_as_finished_once() {
        let metrics = Metrics::new().expect("registered");
        for phase in ["Running", "Complete", "Complete"] {
            metrics.saw(&job("a"), &status(phase), &[], now());
        }
        let text = metrics.text().expect("text");
        assert!(text.contains("lockstep_jobs_finished_total{reason=\"R\",result=\"Complete\"} 1"), "{text}");
        // A counter of something that has not happened stands at 0. So its first increase is seen.
        let none = "lockstep_jobs_finished_total{reason=\"DeadlineExceeded\",result=\"Failed\"} 0";
        assert!(text.contains(none), "{text}");
    }

    #[test]
    fn a_lost_worker_counts_by_its_reason_and_a_change_by_its_direction() {
        let metrics = Metrics::new().expect("registered");
        let with = |generation: u64, world: u32, oom: u32| {
            let mut value = serde_json::to_value(status("Running")).expect("a value");
            value["workerRestarts"] = json!({ "oom": oom });
            value["membership"] = json!({"generation": generation, "worldSize": world,
                "lastChange": {"generation": generation, "text": "t", "seconds": 1.5}});
            serde_json::from_value(value).expect("a status")
        };
        let change = |generation, workers| GroupChange { generation, workers, seconds: 1.5, ..GroupChange::default() };
        let membership = [change(1, 3), change(2, 2), change(3, 3), change(4, 3)];
        // Two changes may be seen at a time.
        for (generation, world, oom) in [(1, 3, 0), (3, 3, 1), (4, 3, 1)] {
            metrics.saw(&job("a"), &with(generation, world, oom), &membership, now());
            metrics.text().expect("a scrape changes nothing");
        }
        let text = metrics.text().expect("text");
        let of_a = "job_name=\"a\",job_namespace=\"team\"";
        for line in [
            format!("lockstep_worker_restarts_total{{{of_a},reason=\"oom\"}} 1"),
            format!("lockstep_worker_restarts_total{{{of_a},reason=\"crash\"}} 0"),
            format!("lockstep_resizes_total{{direction=\"down\",{of_a}}} 1"),
            format!("lockstep_resizes_total{{direction=\"up\",{of_a}}} 1"),
            format!("lockstep_resizes_total{{direction=\"same\",{of_a}}} 1"),
            format!("lockstep_resize_seconds_total{{{of_a}}} 4.5"),
            format!("lockstep_workers{{{of_a},state=\"desired\"}} 3"),
        ] {
            assert!(text.contains(&line), "{line} is missing:\n{text}");
        }
    }

    #[test]
    fn the_operator_exports_no_metric_of_a_worker() {
        let metrics = Metrics::new().expect("registered");
        metrics.saw(&job("a"), &status("Running"), &[], now());
        let text = metrics.text().expect("text");
        for metric in table::ALL.iter().filter(|metric| metric.exporter == Exporter::Worker) {
            assert!(!text.contains(&format!("# TYPE {} ", metric.name)), "{} has two exporters", metric.name);
        }
    }

    #[test]
    fn the_time_until_the_first_step_is_observed_once() {
        let metrics = Metrics::new().expect("registered");
        let mut before = status("Starting");
        before.progress = None;
        let mut running = status("Running");
        running.conditions = serde_json::from_value(json!([{"type": "Running", "status": "True", "reason": "Training",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:20Z"}]))
        .expect("a condition");
        // Its first step is reported before its pods are known to be ready.
        let mut stepped = running.clone();
        stepped.phase = before.phase;
        for status in [&before, &stepped, &running, &running] {
            metrics.saw(&job("a"), status, &[], now());
        }
        let text = metrics.text().expect("text");
        assert!(text.contains("lockstep_time_to_first_step_seconds_count 1"), "{text}");
        assert!(text.contains("lockstep_time_to_first_step_seconds_sum 30"), "{text}");
        assert!(text.contains("lockstep_time_to_running_seconds_count 1"), "{text}");
    }
}
