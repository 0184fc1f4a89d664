//! The series of a job: its newest report and its changes as values of the table. One process
//! exports them for each job: the operator in a cluster, the coordinator of a `lockstep run`.

use std::collections::{BTreeMap, HashMap};

use lockstep_launch::{CommunicationReport, GroupChange, Progress};
use prometheus::{CounterVec, GaugeVec, Registry, core::Collector as _};

use crate::{
    register::JOB,
    table::{self, Exporter, Kind, Metric},
};

/// A value of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its metric.
    pub metric: Metric,
    /// The values of the metric's own labels.
    pub labels: Vec<String>,
    /// The value.
    pub value: f64,
}

impl Sample {
    /// Makes a sample.
    #[must_use]
    pub fn new(metric: Metric, labels: &[&str], value: f64) -> Self {
        Self { metric, labels: labels.iter().map(|label| (*label).to_owned()).collect(), value }
    }
}

/// Returns the samples of a job's newest report. Facts that the report lacks have none.
#[must_use]
pub fn progress(report: &Progress) -> Vec<Sample> {
    let Progress { step, total_steps, generation, world_size, .. } = *report;
    let run = report.whole_run;
    let unsaved = report.unsaved.as_ref().map_or(0, |unsaved| step.saturating_sub(unsaved.since_step));
    let mark = report.last_checkpoint.as_ref();
    let parallel = report.load_balance.zip(report.communication_efficiency).map(|(balance, other)| balance * other);
    let plain = [
        (table::GLOBAL_STEP, Some(step as f64)),
        (table::TARGET_STEPS, Some(total_steps as f64)),
        (table::PROGRESS, (total_steps > 0).then(|| step as f64 / total_steps as f64)),
        (table::ESTIMATED_REMAINING, report.estimated_remaining_seconds),
        (table::WORLD_SIZE, Some(world_size.into())),
        (table::GENERATION, Some(generation as f64)),
        (table::MEAN_IOU, report.mean_iou),
        (table::LEARNING_RATE, report.learning_rate),
        (table::LOSS_SCALE, report.loss_scale),
        (table::GRADIENT_NORM, report.gradient_norm),
        (table::GRADIENT_NOISE_SCALE, report.gradient_noise_scale),
        (table::THROUGHPUT, report.samples_per_second),
        (table::RUN_THROUGHPUT, run.map(|run| run.samples_per_second)),
        (table::GOODPUT, run.map(|run| run.goodput_samples_per_second)),
        (table::GOODPUT_RATIO, run.map(|run| run.goodput_ratio)),
        (table::LOST_WORK, run.map(|run| run.lost_seconds)),
        (table::BASELINE, report.alone_samples_per_second),
        (table::MODEL_FLOPS, report.model_flops_per_second),
        (table::BUS_BANDWIDTH, report.bus_bandwidth_bytes_per_second),
        (table::LOAD_BALANCE, report.load_balance),
        (table::COMMUNICATION_EFFICIENCY, report.communication_efficiency),
        (table::PARALLEL_EFFICIENCY, parallel),
        (table::STRAGGLERS, Some(report.stragglers.len() as f64)),
        (table::LAST_CHECKPOINT_STEP, mark.map(|mark| mark.step as f64)),
        (table::LAST_CHECKPOINT_BYTES, mark.and_then(|mark| mark.bytes).map(|bytes| bytes as f64)),
        (table::LAST_CHECKPOINT_TIME, mark.and_then(|mark| seconds_of(&mark.time))),
        (table::UNSAVED_STEPS, Some(unsaved as f64)),
    ];
    let mut samples: Vec<_> =
        plain.into_iter().filter_map(|(metric, value)| Some(Sample::new(metric, &[], value?))).collect();
    samples.extend(report.loss.map(|loss| Sample::new(table::LOSS, &["train"], loss)));
    samples.extend(report.evaluation_loss.map(|loss| Sample::new(table::LOSS, &["evaluation"], loss)));
    samples.extend(report.accuracy.map(|share| Sample::new(table::ACCURACY, &["evaluation"], share)));
    if let (Some(efficiency), Some(baseline)) = (report.scaling_efficiency, report.scaling_baseline) {
        samples.push(Sample::new(table::SCALING_EFFICIENCY, &[&baseline.to_string()], efficiency));
    }
    if let Some(CommunicationReport { link, algorithm, wire, encryption, buckets: _ }) = report.communication {
        let labels = [link.to_string(), algorithm.to_string(), wire.to_string(), encryption.to_string()];
        samples.push(Sample { metric: table::COMMUNICATION_INFO, labels: labels.into(), value: 1.0 });
    }
    samples
}

