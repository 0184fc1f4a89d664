//! Metrics for Prometheus. At each scrape the metrics of a job are made from its last known status,
//! so that they end with the job.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::ResourceExt;
use lockstep_api::{Phase, TrainingJob, TrainingJobStatus};
use lockstep_launch::StandardError;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// Buckets of the duration of one reconciliation, in seconds.
const RECONCILE_SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0];
/// Labels of every metric of a job.
const JOB: [&str; 2] = ["job_namespace", "job_name"];
/// Labels of a metric that exists for training and for evaluation.
const SPLIT: [&str; 3] = ["job_namespace", "job_name", "split"];

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

/// All metrics of the operator.
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: IntCounterVec,
    errors: IntCounterVec,
    duration: Histogram,
    watch_restarts: IntCounter,
    leader: IntGauge,
    dropped_lines: IntCounter,
    finished: IntCounterVec,
    restarts: IntCounterVec,
    jobs: Mutex<BTreeMap<(String, String), LastSeen>>,
    job_metrics: JobMetrics,
}

/// The last known state of a job.
#[derive(Clone)]
struct LastSeen {
    uid: String,
    desired: u32,
    status: TrainingJobStatus,
}

/// Reads one number of a job, once it is known.
type Figure = fn(&TrainingJobStatus) -> Option<f64>;

/// Metrics with one series for each job.
struct JobMetrics {
    count: GaugeVec,
    phase: GaugeVec,
    workers: GaugeVec,
    loss: GaugeVec,
    efficiency: GaugeVec,
    accuracy: GaugeVec,
    figures: Vec<(GaugeVec, Figure)>,
}

impl Metrics {
    /// Registers all metrics, with counters at 0.
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let reconciles =
            counters(&registry, "lockstep_reconciles_total", "Reconciliations of a job, by result.", &["result"])?;
        for result in ReconcileResult::ALL {
            reconciles.with_label_values(&[result.label()]).reset();
        }
        let errors = counters(
            &registry,
            "lockstep_reconcile_errors_total",
            "Failed reconciliations of a job, by reason.",
            &["reason"],
        )?;
        let duration = Histogram::with_opts(
            HistogramOpts::new("lockstep_reconcile_duration_seconds", "Time that one reconciliation of a job takes.")
                .buckets(RECONCILE_SECONDS.to_vec()),
        )?;
        registry.register(Box::new(duration.clone()))?;
        let watch_restarts =
            IntCounter::new("lockstep_watch_restarts_total", "Interrupted watches of the API server.")?;
        registry.register(Box::new(watch_restarts.clone()))?;
        let leader = IntGauge::new("lockstep_leader", "1 while this process leads, 0 while it stands by.")?;
        registry.register(Box::new(leader.clone()))?;
        let dropped_lines = IntCounter::new(
            "lockstep_log_lines_dropped_total",
            "Log lines that could not be written to the standard error.",
        )?;
        registry.register(Box::new(dropped_lines.clone()))?;
        let finished = counters(
            &registry,
            "lockstep_jobs_finished_total",
            "Jobs that this process saw end, by result and reason.",
            &["result", "reason"],
        )?;
        let restarts = counters(
            &registry,
            "lockstep_worker_restarts_total",
            "Restarts of all workers of a job, by reason.",
            &["job_namespace", "job_name", "reason"],
        )?;
        let build = Gauge::with_opts(
            Opts::new("lockstep_build_info", "Always 1; the label is the version of the operator.")
                .const_label("version", env!("CARGO_PKG_VERSION")),
        )?;
        build.set(1.0);
        registry.register(Box::new(build))?;
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let job_metrics = JobMetrics::new(&registry)?;
        let jobs = Mutex::new(BTreeMap::new());
        Ok(Self {
            registry,
            reconciles,
            errors,
            duration,
            watch_restarts,
            leader,
            dropped_lines,
            finished,
            restarts,
            jobs,
            job_metrics,
        })
    }

    /// Counts a reconciliation that ended.
    pub(crate) fn reconciled(&self, result: ReconcileResult, took: Duration) {
        self.reconciles.with_label_values(&[result.label()]).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// Counts a reconciliation that failed.
    pub(crate) fn failed(&self, reason: &str) {
        self.errors.with_label_values(&[reason]).inc();
    }

    /// Counts an interrupted watch.
    pub(crate) fn watch_restarted(&self) {
        self.watch_restarts.inc();
    }

    /// Notes whether this process leads.
    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Notes the status of a job, and counts its end and its restarts.
    pub(crate) fn saw(&self, job: &TrainingJob, status: &TrainingJobStatus) {
        let key = (job.namespace().unwrap_or_default(), job.name_any());
        let seen = LastSeen { uid: job.uid().unwrap_or_default(), desired: job.spec.replicas, status: status.clone() };
        let earlier = self.jobs().insert(key.clone(), seen);
        let Some(earlier) = earlier.filter(|earlier| job.uid().as_ref() == Some(&earlier.uid)) else { return };
        let reason = status.reason.as_deref().unwrap_or_default();
        let was_over = earlier.status.phase.is_some_and(Phase::is_finished);
        if let Some(phase) = status.phase.filter(|phase| phase.is_finished() && !was_over) {
            self.finished.with_label_values(&[phase.to_string().as_str(), reason]).inc();
        }
        if status.restarts > earlier.status.restarts {
            let failure = status.last_failure.as_ref().and_then(|failure| failure.reason.as_deref());
            let labels = [key.0.as_str(), key.1.as_str(), kind_of_loss(failure.unwrap_or_default())];
            self.restarts.with_label_values(&labels).inc_by((status.restarts - earlier.status.restarts).into());
        }
    }

    /// Forgets a job that is gone.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        self.jobs().remove(&(namespace.to_owned(), name.to_owned()));
        for reason in LOSSES.map(|(kind, _)| kind).iter().chain(&[CRASH]) {
            // The series is absent if the job never restarted for this reason.
            let _ = self.restarts.remove_label_values(&[namespace, name, reason]);
        }
    }

    /// Writes all metrics in Prometheus' text format.
    pub(crate) fn text(&self) -> Result<String, prometheus::Error> {
        let jobs = self.jobs().clone();
        self.dropped_lines.inc_by(StandardError::dropped_lines().saturating_sub(self.dropped_lines.get()));
        // The lock is held until the text is made, because a second scrape resets the series.
        let exposed = {
            let guard = self.jobs();
            self.job_metrics.write(&jobs);
            let families = self.registry.gather();
            drop(guard);
            families
        };
        let mut text = String::new();
        TextEncoder::new().encode_utf8(&exposed, &mut text)?;
        Ok(text)
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<(String, String), LastSeen>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const CRASH: &str = "crash";
/// Reasons of restarts, and the words of Kubernetes for them.
const LOSSES: [(&str, &[&str]); 4] = [
    ("oom", &["OOMKilled"]),
    ("preempted", &["PreemptionByScheduler", "Preempting"]),
    ("evicted", &["EvictionByEvictionAPI", "TerminationByKubelet", "Evicted", "Drained", "Deleted"]),
    (
        "node_lost",
        &["DeletionByTaintManager", "DeletionByPodGC", "NodeLost", "NodeShutdown", "ContainerStatusUnknown", "Unknown"],
    ),
];

fn kind_of_loss(reason: &str) -> &'static str {
    LOSSES.iter().find(|(_, words)| words.contains(&reason)).map_or(CRASH, |(kind, _)| kind)
}

