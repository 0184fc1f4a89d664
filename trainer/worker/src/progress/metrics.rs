//! All metrics of a trainer process. Names and units follow the project's rules: prefix
//! `lockstep_`, base units, `_total` on counters, labels `job_namespace` and `job_name` only.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use lockstep_launch::{CommunicationReport, Job, Progress, StandardError, WholeRun};
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// The prefix of the project's metrics. Process metrics keep their usual names.
const PREFIX: &str = "lockstep";

/// A use of a worker's wall time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// Forward, backward and update.
    Compute,
    /// Waiting for gradients after backward has ended.
    ExposedCommunication,
    /// Waiting for the loader.
    Data,
    /// Saving state.
    Checkpoint,
    /// Everything else: evaluation, reports.
    Other,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Compute, Self::ExposedCommunication, Self::Data, Self::Checkpoint, Self::Other];

    const fn label(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::ExposedCommunication => "exposed_comm",
            Self::Data => "data",
            Self::Checkpoint => "checkpoint",
            Self::Other => "other",
        }
    }
}

/// The metrics of one worker. The reporting worker also has those of the job.
pub(crate) struct Metrics {
    own: Registry,
    job: Registry,
    reports: AtomicBool,
    pub steps: IntCounter,
    /// Steps that changed no weight.
    pub skipped: IntCounter,
    pub samples: IntCounter,
    pub step_duration: Histogram,
    phase_seconds: CounterVec,
    pub collective_seconds: Counter,
    stable_wait: Counter,
    pub collective_bytes: IntCounter,
    /// The time that training stood still for a checkpoint.
    pub checkpoint_stall: Histogram,
    /// The time from then on until the checkpoint was whole.
    pub checkpoint_save: Histogram,
    pub checkpoint_failures: IntCounter,
    unsaved_steps: IntGauge,
    global_step: IntGauge,
    target_steps: IntGauge,
    progress_ratio: Gauge,
    world_size: IntGauge,
    generation: IntGauge,
    loss: GaugeVec,
    accuracy: GaugeVec,
    pub learning_rate: Gauge,
    pub loss_scale: Gauge,
    pub gradient_norm: Gauge,
    pub gradient_noise_scale: Gauge,
    throughput: Gauge,
    pub baseline: Gauge,
    scaling_efficiency: GaugeVec,
    load_balance: Gauge,
    communication_efficiency: Gauge,
    parallel_efficiency: Gauge,
    estimated_remaining: Gauge,
    last_checkpoint_step: IntGauge,
    communication: IntGaugeVec,
}

