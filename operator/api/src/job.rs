//! The custom resource `TrainingJob`: its spec.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::CustomResource;
use lockstep_launch::{Benchmark, CheckpointSpec, Communication, DatasetSpec, Elastic, ModelSpec, Training};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{TrainingJobStatus, template};

/// The value of `spec.managedBy` that this operator acts on.
pub const MANAGED_BY: &str = "lockstep.dev/operator";
/// Name of the container of `spec.template` that becomes the trainer.
pub const TRAINER_CONTAINER: &str = "trainer";

/// The job: what it trains or measures, with how many workers, and what happens after a failure.
/// Once the job exists, `suspend` can change, and `replicas` if the job is elastic. While it is
/// suspended and has no pods, the fields of the template that say where pods may run can change
/// too.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "lockstep.dev",
    version = "v1alpha1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    namespaced,
    status = "TrainingJobStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    shortname = "tj",
    category = "all",
    doc = "A neural network that several workers train in lockstep: every step, all of them average their gradients.",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingJobSpec {
    /// Number of workers, 1 to 1000. Each worker is a pod. If the job is elastic, the number can
    /// change: workers join and leave while it trains. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: u32,
    /// Devices that one worker drives, 1 to 64. A device is a core, and the template's requests
    /// should have room for it. Each device takes a part of the worker's samples. The worker sums
    /// their gradients before it sums with other workers. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub devices_per_worker: Option<u32>,
    /// The smallest and greatest number of workers with which the group trains. Default: replicas
    /// for both; if a worker is lost, the others wait for its replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
    /// With true the job rests: its workers finish a step, save the state and go. With false they
    /// go on from there. While saves fail the pods stay, unless the job has the annotation
    /// lockstep.dev/suspend-unsaved: "true". Then the steps since the newest checkpoint are lost.
    /// `lockstep run` ignores this field. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// The controller that acts on the job. With any other value this operator leaves the job
    /// alone. Default: lockstep.dev/operator.
    #[serde(default = "this_operator")]
    #[schemars(length(min = 1, max = 253))]
    pub managed_by: String,
    /// The benchmark that the job measures instead of training. A benchmark has no model, dataset,
    /// training and checkpoint. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<Benchmark>,
    /// The network. Required, except for a benchmark. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSpec>,
    /// The samples. Required, except for a benchmark. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetSpec>,
    /// The optimisation. Default: 5 epochs of sgd with global batches of 64 samples; none for a
    /// benchmark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// The way in which gradients travel. Default: the fastest way that the workers have, by
    /// measurement.
    #[serde(default)]
    pub communication: Communication,
    /// The checkpoints. Required, except for a benchmark. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
    /// The limits at which the job fails. Default: it fails with the fourth failure.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// The way in which the pods get their nodes. Default: each pod by itself.
    #[serde(default)]
    pub scheduling_policy: SchedulingPolicy,
    /// Seconds from the start of the job, or from its newest resumption, after which it fails.
    /// Restarts are included. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub active_deadline_seconds: Option<u32>,
    /// The pods that are deleted when the job is over: Running (pods that still run; logs of the
    /// others stay readable), All or None. Default: Running.
    #[serde(default)]
    pub clean_pod_policy: CleanPodPolicy,
    /// Seconds after its end at which the job is deleted with everything that it owns. Checkpoints
    /// and model stay. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// The pods, as in every other Kubernetes workload. The container named `trainer` gives
    /// resources, volume mounts, environment and, if it names one, the image of the trainer. The
    /// coordinator's pod is made from the same template without accelerators. Default: one
    /// container without volumes, with the operator's trainer image. The job keeps that image from
    /// its beginning on. While the job is suspended and has no pods, the template's metadata,
    /// nodeSelector, tolerations, affinity and schedulingGates can change. The rest of the template
    /// never changes.
    #[serde(default, deserialize_with = "template::read", skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplateSpec>,
}

/// The limits at which a job fails.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FailurePolicy {
    /// Failures of workers before the job fails. Several within ten seconds count as one. Evictions
    /// and lost nodes do not count. Ten minutes of training without a loss, beyond the furthest
    /// step before, set the count back to 0. Default: 3.
    #[schemars(range(min = 0, max = 1000))]
    pub backoff_limit: u32,
    /// Seconds that training may wait for workers, from the creation of their pods or from the loss
    /// of a worker. Default: 600.
    #[schemars(range(min = 1, max = 86_400))]
    pub startup_timeout_seconds: u32,
    /// Seconds that a node has to end a pod after its deletion was asked for. Then the pod is
    /// deleted without its node, which may be dead, and a worker is replaced. A node that reports
    /// has the pod's grace period too. Default: 60.
    #[schemars(range(min = 1, max = 86_400))]
    pub pod_terminating_timeout_seconds: u32,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self { backoff_limit: 3, startup_timeout_seconds: 600, pod_terminating_timeout_seconds: 60 }
    }
}

/// The way in which the pods of a job get their nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulingPolicy {
    /// The scheduler that starts the pods of elastic.minReplicas workers and the coordinator
    /// together or not at all: none, native (PodGroups of Kubernetes 1.36 and later), volcano,
    /// coscheduling (of the scheduler plugins; template.spec.schedulerName names their scheduler)
    /// or kai. The operator makes the PodGroup. A queue is named on the template, by the annotation
    /// scheduling.volcano.sh/queue-name or the label kai.scheduler/queue. `lockstep run` ignores
    /// this field. Default: none.
    pub gang: Gang,
}

/// The back end of gang scheduling.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the field's comment is the documentation; one here would split the enum in the CRD")]
pub enum Gang {
    #[default]
    None,
    Native,
    Volcano,
    Coscheduling,
    Kai,
}

/// The pods that are deleted when a job is over.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CleanPodPolicy {
    #[default]
    #[allow(
        missing_docs,
        reason = "the field's comment is the documentation; one here would split the enum in the CRD"
    )]
    Running,
    #[allow(missing_docs, reason = "as above")]
    All,
    #[allow(missing_docs, reason = "as above")]
    None,
}

fn one() -> u32 {
    1
}

fn this_operator() -> String {
    MANAGED_BY.to_owned()
}
