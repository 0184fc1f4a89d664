use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_launch::{
    BenchmarkReport, CheckpointMark, CommunicationReport, DamagedCheckpoint, ShortGrace, Straggler, Unsaved,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// What the operator has seen and done.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// The job in one word: Pending (pods are not running yet), Starting (workers join), Running, Restarting (training waits for
    /// pods that are replaced), Suspended (no pods are left), Complete or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why it is in this phase, in one word; the conditions say more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The metadata.generation that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the operator first acted on the job, or resumed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job ended, either way.
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
    /// How often all workers were lost and started anew, from a checkpoint.
    #[serde(default)]
    pub restarts: u32,
    /// How often a worker was replaced while others kept the state.
    #[serde(default)]
    pub replacements: u32,
    /// How many failures count against failurePolicy.backoffLimit.
    #[serde(default)]
    pub failures: u32,
    /// The present set of pods: another one begins when all start anew.
    #[serde(default)]
    pub attempt: u32,
    /// The number of workers that last existed all together, or fewer that are wanted now: one of them that is missing was taken away.
    #[serde(default)]
    pub target_replicas: u32,
    /// Workers that were lost and have not joined again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub replacing: Vec<Replacing>,
    /// When the pods of the present attempt were first asked for; startupTimeoutSeconds counts from here, or from when training stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_time: Option<Time>,
    /// Who trains together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<Membership>,
    /// How far the work is, as one worker last reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// What a benchmark has found so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<Box<BenchmarkReport>>,
    /// The newest checkpoint that can be resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointMark>,
    /// What the trainer's containers run where spec.template names no image: the image of the
    /// operator with which the job began. The job keeps it, whatever the operator's image is by
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<TrainerImage>,
    /// Where the trained model lies, once the job is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_uri: Option<String>,
    /// The newest failure, also of a job that recovered from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
    /// What is true of the job: Running, Degraded (workers are missing), CheckpointsFailing, Suspended, Complete, Failed, and Finished for either end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Texts for the columns of kubectl get; read the other fields instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,
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

    /// Whether nothing more will happen.
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
    /// As many workers as train have joined and are at work.
    Running,
    /// Workers are missing, whether the others go on or wait for them.
    Degraded,
    /// The storage does not take checkpoints: the steps since the newest one are in memory only.
    CheckpointsFailing,
    /// The job rests and has no pods: what queue systems wait for before they give its room away.
    Suspended,
    /// The training reached its last step, or the benchmark its last row.
    Complete,
    /// The job was given up.
    Failed,
    /// Complete or Failed: what queue systems wait for.
    Finished,
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a condition is as it is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Pods exist or are being made; nodes are being chosen, images pulled.
    PodsPending,
    /// The scheduler finds no node for a pod.
    Unschedulable,
    /// An image cannot be pulled.
    ImageNotPulled,
    /// A container cannot be made as the template describes it.
    ContainerConfigError,
    /// A container ends again and again.
    ContainerCrashes,
    /// Containers run; workers load data and join the group.
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
    /// Everything that a benchmark is to measure was measured.
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
    /// Its name, with the digest once Kubernetes has told it.
    pub image: String,
    /// When it is pulled: Always, IfNotPresent or Never.
    pub image_pull_policy: String,
}

/// Who trains together.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// Agreed memberships so far; 1 is the first.
    pub generation: u64,
    /// Ranks that train together.
    pub world_size: u32,
    /// How the newest one came about: who joined, left and was lost, and from which step it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<LastChange>,
}

/// How a membership came about.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastChange {
    /// The membership that it made.
    pub generation: u64,
    /// In one sentence.
    pub text: String,
    /// Seconds from the moment when the need for it was seen until it was agreed.
    pub seconds: f64,
}

/// How far the work is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// Optimiser steps that are done; of a benchmark, rows of its table.
    pub step: u64,
    /// Optimiser steps of the whole job; of a benchmark, rows of its table.
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
    /// Accuracy on the held-out samples after the newest epoch, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Samples per second of the whole group, averaged over the newest steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Throughput divided by world size times one worker's throughput without communication, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_efficiency: Option<f64>,
    /// Pods that the others wait for: in each of the newest 20 steps their useful time was over 1.3 times the median.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<Straggler>,
    /// How the workers sum gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<CommunicationReport>,
    /// The newest checkpoint, where the group began with an older one because it is damaged; until the group changes, or there is a
    /// newer one that is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged_checkpoint: Option<DamagedCheckpoint>,
    /// Steps that no checkpoint holds, while saves fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<Unsaved>,
    /// The time that a pod has to end, where a drain does not fit into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_grace: Option<ShortGrace>,
    /// When this was measured.
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
    /// The node that it ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The trainer's exit code: 75 asks for a restart, 76 was drained, 78 is refused input; any other is a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why, in one word, such as OOMKilled or NodeLost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people, in the trainer's own words where it left any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The last lines of its log, where it left no word of its own: the pod may be gone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
    /// When the operator saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A worker that was lost and has not joined again.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Replacing {
    /// The worker's number.
    pub worker: u32,
    /// The uid of the pod that was lost; none where it was gone before anybody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// When the operator saw it.
    pub since: Time,
    /// When the next pod is made, once the lost one is gone.
    pub not_before: Time,
    /// Whether it failed by itself.
    pub failed: bool,
    /// Whether it was counted as a failure: of several at a time one is.
    pub counted: bool,
}

/// Texts for the columns of kubectl get.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Display {
    /// Workers that have joined of those wanted, as 2/2; of a complete job those that saw its end,
    /// of a failed one a dash.
    pub workers: String,
    /// Share of the steps that is done, as 43%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Samples per second of the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<String>,
    /// Scaling efficiency, as 93%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<String>,
    /// Training loss in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Time until the last step, as 2m10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<String>,
}

fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Vec<Condition>>();
    schema.insert("x-kubernetes-list-type".to_owned(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".to_owned(), serde_json::json!(["type"]));
    schema
}
