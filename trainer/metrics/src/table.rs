//! The table of metrics.
//!
//! Names follow Prometheus' rules: the prefix `lockstep_`, base units, `_total` on counters, no
//! label that Prometheus reserves. No label holds a rank, a step or a uid, so the number of series
//! stays bounded.

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The whole name.
    pub name: &'static str,
    /// What Prometheus calls its type.
    pub kind: Kind,
    /// The unit of its values.
    pub unit: Unit,
    /// Labels beside `job_namespace` and `job_name`, which every metric of a job or a worker has.
    pub labels: &'static [&'static str],
    /// The processes that export it.
    pub exporter: Exporter,
    /// One sentence about it: the text that Prometheus shows.
    pub meaning: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until its process or its job ends.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts observations in buckets.
    Histogram,
}

/// The unit of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Seconds since 1970.
    Timestamp,
    /// Bytes.
    Bytes,
    /// A share, 0 to 1. Scaling efficiency may exceed 1 a little.
    Ratio,
    /// Samples per second.
    SamplesPerSecond,
    /// Bytes per second.
    BytesPerSecond,
    /// Floating-point operations per second.
    FlopsPerSecond,
    /// A number of things, or of 0 and 1.
    Count,
    /// A value whose unit depends on the model, such as a loss.
    Value,
}

/// The processes that export a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exporter {
    /// The operator, about itself and about all jobs together.
    Operator,
    /// One process for each job: the operator in a cluster, the coordinator of a `lockstep run`.
    Job,
    /// The operator, for each job. A `lockstep run` has no such facts.
    JobInCluster,
    /// Each worker, about itself.
    Worker,
    /// Every process of Lockstep.
    Process,
}

impl Exporter {
    /// True if its series carry `job_namespace` and `job_name`.
    #[must_use]
    pub const fn is_of_a_job(self) -> bool {
        matches!(self, Self::Job | Self::JobInCluster | Self::Worker)
    }
}

