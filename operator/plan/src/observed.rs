//! What was seen of a job: only what decisions need, so that a cache of it stays small.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use lockstep_api::{Reason, TRAINER_CONTAINER, TrainingJobStatus, label};
use lockstep_launch::{Ending, GroupChange, Progress};

use crate::{ImageSeen, last_words::cause, waiting};

/// Longest message of Kubernetes or of a trainer that is kept, in characters.
const MAX_MESSAGE: usize = 1000;

/// A job's surroundings at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The job's `metadata.generation`.
    pub generation: Option<i64>,
    /// The status that the job has.
    pub status: TrainingJobStatus,
    /// Every pod that bears the job's uid.
    pub pods: Vec<PodSeen>,
    /// The job's record, if it exists and is this job's.
    pub group: Option<GroupSeen>,
    /// What the API server said when it last refused to make one of the job's objects, such as an exceeded quota.
    pub refused: Option<String>,
    /// Whether a NetworkPolicy lets the job's pods connect only to what one names.
    pub egress_denied: bool,
}

/// What the coordinator wrote into the record's status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSeen {
    /// The newest report.
    pub progress: Option<Progress>,
    /// The newest changes of the membership.
    pub changes: Vec<GroupChange>,
    /// What the training left behind.
    pub ending: Option<Ending>,
}

/// What a pod does for its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Keeps the membership.
    Coordinator,
    /// Trains; workers are numbered from 0.
    Worker(u32),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("coordinator"),
            Self::Worker(index) => write!(f, "worker {index}"),
        }
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSeen {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// What it does.
    pub role: Role,
    /// The attempt it was made for.
    pub attempt: u32,
    /// Where it runs.
    pub node: Option<String>,
    /// What its trainer runs.
    pub image: Option<ImageSeen>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// When its trainer began to run.
    pub started: Option<Timestamp>,
    /// How far it is.
    pub state: PodState,
    /// What a container beside the running trainer waits for.
    pub beside: Option<Waiting>,
    /// Whether all its containers have ended, not the trainer alone.
    pub over: bool,
    /// Whether its readiness probe succeeds: a worker has joined.
    pub ready: bool,
    /// Since when its readiness probe fails, if its trainer runs.
    pub unready_since: Option<Timestamp>,
    /// Whether the probe has succeeded before it began to fail, or the trainer ended.
    pub was_ready: bool,
    /// When its deletion can no longer be the node's ordinary work, if it is being deleted.
    pub stuck_at: Option<Timestamp>,
    /// Why Kubernetes takes it away, if it does: an eviction, a preemption, a node that is drained.
    pub disrupted: Option<String>,
    /// Whether its node stopped reporting while its containers ran.
    pub unreachable: bool,
}

/// How far a pod is.
#[derive(Clone, Debug, PartialEq)]
pub enum PodState {
    /// Not all containers run yet; what for, if Kubernetes says so.
    Pending(Option<Waiting>),
    /// The trainer runs.
    Running,
    /// The trainer, or the whole pod, has ended.
    Ended(Ended),
}

/// What a pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// In this API's word.
    pub reason: Reason,
    /// The container that waits; none where the whole pod does.
    pub container: Option<String>,
    /// In the words of Kubernetes, with the image where there is one.
    pub message: String,
}

/// How a pod ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The exit code of the trainer; none when Kubernetes ended the pod.
    pub code: Option<i32>,
    /// Kubernetes' word for it.
    pub reason: Option<String>,
    /// The termination message, or Kubernetes' explanation.
    pub message: String,
    /// When.
    pub at: Option<Timestamp>,
    /// How long the trainer ran before, where Kubernetes says so.
    pub ran: Option<SignedDuration>,
}

impl PodSeen {
    /// What matters of a pod; `None` for one without a job's labels.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let labels = pod.metadata.labels.as_ref()?;
        let role = match labels.get(label::ROLE)?.as_str() {
            label::COORDINATOR => Role::Coordinator,
            label::WORKER => Role::Worker(labels.get(label::INDEX)?.parse().ok()?),
            _ => return None,
        };
        let empty = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&empty);
        let condition = |wanted: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == wanted);
        let holds = |wanted: &str| condition(wanted).is_some_and(|condition| condition.status == "True");
        let disrupted = condition("DisruptionTarget")
            .filter(|condition| condition.status == "True")
            .map(|condition| condition.reason.clone().unwrap_or_else(|| "Disrupted".to_owned()));
        let state = state(status);
        // The node's lifecycle controller withdraws Ready alone; a failing probe withdraws both.
        let unreachable = state == PodState::Running && !gates(pod) && !holds("Ready") && holds("ContainersReady");
        let not_ready = condition("Ready").filter(|condition| condition.status != "True");
        let not_ready = not_ready.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0);
        Some(Self {
            name: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
            role,
            attempt: labels.get(label::ATTEMPT)?.parse().ok()?,
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            image: image(pod),
            beside: waiting::crashing(status).filter(|_| state == PodState::Running),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            started: started(status),
            over: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            ready: holds("Ready"),
            // Of a pod that has yet to be ready the condition is as old as the pod.
            was_ready: not_ready.zip(started(status)).is_some_and(|(unready, started)| unready > started),
            unready_since: not_ready.filter(|_| state == PodState::Running),
            stuck_at: stuck_at(pod, unreachable),
            disrupted,
            unreachable,
            state,
        })
    }

    /// What the trainer left behind, if it could.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        match &self.state {
            PodState::Ended(ended) => Ending::from_line(&ended.message),
            PodState::Pending(_) | PodState::Running => None,
        }
    }
}