impl JobMetrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let plain: [(&str, &str, Figure); 12] = [
            ("lockstep_global_step", "Optimiser steps that are done.", |status| {
                Some(status.progress.as_ref()?.step as f64)
            }),
            ("lockstep_target_steps", "Optimiser steps of the whole job.", |status| {
                Some(status.progress.as_ref()?.total_steps as f64)
            }),
            ("lockstep_progress_ratio", "Share of the steps that is done.", |status| {
                let progress = status.progress.as_ref()?;
                (progress.total_steps > 0).then(|| progress.step as f64 / progress.total_steps as f64)
            }),
            ("lockstep_estimated_remaining_seconds", "Time until the last step at the present speed.", |status| {
                Some(status.progress.as_ref()?.estimated_remaining_seconds? as f64)
            }),
            ("lockstep_world_size", "Ranks that train together.", |status| {
                Some(status.membership.as_ref()?.world_size.into())
            }),
            ("lockstep_generation", "Number of the newest membership.", |status| {
                Some(status.membership.as_ref()?.generation as f64)
            }),
            ("lockstep_throughput_samples_per_second", "Samples per second of the whole group.", |status| {
                status.progress.as_ref()?.samples_per_second
            }),
            (
                "lockstep_run_throughput_samples_per_second",
                "Samples per second over the whole run; steps that were done again count each time.",
                |status| Some(status.progress.as_ref()?.whole_run?.samples_per_second),
            ),
            (
                "lockstep_goodput_samples_per_second",
                "Samples per second over the whole run, without steps that were lost and done again.",
                |status| Some(status.progress.as_ref()?.whole_run?.goodput_samples_per_second),
            ),
            ("lockstep_last_checkpoint_step", "Optimiser steps that the newest checkpoint holds.", |status| {
                Some(status.last_checkpoint.as_ref()?.step as f64)
            }),
            (
                "lockstep_unsaved_steps",
                "Optimiser steps since the newest checkpoint while saves fail; 0 while they do not.",
                |status| {
                    let progress = status.progress.as_ref()?;
                    let unsaved = progress.unsaved.as_ref();
                    Some(unsaved.map_or(0, |unsaved| progress.step.saturating_sub(unsaved.since_step)) as f64)
                },
            ),
            ("lockstep_last_checkpoint_timestamp_seconds", "Time when the newest checkpoint became whole.", |status| {
                let time: jiff::Timestamp = status.last_checkpoint.as_ref()?.time.parse().ok()?;
                Some(time.as_second() as f64)
            }),
        ];
        let mut figures = Vec::new();
        for (name, help, figure) in plain {
            figures.push((gauges(registry, name, help, &JOB)?, figure));
        }
        Ok(Self {
            count: gauges(registry, "lockstep_jobs", "Jobs, by phase.", &["job_namespace", "phase"])?,
            phase: gauges(
                registry,
                "lockstep_status_phase",
                "1 for the phase that the job is in, 0 for the others.",
                &["job_namespace", "job_name", "phase"],
            )?,
            workers: gauges(
                registry,
                "lockstep_workers",
                "Workers that are wanted (desired) and that have joined (ready).",
                &["job_namespace", "job_name", "state"],
            )?,
            loss: gauges(registry, "lockstep_loss", "Mean loss in nats, by split.", &SPLIT)?,
            efficiency: gauges(
                registry,
                "lockstep_scaling_efficiency_ratio",
                "Throughput divided by world size times the throughput of one worker by itself, by the source of the latter.",
                &["job_namespace", "job_name", "baseline"],
            )?,
            accuracy: gauges(
                registry,
                "lockstep_accuracy",
                "Share of samples classified correctly, by split.",
                &SPLIT,
            )?,
            figures,
        })
    }

    fn write(&self, jobs: &BTreeMap<(String, String), LastSeen>) {
        let Self { count, phase, workers, loss, efficiency, accuracy, figures } = self;
        count.reset();
        phase.reset();
        workers.reset();
        loss.reset();
        efficiency.reset();
        accuracy.reset();
        figures.iter().for_each(|(gauge, _)| gauge.reset());
        let mut counts: HashMap<(&str, Phase), f64> = HashMap::new();
        for ((namespace, name), LastSeen { uid: _, desired, status }) in jobs {
            let now = status.phase.unwrap_or(Phase::Pending);
            *counts.entry((namespace, now)).or_default() += 1.0;
            for each in Phase::ALL {
                let value = f64::from(u8::from(each == now));
                phase.with_label_values(&[namespace, name, &each.to_string()]).set(value);
            }
            workers.with_label_values(&[namespace.as_str(), name, "desired"]).set((*desired).into());
            workers.with_label_values(&[namespace.as_str(), name, "ready"]).set(status.ready_replicas.into());
            let progress = status.progress.as_ref();
            if let Some(value) = progress.and_then(|progress| progress.loss) {
                loss.with_label_values(&[namespace, name, "train"]).set(value);
            }
            if let Some(progress) = progress
                && let (Some(value), Some(baseline)) = (progress.scaling_efficiency, progress.scaling_baseline)
            {
                efficiency.with_label_values(&[namespace, name, &baseline.to_string()]).set(value);
            }
            if let Some(value) = progress.and_then(|progress| progress.accuracy) {
                accuracy.with_label_values(&[namespace, name, "evaluation"]).set(value);
            }
            for (gauge, figure) in figures {
                if let Some(value) = figure(status) {
                    gauge.with_label_values(&[namespace, name]).set(value);
                }
            }
        }
        for ((namespace, phase), value) in counts {
            count.with_label_values(&[namespace, &phase.to_string()]).set(value);
        }
    }
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, prometheus::Error> {
    let gauges = GaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(gauges.clone()))?;
    Ok(gauges)
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
            "phase": phase, "reason": "R", "readyReplicas": 2,
            "progress": {"step": 5, "totalSteps": 10, "epoch": 1, "percent": 50, "loss": 0.5},
        }))
        .expect("a status")
    }

    #[test]
    fn the_series_of_a_job_end_with_it() {
        let metrics = Metrics::new().expect("registered");
        metrics.saw(&job("a"), &status("Running"));
        metrics.saw(&job("b"), &status("Running"));
        let text = metrics.text().expect("text");
        assert!(text.contains("lockstep_progress_ratio{job_name=\"a\",job_namespace=\"team\"} 0.5"), "{text}");
        assert!(text.contains("lockstep_jobs{job_namespace=\"team\",phase=\"Running\"} 2"), "{text}");
        metrics.forget("team", "a");
        let text = metrics.text().expect("text");
        assert!(!text.contains("job_name=\"a\"") && text.contains("job_name=\"b\""), "{text}");
    }

    #[test]
    fn a_job_counts_as_finished_once() {
        let metrics = Metrics::new().expect("registered");
        for phase in ["Running", "Complete", "Complete"] {
            metrics.saw(&job("a"), &status(phase));
        }
        let text = metrics.text().expect("text");
        assert!(text.contains("lockstep_jobs_finished_total{reason=\"R\",result=\"Complete\"} 1"), "{text}");
    }
}
