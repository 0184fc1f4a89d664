//! The status of a `TrainingJob`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_launch::{
    BenchmarkReport, BestMark, CheckpointMark, CommunicationReport, DamagedCheckpoint, Progress, ScalingBaseline,
    ShortGrace, Straggler, Unsaved, WholeRun,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::{ExcludedNode, JobColumns, WorkerRestarts};

/// The state of the job as the operator sees it.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// The job in one word: Pending (pods are not running yet), Starting (workers join), Running,
    /// Restarting (training waits for pods that are replaced), Suspended (no pods are left),
    /// Complete or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The reason for this phase in one word. The conditions say more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The metadata.generation that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The time when the operator first acted on the job, or last resumed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// The time when the job completed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Workers that exist as pods.
    #[serde(default)]
    pub replicas: u32,
    /// Workers that have joined the group.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Label selector of the workers' pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The number of times that all workers were lost and started again from a checkpoint.
    #[serde(default)]
    pub restarts: u32,
    /// The number of times that a worker was replaced while others kept the state.
    #[serde(default)]
    pub replacements: u32,
    /// Workers that were lost and started again, by reason. A restart of all workers counts once.
    #[serde(default, skip_serializing_if = "WorkerRestarts::is_empty")]
    pub worker_restarts: WorkerRestarts,
    /// The number of changes of the group since it first formed: workers joined, left or were lost.
    #[serde(default)]
    pub resizes: u32,
    /// Nodes that were lost under pods of this job within the last hour. From the second loss on,
    /// new pods avoid the node if another one has room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub excluded_nodes: Vec<ExcludedNode>,
    /// The number of failures that count against failurePolicy.backoffLimit.
    #[serde(default)]
    pub failures: u32,
    /// The number of the present attempt. Another attempt begins when all pods start again.
    #[serde(default)]
    pub attempt: u32,
    /// The number of workers that last existed at the same time, or the number wanted now if that
    /// is less. A worker below this number that is missing was taken away.
    #[serde(default)]
    pub target_replicas: u32,
    /// Workers that were lost and have not joined again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub replacing: Vec<LostWorker>,
    /// The time when the pods of the present attempt were first asked for. startupTimeoutSeconds
    /// counts from here, or from the time when training stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_time: Option<Time>,
    /// The members that train together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<JobMembership>,
    /// The progress of the work, as the reporting worker last told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// The results of a benchmark so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<Box<BenchmarkReport>>,
    /// The newest checkpoint from which the job can resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointMark>,
    /// The best checkpoint so far, if the job has checkpoint.best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestMark>,
    /// The image of the trainer if spec.template names none: the operator's image when the job
    /// began. The job keeps it even if the operator's image changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<TrainerImage>,
    /// The URI of the trained model, once the job is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_uri: Option<String>,
    /// The newest failure. It stays after the job has recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
    /// The conditions of the job: Running, Resizing (the group is to have more or fewer workers),
    /// Degraded (workers are missing), CheckpointsFailing, Suspended, Complete, Failed, and
    /// Finished for either end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Texts for the columns of kubectl get. Programs read the other fields instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<JobColumns>,
}