impl Metrics {
    /// Registers every metric with the job's labels; counters start at 0 before the first step.
    pub(crate) fn new(job: &Job) -> prometheus::Result<Arc<Self>> {
        let (own, of_job) = (process_registry(job)?, labelled_registry(job)?);
        let gauge = |name: &str, help: &str| registered(&of_job, Gauge::with_opts(named(name, help))?);
        let whole = |name: &str, help: &str| registered(&of_job, IntGauge::with_opts(named(name, help))?);
        let own_gauge = |name: &str, help: &str| registered(&own, Gauge::with_opts(named(name, help))?);
        let count = |name: &str, help: &str| registered(&own, IntCounter::with_opts(named(name, help))?);
        let seconds = |name: &str, help: &str, buckets: Vec<f64>| {
            registered(&own, Histogram::with_opts(HistogramOpts::new(name, help).namespace(PREFIX).buckets(buckets))?)
        };
        let collective = registered(
            &own,
            CounterVec::new(named("collective_seconds_total", "Seconds that collective operations took."), &["op"])?,
        )?;
        let phase_seconds = registered(
            &own,
            CounterVec::new(
                named("phase_seconds_total", "Wall seconds of this worker by what they were spent on."),
                &["phase"],
            )?,
        )?;
        for phase in Phase::ALL {
            phase_seconds.with_label_values(&[phase.label()]);
        }
        let checkpoint = HistogramOpts::new(
            "checkpoint_duration_seconds",
            "Wall seconds of one checkpoint: stall while training stood still, save from then until it was whole.",
        );
        let checkpoint = checkpoint.namespace(PREFIX).buckets(prometheus::exponential_buckets(0.001, 2.0, 16)?);
        let checkpoint = registered(&own, HistogramVec::new(checkpoint, &["stage"])?)?;
        let metrics = Self {
            steps: count("steps_total", "Optimiser steps that this worker has done.")?,
            skipped: count(
                "skipped_steps_total",
                "Steps that changed no weight, because the loss or a gradient was infinite or not a number.",
            )?,
            samples: count("samples_total", "Training samples that this worker has taken through the network.")?,
            step_duration: seconds(
                "step_duration_seconds",
                "Wall seconds of one optimiser step.",
                prometheus::exponential_buckets(0.001, 2.0, 14)?,
            )?,
            phase_seconds,
            collective_seconds: collective.with_label_values(&["all_reduce"]),
            stable_wait: registered(
                &own,
                Counter::with_opts(named(
                    "stable_wait_seconds_total",
                    "Seconds of waiting to learn that all ranks had done a step, apart from waits for gradients. The shortest wait of any rank counts.",
                ))?,
            )?,
            collective_bytes: count("collective_bytes_total", "Bytes that this worker sent in all-reduce operations.")?,
            checkpoint_stall: checkpoint.with_label_values(&["stall"]),
            checkpoint_save: checkpoint.with_label_values(&["save"]),
            checkpoint_failures: count("checkpoint_failures_total", "Checkpoints that could not be saved.")?,
            unsaved_steps: whole(
                "unsaved_steps",
                "Optimiser steps since the newest checkpoint while saves fail; 0 while they do not.",
            )?,
            global_step: whole("global_step", "Optimiser steps of the job that are done.")?,
            target_steps: whole("target_steps", "Optimiser steps of the whole job.")?,
            progress_ratio: gauge("progress_ratio", "Share of the job that is done, 0 to 1.")?,
            world_size: whole("world_size", "Ranks that train together.")?,
            generation: whole("generation", "Agreed memberships so far.")?,
            loss: registered(&of_job, GaugeVec::new(named("loss", "Mean loss in nats by data split."), &["split"])?)?,
            accuracy: registered(
                &of_job,
                GaugeVec::new(
                    named("accuracy", "Share of samples classified rightly, 0 to 1, by data split."),
                    &["split"],
                )?,
            )?,
            learning_rate: own_gauge("learning_rate", "Learning rate of the newest step.")?,
            loss_scale: own_gauge("loss_scale", "Factor of the loss in the next step; 1 if it is not scaled.")?,
            gradient_norm: gauge("gradient_norm", "L2 norm of the summed gradients, in one step of eight.")?,
            gradient_noise_scale: gauge(
                "gradient_noise_scale",
                "Batch beyond which more samples save few steps, averaged over steps; 0 with one worker or several devices a worker.",
            )?,
            throughput: gauge("throughput_samples_per_second", "Samples per second of the whole group.")?,
            baseline: own_gauge(
                "baseline_samples_per_second_per_worker",
                "Samples per second of one worker that trains the whole global batch by itself.",
            )?,
            scaling_efficiency: registered(
                &of_job,
                GaugeVec::new(
                    named(
                        "scaling_efficiency_ratio",
                        "Throughput divided by world size times the throughput of one worker by itself, by the source of the latter.",
                    ),
                    &["baseline"],
                )?,
            )?,
            load_balance: gauge("load_balance_ratio", "Mean useful time of the ranks divided by the greatest.")?,
            communication_efficiency: gauge(
                "communication_efficiency_ratio",
                "Greatest useful time of a rank divided by the step time.",
            )?,
            parallel_efficiency: gauge("parallel_efficiency_ratio", "Load balance times communication efficiency.")?,
            estimated_remaining: gauge(
                "estimated_remaining_seconds",
                "Seconds until the last step at the present speed.",
            )?,
            last_checkpoint_step: whole("last_checkpoint_step", "Optimiser step of the newest whole checkpoint.")?,
            communication: registered(
                &of_job,
                IntGaugeVec::new(
                    named(
                        "communication_info",
                        "1 for the link, algorithm, number format and encryption that gradients travel by.",
                    ),
                    &["link", "algorithm", "wire", "encryption"],
                )?,
            )?,
            own: own.clone(),
            job: of_job.clone(),
            reports: AtomicBool::new(false),
        };
        Ok(Arc::new(metrics))
    }

    /// Adds wall seconds to a phase.
    pub(crate) fn spent(&self, phase: Phase, seconds: f64) {
        self.phase_seconds.with_label_values(&[phase.label()]).inc_by(seconds.max(0.0));
    }

    /// Counts the time until all ranks were known to have done a step. `waits` are the seconds that
    /// each rank waited. Ranks that wait longer wait for the one that waits least; they would also
    /// wait for its gradients.
    pub(crate) fn waited_for_stable(&self, waits: &[f32]) {
        let least = waits.iter().copied().reduce(f32::min);
        self.stable_wait.inc_by(least.map_or(0.0, f64::from).max(0.0));
    }