macro_rules! table {
    ($($constant:ident = $exporter:ident $kind:ident $unit:ident $name:literal $labels:tt $meaning:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $constant: Metric = Metric {
                name: concat!("lockstep_", $name),
                kind: Kind::$kind,
                unit: Unit::$unit,
                labels: &$labels,
                exporter: Exporter::$exporter,
                meaning: $meaning,
            };
        )*

        /// Every metric, in the order of the table.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

table! {
    RECONCILES = Operator Counter Count "reconciles_total" ["result"]
        "Reconciliations of a job, by result: success, error, or outdated (the job changed meanwhile).";
    RECONCILE_ERRORS = Operator Counter Count "reconcile_errors_total" ["reason"]
        "Failed reconciliations of a job, by reason: request (the API server's answer, or a right that is lacking), credentials, refused (a quota, a policy or a field) or taken (another object has the name).";
    RECONCILE_DURATION = Operator Histogram Seconds "reconcile_duration_seconds" []
        "Time that one reconciliation of a job takes.";
    WORKQUEUE_DEPTH = Operator Gauge Count "workqueue_depth" []
        "Jobs with news that wait for their reconciliation.";
    WORKQUEUE_WAIT = Operator Histogram Seconds "workqueue_wait_seconds" []
        "Time from the news of a job until its reconciliation begins.";
    API_REQUESTS = Operator Counter Count "api_requests_total" ["verb", "resource", "code"]
        "Requests to the API server, by verb, resource and the answer's status code (none: no answer).";
    WATCH_RESTARTS = Operator Counter Count "watch_restarts_total" []
        "Interrupted watches of the API server.";
    LEADER = Operator Gauge Count "leader" []
        "1 while this process leads, 0 while it stands by.";
    BUILD_INFO = Operator Gauge Count "build_info" ["version"]
        "Always 1; the label is the version of the operator.";
    JOBS = Operator Gauge Count "jobs" ["job_namespace", "phase"]
        "Jobs, by namespace and phase.";
    JOBS_FINISHED = Operator Counter Count "jobs_finished_total" ["result", "reason"]
        "Jobs that this process saw end, by result (Complete or Failed) and the reason in their status.";
    TIME_TO_RUNNING = Operator Histogram Seconds "time_to_running_seconds" []
        "Time from the moment when the operator first acted on a job until its workers trained.";
    TIME_TO_FIRST_STEP = Operator Histogram Seconds "time_to_first_step_seconds" []
        "Time from the moment when the operator first acted on a job until its first step was reported.";

    STATUS_PHASE = JobInCluster Gauge Count "status_phase" ["phase"]
        "1 for the phase that the job is in, 0 for the others.";
    WORKERS = JobInCluster Gauge Count "workers" ["state"]
        "Workers by state: min and max (the bounds of spec.elastic), desired (wanted now), ready (joined).";
    WORKER_RESTARTS = JobInCluster Counter Count "worker_restarts_total" ["reason"]
        "Workers that were lost and started again, by reason: crash, oom, preempted, evicted, node_lost or hung. A restart of all workers counts once.";

    GLOBAL_STEP = Job Gauge Count "global_step" []
        "Optimiser steps of the job that are done.";
    TARGET_STEPS = Job Gauge Count "target_steps" []
        "Optimiser steps of the whole job.";
    PROGRESS = Job Gauge Ratio "progress_ratio" []
        "Share of the job's steps that is done.";
    ESTIMATED_REMAINING = Job Gauge Seconds "estimated_remaining_seconds" []
        "Time until the last step at the speed of the last minute, evaluations and checkpoints included.";
    WORLD_SIZE = Job Gauge Count "world_size" []
        "Ranks that train together.";
    GENERATION = Job Gauge Count "generation" []
        "Number of the newest membership; the first is 1.";
    LOSS = Job Gauge Value "loss" ["split"]
        "Mean loss in nats, by split: train (the newest step) or evaluation.";
    ACCURACY = Job Gauge Ratio "accuracy" ["split"]
        "Share of the held-out samples that are classified rightly; split is evaluation.";
    MEAN_IOU = Job Gauge Ratio "mean_iou_ratio" []
        "Mean over the classes of intersection over union, on the masks of the held-out samples.";
    LEARNING_RATE = Job Gauge Value "learning_rate" []
        "Learning rate of the newest step.";
    LOSS_SCALE = Job Gauge Value "loss_scale" []
        "Factor of the loss in the next step; 1 if it is not scaled.";
    GRADIENT_NORM = Job Gauge Value "gradient_norm" []
        "L2 norm of the summed gradients before clipping, in one step of eight.";
    GRADIENT_NOISE_SCALE = Job Gauge Count "gradient_noise_scale" []
        "Global batch beyond which more samples save few steps (McCandlish et al., arXiv 1812.06162).";
    THROUGHPUT = Job Gauge SamplesPerSecond "throughput_samples_per_second" []
        "Samples per second of the whole group during steps, averaged over the newest steps.";
    RUN_THROUGHPUT = Job Gauge SamplesPerSecond "run_throughput_samples_per_second" []
        "Samples per second over the whole run; steps that were done again count each time.";
    GOODPUT = Job Gauge SamplesPerSecond "goodput_samples_per_second" []
        "Samples per second over the whole run, without steps that were lost and done again.";
    GOODPUT_RATIO = Job Gauge Ratio "goodput_ratio" []
        "Share of the run's time that went into steps that count. The rest is evaluations, checkpoints, resizes and lost work.";
    LOST_WORK = Job Gauge Seconds "lost_work_seconds" []
        "Time of the run's steps that were lost and done again.";
    BASELINE = Job Gauge SamplesPerSecond "baseline_samples_per_second_per_worker" []
        "Samples per second of one worker that trains the whole global batch by itself.";
    SCALING_EFFICIENCY = Job Gauge Ratio "scaling_efficiency_ratio" ["baseline"]
        "Throughput divided by world size times the baseline; the label says whether that was measured or estimated.";
    MODEL_FLOPS = Job Gauge FlopsPerSecond "model_flops_per_second" []
        "Floating-point operations per second of the whole group: 6 for each multiply-accumulate of a sample's forward pass, as backward has twice as many.";
    BUS_BANDWIDTH = Job Gauge BytesPerSecond "allreduce_bus_bandwidth_bytes_per_second" []
        "Bandwidth of the sums of gradients as nccl-tests define it: their bytes in f32 times 2(n-1)/n, divided by the mean time of the sums on the ranks, waits for slower ranks included.";
    LOAD_BALANCE = Job Gauge Ratio "load_balance_ratio" []
        "Mean useful time of the ranks divided by the greatest.";
    COMMUNICATION_EFFICIENCY = Job Gauge Ratio "communication_efficiency_ratio" []
        "Greatest useful time of a rank divided by the step time.";
    PARALLEL_EFFICIENCY = Job Gauge Ratio "parallel_efficiency_ratio" []
        "Load balance times communication efficiency.";
    STRAGGLERS = Job Gauge Count "stragglers" []
        "Workers for which the others wait step after step.";
    LAST_CHECKPOINT_STEP = Job Gauge Count "last_checkpoint_step" []
        "Optimiser steps that the newest checkpoint holds.";
    LAST_CHECKPOINT_BYTES = Job Gauge Bytes "last_checkpoint_bytes" []
        "Bytes of all files of the newest checkpoint.";
    LAST_CHECKPOINT_TIME = Job Gauge Timestamp "last_checkpoint_timestamp_seconds" []
        "Time when the newest checkpoint became whole.";
    UNSAVED_STEPS = Job Gauge Count "unsaved_steps" []
        "Optimiser steps since the newest checkpoint while saves fail; 0 while they do not.";
    COMMUNICATION_INFO = Job Gauge Count "communication_info" ["link", "algorithm", "wire", "encryption"]
        "1 for the link, algorithm, number format and encryption that gradients travel by.";
    RESIZES = Job Counter Count "resizes_total" ["direction"]
        "Changes of the membership, by direction: up, down, or same (a worker was replaced).";
    RESIZE_SECONDS = Job Counter Seconds "resize_seconds_total" []
        "Time of these changes, each from the first sign of its need until it was agreed on.";

    STEPS = Worker Counter Count "steps_total" []
        "Optimiser steps that this worker has done.";
    SKIPPED_STEPS = Worker Counter Count "skipped_steps_total" []
        "Steps that changed no weight, because the loss or a gradient was infinite or not a number.";
    SAMPLES = Worker Counter Count "samples_total" []
        "Training samples that this worker has taken through the network.";
    STEP_DURATION = Worker Histogram Seconds "step_duration_seconds" []
        "Wall time of one optimiser step.";
    PHASE_SECONDS = Worker Counter Seconds "phase_seconds_total" ["phase"]
        "Wall time of this worker by its use. The phases add up to the time since its process began.";
    COLLECTIVE_SECONDS = Worker Counter Seconds "collective_seconds_total" ["op"]
        "Time in which a collective operation was under way, hidden behind computation or not.";
    COLLECTIVE_BYTES = Worker Counter Bytes "collective_bytes_total" ["transport"]
        "Bytes of collective operations: what this worker sent over the network (tcp), headers included, and what it reduced through memory that ranks share (memory).";
    COLLECTIVE_ERRORS = Worker Counter Count "collective_errors_total" ["kind"]
        "Times that a group broke under this worker, by what the other rank did: closed its connection, was silent, or was refused for what it sent; other if no rank is to blame.";
    STABLE_WAIT = Worker Counter Seconds "stable_wait_seconds_total" []
        "Waiting to learn that all ranks had done a step, apart from waits for gradients. The shortest wait of any rank counts.";
    CHECKPOINT_DURATION = Worker Histogram Seconds "checkpoint_duration_seconds" ["stage"]
        "Wall time of one checkpoint: stall while training stood still, save from then until it was whole.";
    CHECKPOINT_FAILURES = Worker Counter Count "checkpoint_failures_total" []
        "Checkpoints that could not be saved.";
    DATA_QUEUE_DEPTH = Worker Gauge Count "data_queue_depth" []
        "Micro-batches that were ready when the newest step began. 0, step after step, means that training waits for data.";
    DEVICE_MEMORY = Worker Gauge Bytes "device_memory_bytes" ["kind"]
        "Memory that this worker's devices need, by kind: weights, gradients, optimizer, activations, and samples kept in memory.";
    HEARTBEAT = Worker Gauge Timestamp "heartbeat_timestamp_seconds" []
        "Time when this worker ended its newest step.";

    LOG_LINES_DROPPED = Process Counter Count "log_lines_dropped_total" []
        "Log lines that could not be written to the standard error.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_as_their_types_and_units_ask() {
        for Metric { name, kind, unit, .. } in ALL {
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}: _total is for counters");
            let ending = match (kind, unit) {
                (Kind::Counter, Unit::Seconds) => "_seconds_total",
                (Kind::Counter, Unit::Bytes) => "_bytes_total",
                (_, Unit::Timestamp) => "_timestamp_seconds",
                (_, Unit::Seconds) => "_seconds",
                (_, Unit::Bytes) => "_bytes",
                _ => continue,
            };
            assert!(name.ends_with(ending), "{name} does not end with {ending}");
        }
    }

    #[test]
    fn no_name_appears_twice_and_no_label_is_reserved() {
        let mut names: Vec<_> = ALL.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for Metric { name, labels, .. } in ALL {
            let reserved = ["job", "instance", "namespace", "pod", "job_name", "le", "rank", "step", "uid"];
            assert!(!labels.iter().any(|label| reserved.contains(label)), "{name}: {labels:?}");
        }
    }
}