/// A job in one word.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the field's comment is the documentation; one here would split the enum in the CRD")]
pub enum Phase {
    Pending,
    Starting,
    Running,
    Restarting,
    Suspended,
    Complete,
    Failed,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 7] =
        [Self::Pending, Self::Starting, Self::Running, Self::Restarting, Self::Suspended, Self::Complete, Self::Failed];

    /// True if nothing more will happen.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Complete | Self::Failed)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Types of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// Enough workers have joined, and they are at work.
    Running,
    /// The group does not have the number of workers that it is to have.
    Resizing,
    /// Workers are missing. The others go on or wait for them.
    Degraded,
    /// The storage takes no checkpoints. The steps since the newest one are in memory only.
    CheckpointsFailing,
    /// The job rests and has no pods. Queue systems wait for this before they give its room away.
    Suspended,
    /// The training reached its last step, or the benchmark its last row.
    Complete,
    /// The job was given up.
    Failed,
    /// Complete or Failed. Queue systems wait for this.
    Finished,
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The reason for a condition, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Pods exist or are being made. Nodes are chosen and images are pulled.
    PodsPending,
    /// The scheduler finds no node for a pod.
    Unschedulable,
    /// An image cannot be pulled.
    ImageNotPulled,
    /// A container cannot be made as the template describes it.
    ContainerConfigError,
    /// A container ends again and again.
    ContainerCrashes,
    /// Containers run. Workers load data and join the group.
    WorkersJoining,
    /// The workers train.
    Training,
    /// All workers take part in a benchmark.
    Measuring,
    /// A process of the job crashed or asked to be started again.
    WorkerFailed,
    /// A pod was evicted, drained or lost with its node.
    WorkerLost,
    /// All workers are there.
    AllWorkersJoined,
    /// Workers join the group or leave it.
    GroupChanges,
    /// The group has as many workers as it is to have.
    GroupComplete,
    /// The job has no group.
    NoGroup,
    /// The workers finish a step, save the state and go.
    Suspending,
    /// The storage did not take the newest checkpoint.
    SaveFailed,
    /// The storage took the newest checkpoint.
    Saved,
    /// spec.suspend is true, and no pod is left.
    Suspended,
    /// spec.suspend is false again.
    Resumed,
    /// The training reached its last step.
    TrainingComplete,
    /// The benchmark has measured its last row.
    BenchmarkComplete,
    /// The object is not a valid job.
    InvalidSpec,
    /// The trainer refused its input: data, storage or another part of the workload.
    InvalidInput,
    /// More failures than failurePolicy.backoffLimit.
    BackoffLimitExceeded,
    /// A worker did not join within failurePolicy.startupTimeoutSeconds.
    StartupTimeout,
    /// The job took longer than activeDeadlineSeconds.
    DeadlineExceeded,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The image of a job's trainer.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TrainerImage {
    /// Its name, with the digest once Kubernetes has reported it.
    pub image: String,
    /// When it is pulled: Always, IfNotPresent or Never.
    pub image_pull_policy: String,
}

/// The members that train together.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JobMembership {
    /// The number of the membership. The first is 1.
    pub generation: u64,
    /// The number of members.
    pub world_size: u32,
    /// The newest change: the workers that joined, left and were lost, and the step from which the
    /// group goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<LastChange>,
}

/// The change that made a membership.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastChange {
    /// The membership that the change made.
    pub generation: u64,
    /// The change in one sentence.
    pub text: String,
    /// Seconds from the moment when the need for the change was seen until it was agreed on.
    pub seconds: f64,
}

/// The progress of the work.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// Optimiser steps that are done; rows of the table for a benchmark.
    pub step: u64,
    /// The membership whose steps the figures tell of.
    #[serde(default)]
    pub generation: u64,
    /// Optimiser steps of the whole job; rows of the table for a benchmark.
    pub total_steps: u64,
    /// Passes over the data set that are done.
    pub epoch: u64,
    /// Share of the job that is done, 0 to 100.
    pub percent: u8,
    /// Seconds until the last step at the present speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_remaining_seconds: Option<u64>,
    /// Mean training loss over the samples of the newest step, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Mean loss over the held-out samples at the newest evaluation, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation_loss: Option<f64>,
    /// Accuracy on the held-out samples after the newest epoch, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The step at which it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy_step: Option<u64>,
    /// Mean over the classes of intersection over union on the held-out samples, 0 to 1, where each
    /// pixel has a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_iou: Option<f64>,
    /// Samples per second of the whole group, averaged over the newest steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Learning rate of the newest step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Factor of the loss in the next step; 1 if it is not scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// L2 norm of the summed gradients before clipping, as last measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Global batch beyond which more samples save few steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_noise_scale: Option<f64>,
    /// Samples per second of one worker that trains the whole global batch by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_samples_per_second: Option<f64>,
    /// Floating-point operations per second of the whole group, averaged over the newest steps: 6
    /// for each multiply-accumulate of a sample's forward pass, as backward has twice as many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_flops_per_second: Option<f64>,
    /// Bandwidth of the sums of gradients in bytes per second, averaged over the newest steps, as
    /// nccl-tests define it: bytes in f32 times 2(n-1)/n, divided by the mean time of the sums
    /// on the ranks, waits for slower ranks included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_bandwidth_bytes_per_second: Option<f64>,
    /// Mean useful time of the ranks divided by the greatest, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balance: Option<f64>,
    /// Greatest useful time of a rank divided by the step time, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication_efficiency: Option<f64>,
    /// Load balance times communication efficiency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_efficiency: Option<f64>,
    /// Throughput divided by world size times the throughput of one worker that trains the same
    /// global batch by itself. Known after the first steps of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_efficiency: Option<f64>,
    /// The source of that worker's throughput: measured or estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_baseline: Option<ScalingBaseline>,
    /// Figures of the whole run so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_run: Option<WholeRun>,
    /// Pods that the others wait for. In each of the newest 20 steps their useful time was over 1.3
    /// times the median.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<Straggler>,
    /// The way in which the workers sum gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<CommunicationReport>,
    /// The newest checkpoint, if it is damaged and the group began with an older one. It stands
    /// here until the group changes or a newer checkpoint is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged_checkpoint: Option<DamagedCheckpoint>,
    /// The steps that no checkpoint holds, while saves fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<Unsaved>,
    /// The time that a pod has to end, if a drain takes longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_grace: Option<ShortGrace>,
    /// The time when the operator took this report over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
}