/// Returns a time in RFC 3339 as seconds since 1970.
fn seconds_of(time: &str) -> Option<f64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Some(time.as_second() as f64)
}

/// The directions of a change of the group's size, in the order of [`std::cmp::Ordering`].
const DIRECTIONS: [&str; 3] = ["down", "same", "up"];

fn direction(before: u32, after: u32) -> &'static str {
    match after.cmp(&before) {
        std::cmp::Ordering::Less => DIRECTIONS[0],
        std::cmp::Ordering::Equal => DIRECTIONS[1],
        std::cmp::Ordering::Greater => DIRECTIONS[2],
    }
}

/// Figures that hold only while workers train.
const LIVE: [Metric; 11] = [
    table::ESTIMATED_REMAINING,
    table::WORLD_SIZE,
    table::THROUGHPUT,
    table::MODEL_FLOPS,
    table::BUS_BANDWIDTH,
    table::SCALING_EFFICIENCY,
    table::LOAD_BALANCE,
    table::COMMUNICATION_EFFICIENCY,
    table::PARALLEL_EFFICIENCY,
    table::STRAGGLERS,
    table::UNSAVED_STEPS,
];

/// Returns the samples of the newest report of a job that rests or has ended: what it has reached,
/// and nothing about the group that it had.
#[must_use]
pub fn reached(report: &Progress) -> Vec<Sample> {
    progress(report).into_iter().filter(|sample| !LIVE.contains(&sample.metric)).collect()
}

/// Returns the samples of a membership that has not changed: a counter starts at 0, so that its
/// first increase is seen.
#[must_use]
pub fn no_change() -> Vec<Sample> {
    let resizes = DIRECTIONS.map(|direction| Sample::new(table::RESIZES, &[direction], 0.0));
    resizes.into_iter().chain([Sample::new(table::RESIZE_SECONDS, &[], 0.0)]).collect()
}

/// Returns the samples of one change of the membership. The first membership is no change.
#[must_use]
pub fn changes(world_before: Option<u32>, change: &GroupChange) -> Vec<Sample> {
    let Some(before) = world_before else { return no_change() };
    vec![
        Sample::new(table::RESIZES, &[direction(before, change.workers)], 1.0),
        Sample::new(table::RESIZE_SECONDS, &[], change.seconds.max(0.0)),
    ]
}

/// The series of any number of jobs in a registry.
pub struct JobSeries {
    gauges: BTreeMap<&'static str, GaugeVec>,
    counters: BTreeMap<&'static str, CounterVec>,
}

impl JobSeries {
    /// Registers every metric of these exporters.
    ///
    /// # Errors
    /// The registry has one of them already.
    pub fn new(registry: &Registry, exporters: &[Exporter]) -> prometheus::Result<Self> {
        let (mut gauges, mut counters) = (BTreeMap::new(), BTreeMap::new());
        for metric in table::ALL.iter().filter(|metric| exporters.contains(&metric.exporter)) {
            match metric.kind {
                Kind::Gauge => drop(gauges.insert(metric.name, metric.gauges_of_jobs(registry)?)),
                Kind::Counter => drop(counters.insert(metric.name, metric.counters_of_jobs(registry)?)),
                // The series of a histogram for each job would be too many.
                Kind::Histogram => unreachable!("{} is a histogram of a job", metric.name),
            }
        }
        Ok(Self { gauges, counters })
    }

    /// Removes the values of all gauges, before a scrape sets those that hold now.
    pub fn clear_gauges(&self) {
        self.gauges.values().for_each(GaugeVec::reset);
    }

    /// Sets gauges, and adds to counters.
    pub fn write(&self, namespace: &str, name: &str, samples: &[Sample]) {
        for Sample { metric, labels, value } in samples {
            let all: Vec<&str> = [namespace, name].into_iter().chain(labels.iter().map(String::as_str)).collect();
            if let Some(gauge) = self.gauges.get(metric.name) {
                gauge.with_label_values(&all).set(*value);
            }
            if let Some(counter) = self.counters.get(metric.name) {
                counter.with_label_values(&all).inc_by(value.max(0.0));
            }
        }
    }

    /// Sets counters whose totals others keep.
    pub fn set_counters(&self, namespace: &str, name: &str, samples: &[Sample]) {
        for Sample { metric, labels, value } in samples {
            let all: Vec<&str> = [namespace, name].into_iter().chain(labels.iter().map(String::as_str)).collect();
            if let Some(counter) = self.counters.get(metric.name) {
                let counter = counter.with_label_values(&all);
                counter.inc_by((value - counter.get()).max(0.0));
            }
        }
    }

