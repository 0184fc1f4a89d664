//! The facts about a job in a cluster at one moment.

use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Pod, ResourceQuota},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use lockstep_api::{ConditionType, Phase, TrainingGroupStatus, TrainingJob, TrainingJobSpec, TrainingJobStatus};
use lockstep_plan::{PodRole, PodSeen};

use super::words::count;
use crate::scrape::WorkerTime;

/// Above this share of the time, waits for samples cost too much.
pub(super) const MUCH_DATA: f64 = 0.15;
/// A job or a run without a step for this long stands still.
pub(super) const STANDS_STILL: SignedDuration = SignedDuration::from_secs(60);

static NO_STATUS: LazyLock<TrainingJobStatus> = LazyLock::new(TrainingJobStatus::default);

/// Everything that findings look at.
pub(super) struct Facts {
    pub(super) now: Timestamp,
    pub(super) namespace: String,
    pub(super) job: TrainingJob,
    /// The coordinator's own reports, if they can be read.
    pub(super) group: Option<TrainingGroupStatus>,
    pub(super) pods: Vec<Pod>,
    /// Events of the job and its pods, oldest first.
    pub(super) events: Vec<EventSeen>,
    pub(super) quotas: Vec<ResourceQuota>,
    /// Names of the namespace's LimitRanges.
    pub(super) limit_ranges: Vec<String>,
    /// The operator's deployments; none if the user may not read them.
    pub(super) operators: Option<Vec<OperatorSeen>>,
    /// The way in which workers spend their time, if their metrics can be read.
    pub(super) workers: Vec<WorkerTime>,
    /// Resources that the user may not read, so the answer lacks them.
    pub(super) unread: Vec<String>,
}

/// An event of the job or of one of its pods.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(super) struct EventSeen {
    /// Name of the job or the pod.
    pub(super) object: String,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A deployment of the operator.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(super) struct OperatorSeen {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Pods that it should have.
    pub(super) wanted: u32,
    /// Pods that are ready.
    pub(super) ready: u32,
}

impl OperatorSeen {
    /// True if it has a pod, and all its pods are ready.
    pub(super) fn is_ready(&self) -> bool {
        self.ready > 0 && self.ready >= self.wanted
    }
}

impl Facts {
    pub(super) fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn spec(&self) -> &TrainingJobSpec {
        &self.job.spec
    }

    pub(super) fn status(&self) -> &TrainingJobStatus {
        self.job.status.as_ref().unwrap_or(&NO_STATUS)
    }

    pub(super) fn is_in(&self, phase: Phase) -> bool {
        self.status().phase == Some(phase)
    }

    /// Returns a condition, whether it holds or not.
    pub(super) fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        self.status().conditions.iter().find(|condition| condition.type_ == type_.to_string())
    }

    /// Returns the message of a condition; empty if there is none.
    pub(super) fn message(&self, type_: ConditionType) -> &str {
        self.condition(type_).map(|condition| condition.message.as_str()).unwrap_or_default()
    }

    pub(super) fn pods_seen(&self) -> Vec<PodSeen> {
        let mut pods: Vec<PodSeen> = self.pods.iter().filter_map(PodSeen::of).collect();
        pods.sort_by_key(|pod| (pod.role, pod.attempt));
        pods
    }

    /// Returns the number of workers that train, as far as the status knows.
    pub(super) fn world(&self) -> u32 {
        self.status().membership.as_ref().map_or(0, |membership| membership.world_size)
    }

    /// Returns a subject and verb for the job as it is: waiting, or at work with some workers.
    pub(super) fn opening(&self) -> String {
        let (name, replicas) = (self.name(), self.spec().replicas);
        match self.status().phase {
            Some(Phase::Running) if self.world() < replicas => {
                format!("{name} trains with {} of {replicas} workers", self.world())
            }
            Some(Phase::Running) => format!("{name} trains"),
            Some(Phase::Restarting) => format!("{name} waits with its training"),
            _ => format!("{name} has not begun to train"),
        }
    }

    /// Returns the command for as few workers as have room, if `there` of them have, and if the job
    /// may have fewer than it asks for.
    pub(super) fn fewer_meanwhile(&self, there: u32) -> Option<(String, String)> {
        self.fewer_workers(there, |fewer| format!("train with {} meanwhile", count(fewer, "worker")))
    }

    /// Returns the command for `wanted` workers, or the least number that the job may have, if that
    /// is fewer than now. `purpose` says what fewer workers are for.
    pub(super) fn fewer_workers(&self, wanted: u32, purpose: impl Fn(u32) -> String) -> Option<(String, String)> {
        let elastic = self.spec().elastic?;
        let fewer = wanted.max(elastic.min_replicas);
        let bounds = format!("{} to {}", elastic.min_replicas, elastic.max_replicas);
        (fewer < self.spec().replicas).then(|| {
            let command = self.kubectl(&format!("scale tj {} --replicas={fewer}", self.name()));
            (command, format!("{}; spec.elastic allows {bounds}", purpose(fewer)))
        })
    }

    /// Returns the command that removes the job, so that it can be created with another spec. A job
    /// at work is not given up for that.
    pub(super) fn create_again(&self, with: &str) -> Option<(String, String)> {
        let command = self.kubectl(&format!("delete tj {}", self.name()));
        (!self.is_in(Phase::Running)).then(|| (command, format!("delete it, and create it again with {with}")))
    }

    pub(super) fn kubectl(&self, words: &str) -> String {
        format!("kubectl -n {} {words}", self.namespace)
    }

    pub(super) fn lockstep(&self, verb: &str, more: &str) -> String {
        format!("lockstep {verb} {} -n {}{more}", self.name(), self.namespace)
    }

    /// Returns the command that shows the end of a pod's log.
    pub(super) fn log_of(&self, pod: &str) -> String {
        self.kubectl(&format!("logs {pod} --tail=50"))
    }
}

/// Returns true for a worker's pod.
pub(super) fn is_worker(pod: &PodSeen) -> bool {
    pod.role != PodRole::Coordinator
}