/// A failure.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    /// The pod that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The node of that pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The trainer's exit code: 75 asks for a restart, 76 is a drain, 78 is refused input. Any
    /// other code is a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The reason in one word, such as OOMKilled or NodeLost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason for people, in the trainer's own words if it left any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The last lines of its log, if it left no words of its own. The pod itself may be gone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
    /// The furthest step that was reported before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The time when the operator saw the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A worker that was lost and has not joined again.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LostWorker {
    /// The worker's number.
    pub worker: u32,
    /// The uid of the lost pod; none if it was gone before the operator looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The time when the operator saw the loss.
    pub since: Time,
    /// The earliest time for the next pod. The lost pod must be gone too.
    pub not_before: Time,
    /// True if the worker failed by itself.
    pub failed: bool,
    /// True if the loss was counted as a failure. Several losses at a time count as one.
    pub counted: bool,
}

impl TrainingJobStatus {
    /// The newest report, as far as the status holds it.
    #[must_use]
    pub fn report(&self) -> Option<Progress> {
        let progress = self.progress.clone()?;
        let membership = self.membership.clone().unwrap_or_default();
        Some(Progress {
            step: progress.step,
            total_steps: progress.total_steps,
            epoch: progress.epoch,
            generation: membership.generation,
            world_size: membership.world_size,
            loss: progress.loss,
            evaluation_loss: progress.evaluation_loss,
            accuracy: progress.accuracy,
            accuracy_step: progress.accuracy_step,
            mean_iou: progress.mean_iou,
            learning_rate: progress.learning_rate,
            loss_scale: progress.loss_scale,
            gradient_norm: progress.gradient_norm,
            gradient_noise_scale: progress.gradient_noise_scale,
            samples_per_second: progress.samples_per_second,
            alone_samples_per_second: progress.alone_samples_per_second,
            scaling_efficiency: progress.scaling_efficiency,
            scaling_baseline: progress.scaling_baseline,
            model_flops_per_second: progress.model_flops_per_second,
            bus_bandwidth_bytes_per_second: progress.bus_bandwidth_bytes_per_second,
            load_balance: progress.load_balance,
            communication_efficiency: progress.communication_efficiency,
            whole_run: progress.whole_run,
            stragglers: progress.stragglers,
            communication: progress.communication,
            damaged_checkpoint: progress.damaged_checkpoint,
            short_grace: progress.short_grace,
            unsaved: progress.unsaved,
            last_checkpoint: self.last_checkpoint.clone(),
            best_checkpoint: self.best_checkpoint.clone(),
            estimated_remaining_seconds: progress.estimated_remaining_seconds.map(|seconds| seconds as f64),
            benchmark: self.benchmark.clone(),
            // The status does not have them.
            samples: 0,
            time: None,
        })
    }
}

fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Vec<Condition>>();
    schema.insert("x-kubernetes-list-type".to_owned(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".to_owned(), serde_json::json!(["type"]));
    schema
}
