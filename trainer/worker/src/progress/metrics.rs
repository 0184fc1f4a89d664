//! The metrics of one worker about itself, as the table in `lockstep-metrics` lists them. Those of
//! the job come from its coordinator or from the operator.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use lockstep_collective::PeerFault;
use lockstep_launch::{Job, StandardError};
use lockstep_metrics::table;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, Registry, TextEncoder,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::phase_clock::PhaseClock;

/// Buckets of the duration of a step, in seconds.
const STEP_SECONDS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
/// Buckets of the duration of a checkpoint's stages, in seconds.
const CHECKPOINT_SECONDS: [f64; 8] = [0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0];

/// The metrics of one worker.
pub(crate) struct Metrics {
    registry: Registry,
    /// The use of this worker's time.
    pub phases: PhaseClock,
    pub steps: IntCounter,
    /// Steps that changed no weight.
    pub skipped: IntCounter,
    pub samples: IntCounter,
    pub step_duration: Histogram,
    pub collective_seconds: Counter,
    /// Times that a group broke, by the fault.
    collective_errors: IntCounterVec,
    stable_wait: Counter,
    /// Bytes that this worker sent in collective operations.
    pub bytes_sent: IntCounter,
    /// Bytes that it reduced through shared memory.
    pub bytes_through_memory: IntCounter,
    /// The time that training stood still for a checkpoint.
    pub checkpoint_stall: Histogram,
    /// The time from then on until the checkpoint was whole.
    pub checkpoint_save: Histogram,
    pub checkpoint_failures: IntCounter,
    /// Micro-batches that were ready when the newest step began.
    pub data_queue_depth: Gauge,
    device_memory: GaugeVec,
    heartbeat: Gauge,
}

impl Metrics {
    /// Registers every metric with the job's labels; counters start at 0 before the first step.
    pub(crate) fn new(job: &Job) -> prometheus::Result<Arc<Self>> {
        let registry = process_registry(job)?;
        let bytes = table::COLLECTIVE_BYTES.whole_counters(&registry)?;
        let checkpoint = table::CHECKPOINT_DURATION.histograms(&registry, &CHECKPOINT_SECONDS)?;
        let metrics = Self {
            phases: PhaseClock::start(&table::PHASE_SECONDS.counters(&registry)?, Instant::now()),
            steps: table::STEPS.whole_counter(&registry)?,
            skipped: table::SKIPPED_STEPS.whole_counter(&registry)?,
            samples: table::SAMPLES.whole_counter(&registry)?,
            step_duration: table::STEP_DURATION.histogram(&registry, &STEP_SECONDS)?,
            collective_seconds: table::COLLECTIVE_SECONDS.counters(&registry)?.with_label_values(&["all_reduce"]),
            collective_errors: with_all_kinds(table::COLLECTIVE_ERRORS.whole_counters(&registry)?),
            stable_wait: table::STABLE_WAIT.counter(&registry)?,
            bytes_sent: bytes.with_label_values(&["tcp"]),
            bytes_through_memory: bytes.with_label_values(&["memory"]),
            checkpoint_stall: checkpoint.with_label_values(&["stall"]),
            checkpoint_save: checkpoint.with_label_values(&["save"]),
            checkpoint_failures: table::CHECKPOINT_FAILURES.whole_counter(&registry)?,
            data_queue_depth: table::DATA_QUEUE_DEPTH.gauge(&registry)?,
            device_memory: table::DEVICE_MEMORY.gauges(&registry)?,
            heartbeat: table::HEARTBEAT.gauge(&registry)?,
            registry,
        };
        Ok(Arc::new(metrics))
    }

    /// Counts a group that broke. `fault` is that of another rank, if one is to blame.
    pub(crate) fn broke(&self, fault: Option<PeerFault>) {
        self.collective_errors.with_label_values(&[kind_of(fault)]).inc();
    }

    /// Counts the time until all ranks were known to have done a step. `waits` are the seconds that
    /// each rank waited. Ranks that wait longer wait for the one that waits least; they would also
    /// wait for its gradients.
    pub(crate) fn waited_for_stable(&self, waits: &[f32]) {
        let least = waits.iter().copied().reduce(f32::min);
        self.stable_wait.inc_by(least.map_or(0.0, f64::from).max(0.0));
    }

    /// Notes the memory of this worker's devices in bytes, by kind.
    pub(crate) fn needs_memory(&self, kinds: &[(&str, u64)]) {
        for (kind, bytes) in kinds {
            self.device_memory.with_label_values(&[*kind]).set(*bytes as f64);
        }
    }

    /// Counts a step that ended at this moment.
    pub(crate) fn stepped(&self, samples: u64, seconds: f64) {
        self.steps.inc();
        self.samples.inc_by(samples);
        self.step_duration.observe(seconds);
        self.heartbeat.set(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }

    /// Returns all series in the Prometheus text format.
    pub(crate) fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

const fn kind_of(fault: Option<PeerFault>) -> &'static str {
    match fault {
        Some(PeerFault::Closed) => "closed",
        Some(PeerFault::Refused) => "refused",
        Some(PeerFault::Silent) => "silent",
        None => "other",
    }
}

/// Starts every kind at 0: what is not there cannot be seen to grow.
fn with_all_kinds(errors: IntCounterVec) -> IntCounterVec {
    for fault in PeerFault::ALL.into_iter().map(Some).chain([None]) {
        errors.with_label_values(&[kind_of(fault)]);
    }
    errors
}

/// Makes the metrics of a process that does not train.
pub(crate) fn process_registry(job: &Job) -> prometheus::Result<Registry> {
    let labels =
        HashMap::from([("job_namespace".to_owned(), job.namespace.clone()), ("job_name".to_owned(), job.name.clone())]);
    let registry = Registry::new_custom(None, Some(labels))?;
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    let lines = IntCounter::new(table::LOG_LINES_DROPPED.name, table::LOG_LINES_DROPPED.meaning)?;
    registry.register(Box::new(DroppedLines(lines)))?;
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

#[cfg(test)]
mod tests {
    use lockstep_metrics::Exporter;

    use super::*;
    use crate::compute::memory::Needs;

    #[test]
    fn a_worker_exports_every_metric_of_a_worker_and_none_of_the_job() {
        let job = Job { namespace: "team".to_owned(), name: "a".to_owned(), uid: "u".to_owned() };
        let metrics = Metrics::new(&job).expect("registered");
        metrics.needs_memory(&Needs::default().by_kind());
        let text = metrics.text().expect("text");
        for metric in table::ALL {
            let exported = text.contains(&format!("# TYPE {} ", metric.name));
            let wanted = matches!(metric.exporter, Exporter::Worker | Exporter::Process);
            assert_eq!(exported, wanted, "{}", metric.name);
        }
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!(series <= 70, "a worker has {series} series");
    }
}