    /// Sets the job's gauges, and serves them from now on. Only the reporting worker does so: a job
    /// has one series of each.
    pub(crate) fn report(&self, progress: &Progress) {
        self.reports.store(true, Ordering::Relaxed);
        let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.global_step.set(whole(progress.step));
        self.target_steps.set(whole(progress.total_steps));
        if progress.total_steps > 0 {
            self.progress_ratio.set(progress.step as f64 / progress.total_steps as f64);
        }
        let unsaved = progress.unsaved.as_ref().map_or(0, |unsaved| progress.step.saturating_sub(unsaved.since_step));
        self.unsaved_steps.set(whole(unsaved));
        self.world_size.set(i64::from(progress.world_size));
        self.generation.set(whole(progress.generation));
        let set = |gauge: &Gauge, value: Option<f64>| {
            if let Some(value) = value {
                gauge.set(value);
            }
        };
        set(&self.throughput, progress.samples_per_second);
        if let (Some(efficiency), Some(baseline)) = (progress.scaling_efficiency, progress.scaling_baseline) {
            self.scaling_efficiency.reset();
            self.scaling_efficiency.with_label_values(&[&baseline.to_string()]).set(efficiency);
        }
        set(&self.load_balance, progress.load_balance);
        set(&self.communication_efficiency, progress.communication_efficiency);
        let parallel =
            progress.load_balance.zip(progress.communication_efficiency).map(|(balance, comm)| balance * comm);
        set(&self.parallel_efficiency, parallel);
        set(&self.estimated_remaining, progress.estimated_remaining_seconds);
        if let Some(loss) = progress.loss {
            self.loss.with_label_values(&["train"]).set(loss);
        }
        if let Some(accuracy) = progress.accuracy {
            self.accuracy.with_label_values(&["evaluation"]).set(accuracy);
        }
        if let Some(CommunicationReport { link, algorithm, wire, encryption, buckets: _ }) = progress.communication {
            let labels = [link.to_string(), algorithm.to_string(), wire.to_string(), encryption.to_string()];
            self.communication.reset();
            self.communication.with_label_values(&labels).set(1);
        }
        if let Some(mark) = &progress.last_checkpoint {
            self.last_checkpoint_step.set(whole(mark.step));
        }
    }

    /// Stops serving the job's gauges: another worker reports.
    pub(crate) fn leave_reporting(&self) {
        self.reports.store(false, Ordering::Relaxed);
    }

    /// Sets the mean loss on the held-out samples.
    pub(crate) fn evaluated(&self, loss: f64) {
        self.loss.with_label_values(&["evaluation"]).set(loss);
    }

    /// Returns all series in the Prometheus text format.
    pub(crate) fn text(&self) -> prometheus::Result<String> {
        let mut families = self.own.gather();
        if self.reports.load(Ordering::Relaxed) {
            families.extend(self.job.gather());
        }
        TextEncoder::new().encode_to_string(&families)
    }
}

/// The figures of a whole run, which the coordinator serves.
#[derive(Clone)]
pub(crate) struct RunMetrics {
    throughput: Gauge,
    goodput: Gauge,
}

impl RunMetrics {
    /// Registers the metrics in the coordinator's registry.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| registered(registry, Gauge::with_opts(named(name, help))?);
        Ok(Self {
            throughput: gauge(
                "run_throughput_samples_per_second",
                "Samples per second over the whole run; steps that were done again count each time.",
            )?,
            goodput: gauge(
                "goodput_samples_per_second",
                "Samples per second over the whole run, without steps that were lost and done again.",
            )?,
        })
    }

    pub(crate) fn set(&self, run: &WholeRun) {
        self.throughput.set(run.samples_per_second);
        self.goodput.set(run.goodput_samples_per_second);
    }
}

/// Makes the metrics of a process that does not train.
pub(crate) fn process_registry(job: &Job) -> prometheus::Result<Registry> {
    let registry = labelled_registry(job)?;
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    registry.register(Box::new(DroppedLines(IntCounter::with_opts(named(
        "log_lines_dropped_total",
        "Log lines that could not be written to the standard error.",
    ))?)))?;
    Ok(registry)
}

/// Counts dropped log lines. It reads the number when it is collected: the log knows no metrics.
struct DroppedLines(IntCounter);

impl Collector for DroppedLines {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.inc_by(StandardError::dropped_lines().saturating_sub(self.0.get()));
        self.0.collect()
    }
}

fn labelled_registry(job: &Job) -> prometheus::Result<Registry> {
    let labels =
        HashMap::from([("job_namespace".to_owned(), job.namespace.clone()), ("job_name".to_owned(), job.name.clone())]);
    Registry::new_custom(None, Some(labels))
}

fn named(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace(PREFIX)
}

fn registered<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