    /// Removes the counters of a job that is gone. Its gauges go with the next scrape.
    pub fn forget(&self, namespace: &str, name: &str) {
        for counters in self.counters.values() {
            for family in counters.collect() {
                for metric in family.get_metric() {
                    let of = |wanted: &str| metric.get_label().iter().find(|label| label.name() == wanted);
                    let is_it = |label: &str, value: &str| of(label).is_some_and(|found| found.value() == value);
                    if is_it(JOB[0], namespace) && is_it(JOB[1], name) {
                        let labels: HashMap<_, _> =
                            metric.get_label().iter().map(|label| (label.name(), label.value())).collect();
                        // It was just collected.
                        let _ = counters.remove(&labels);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_launch::{CheckpointMark, ScalingBaseline, WholeRun};

    use super::*;

    fn value(samples: &[Sample], name: &str) -> Option<f64> {
        samples.iter().find(|sample| sample.metric.name == name).map(|sample| sample.value)
    }

    #[test]
    fn a_report_without_a_figure_has_no_sample_of_it() {
        let report = Progress { step: 5, total_steps: 10, load_balance: Some(0.73), ..Progress::default() };
        let samples = progress(&report);
        assert_eq!(value(&samples, "lockstep_progress_ratio"), Some(0.5));
        assert_eq!(value(&samples, "lockstep_load_balance_ratio"), Some(0.73));
        assert_eq!(value(&samples, "lockstep_parallel_efficiency_ratio"), None, "half of it is unknown");
        assert_eq!(value(&samples, "lockstep_scaling_efficiency_ratio"), None);
    }

    #[test]
    fn the_efficiencies_multiply_as_pop_defines_them() {
        // The figures of three runs in the POP reports: load balance × communication = parallel.
        for (balance, communication, parallel) in [(0.73, 0.41, 0.30), (0.67, 0.19, 0.13), (0.65, 0.31, 0.20)] {
            let report = Progress {
                load_balance: Some(balance),
                communication_efficiency: Some(communication),
                ..Progress::default()
            };
            let found = value(&progress(&report), "lockstep_parallel_efficiency_ratio").expect("both are known");
            assert!((found - parallel).abs() < 0.005, "{balance} × {communication} = {found}");
        }
    }

    #[test]
    fn every_metric_of_a_job_has_a_sample_once_all_is_known() {
        let report = Progress {
            total_steps: 1,
            loss: Some(1.0),
            evaluation_loss: Some(1.0),
            accuracy: Some(0.5),
            mean_iou: Some(0.5),
            learning_rate: Some(0.1),
            loss_scale: Some(1.0),
            gradient_norm: Some(1.0),
            gradient_noise_scale: Some(1.0),
            samples_per_second: Some(1.0),
            alone_samples_per_second: Some(1.0),
            scaling_efficiency: Some(1.0),
            scaling_baseline: Some(ScalingBaseline::Measured),
            model_flops_per_second: Some(1.0),
            bus_bandwidth_bytes_per_second: Some(1.0),
            load_balance: Some(1.0),
            communication_efficiency: Some(1.0),
            estimated_remaining_seconds: Some(1.0),
            whole_run: Some(WholeRun::default()),
            communication: Some(CommunicationReport::default()),
            last_checkpoint: Some(CheckpointMark {
                time: "2026-01-01T00:00:00Z".to_owned(),
                bytes: Some(1),
                ..CheckpointMark::default()
            }),
            ..Progress::default()
        };
        let mut samples = progress(&report);
        samples.extend(changes(Some(2), &GroupChange::default()));
        for metric in table::ALL.iter().filter(|metric| metric.exporter == Exporter::Job) {
            assert!(value(&samples, metric.name).is_some(), "{} has no sample", metric.name);
        }
    }

    #[test]
    fn a_change_counts_by_its_direction_and_the_first_membership_is_none() {
        let change = |workers| GroupChange { workers, seconds: 2.0, ..GroupChange::default() };
        let counted = |before, after| {
            let samples = changes(before, &change(after));
            let counted: Vec<_> = samples.iter().filter(|sample| sample.value > 0.0).collect();
            counted.iter().flat_map(|sample| sample.labels.clone()).collect::<Vec<_>>()
        };
        assert_eq!(counted(None, 2), Vec::<String>::new());
        assert_eq!(changes(None, &change(2)).len(), 4, "each direction and the seconds start at 0");
        assert_eq!(counted(Some(2), 3), ["up"]);
        assert_eq!(counted(Some(2), 1), ["down"]);
        assert_eq!(counted(Some(2), 2), ["same"]);
    }
}