fn image(pod: &Pod) -> Option<ImageSeen> {
    let trainer = pod.spec.as_ref()?.containers.iter().find(|container| container.name == TRAINER_CONTAINER)?;
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let id = statuses.filter(|container| container.name == TRAINER_CONTAINER).map(|container| &container.image_id);
    Some(ImageSeen {
        name: trainer.image.clone()?,
        pull_policy: trainer.image_pull_policy.clone(),
        id: id.into_iter().find(|id| !id.is_empty()).cloned(),
    })
}

fn gates(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.readiness_gates.iter().flatten().next().is_some())
}

/// Seconds after a deletion was asked for that a node may take to carry it out, if it reports at all.
const TERMINATING_SECONDS: i64 = 60;
/// Seconds beyond the pod's own grace period.
const BEYOND_GRACE_SECONDS: i64 = 10;

fn stuck_at(pod: &Pod, unreachable: bool) -> Option<Timestamp> {
    let ends = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    let asked = ends.checked_sub(grace).unwrap_or(ends);
    let by_request = asked.checked_add(SignedDuration::from_secs(TERMINATING_SECONDS)).unwrap_or(ends);
    let by_grace = ends.checked_add(SignedDuration::from_secs(BEYOND_GRACE_SECONDS)).unwrap_or(ends);
    // A node that does not report does not know of the deletion, and uses no grace.
    Some(if unreachable { by_request.min(by_grace) } else { by_request.max(by_grace) })
}

/// Why a container ended without an exit code that is its own: the kubelet lost it, or the runtime found it gone after a reboot.
const NO_CODE: [&str; 2] = ["ContainerStatusUnknown", "Unknown"];

fn state(status: &PodStatus) -> PodState {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let trainer = containers.iter().find(|container| container.name == TRAINER_CONTAINER);
    let ended = trainer.and_then(|trainer| trainer.state.as_ref()?.terminated.as_ref());
    match (ended, status.phase.as_deref()) {
        // The node gave the pod up: the code is of no process of ours.
        (_, Some("Failed")) if status.reason.is_some() => PodState::Ended(Ended {
            code: None,
            reason: status.reason.clone(),
            message: clip(status.message.as_deref().unwrap_or_default()),
            at: ended.and_then(|ended| ended.finished_at.as_ref()).map(|time| time.0),
            ran: None,
        }),
        (Some(ended), _) => PodState::Ended(Ended {
            code: Some(ended.exit_code).filter(|_| !ended.reason.as_deref().is_some_and(|why| NO_CODE.contains(&why))),
            reason: ended.reason.clone(),
            message: clip_ending(ended.message.as_deref().unwrap_or_default()),
            at: ended.finished_at.as_ref().map(|time| time.0),
            ran: ended
                .finished_at
                .as_ref()
                .zip(ended.started_at.as_ref())
                .map(|(end, start)| end.0.duration_since(start.0)),
        }),
        (None, Some("Failed" | "Succeeded")) => PodState::Ended(ended_before_the_trainer(status)),
        (None, Some("Running")) if trainer.is_none_or(is_running) => PodState::Running,
        (None, _) => PodState::Pending(waiting::waiting(status)),
    }
}

/// When the trainer began.
fn started(status: &PodStatus) -> Option<Timestamp> {
    let trainer = status.container_statuses.iter().flatten().find(|container| container.name == TRAINER_CONTAINER)?;
    let state = trainer.state.as_ref()?;
    let running = state.running.as_ref().and_then(|running| running.started_at.as_ref());
    let ended = || state.terminated.as_ref().and_then(|ended| ended.started_at.as_ref());
    Some(running.or_else(ended)?.0)
}

fn is_running(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.running.is_some())
}

/// An init container failed: with restart policy Never the trainer never starts.
fn ended_before_the_trainer(status: &PodStatus) -> Ended {
    let inits = status.init_container_statuses.iter().flatten();
    let failed = inits
        .filter_map(|init| Some((init, init.state.as_ref()?.terminated.as_ref()?)))
        .find(|(_, terminated)| terminated.exit_code != 0);
    match failed {
        Some((init, terminated)) => Ended {
            // Not the trainer's table of codes: whatever it was, it is a crash.
            code: Some(1),
            reason: terminated.reason.clone(),
            message: clip(&format!(
                "init container {} (image {}) exited with {}{}",
                init.name,
                init.image,
                terminated.exit_code,
                terminated.message.as_deref().map(cause).map(|cause| format!(": {cause}")).unwrap_or_default()
            )),
            at: terminated.finished_at.as_ref().map(|time| time.0),
            ran: None,
        },
        None => Ended { message: clip(status.message.as_deref().unwrap_or_default()), ..Ended::default() },
    }
}

/// A trainer's ending is bounded already and would no longer be JSON when cut.
fn clip_ending(message: &str) -> String {
    if Ending::from_line(message).is_some() { message.to_owned() } else { clip(message) }
}

/// Keeps the end: a log's last lines say why.
pub(crate) fn clip(message: &str) -> String {
    let message = message.trim();
    match message.char_indices().rev().nth(MAX_MESSAGE) {
        Some((start, _)) => format!("…{}", &message[start..]),
        None => message.to_owned(),
    }
}
