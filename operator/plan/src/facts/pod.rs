use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use lockstep_api::{TRAINER_CONTAINER, label};
use lockstep_launch::Ending;

use super::{
    messages::{cause, clip},
    role::PodRole,
    waiting::{self, PodWait},
};

/// A pod of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSeen {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its role in the job.
    pub role: PodRole,
    /// The attempt that it was made for.
    pub attempt: u32,
    /// The node that it runs on.
    pub node: Option<String>,
    /// The image of its trainer.
    pub image: Option<PodImage>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// When its trainer began to run.
    pub started: Option<Timestamp>,
    /// Its present state.
    pub state: PodState,
    /// The reason why a container beside the running trainer waits, if one does.
    pub beside: Option<PodWait>,
    /// True if all its containers have ended, not the trainer alone.
    pub over: bool,
    /// True while its readiness probe succeeds: a worker has joined.
    pub ready: bool,
    /// The time since which its readiness probe fails, if its trainer runs.
    pub unready_since: Option<Timestamp>,
    /// True if the probe succeeded before it began to fail, or before the trainer ended.
    pub was_ready: bool,
    /// If it is being deleted: the time after which the node should have carried the deletion out.
    pub stuck_at: Option<Timestamp>,
    /// Why Kubernetes takes it away, if it does: an eviction, a preemption, a drained node.
    pub disrupted: Option<String>,
    /// True if its node stopped reporting while its containers ran.
    pub unreachable: bool,
}

/// The state of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodState {
    /// Not all containers run yet. Kubernetes may say what the pod waits for.
    Pending(Option<PodWait>),
    /// The trainer runs.
    Running,
    /// The trainer, or the whole pod, has ended.
    Ended(Termination),
}

/// How a pod ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Termination {
    /// The exit code of the trainer; none if Kubernetes ended the pod.
    pub code: Option<i32>,
    /// Kubernetes' word for it.
    pub reason: Option<String>,
    /// The termination message, or Kubernetes' explanation.
    pub message: String,
    /// The time of the end.
    pub at: Option<Timestamp>,
    /// The time that the trainer ran before, if Kubernetes says so.
    pub ran: Option<SignedDuration>,
}

/// The image of the trainer's container in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodImage {
    /// The image as the pod names it.
    pub name: String,
    /// When it is pulled.
    pub pull_policy: Option<String>,
    /// The image that the node runs, in the node's words: a repository with a digest, or only a
    /// local id.
    pub id: Option<String>,
}

impl PodSeen {
    /// Reads what matters of a pod. Returns `None` for a pod without a job's labels.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let labels = pod.metadata.labels.as_ref()?;
        let role = match labels.get(label::ROLE)?.as_str() {
            label::COORDINATOR => PodRole::Coordinator,
            label::WORKER => PodRole::Worker(labels.get(label::INDEX)?.parse().ok()?),
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
        // The node lifecycle controller withdraws Ready alone. A failing probe withdraws both.
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
            // While a pod was never ready, the condition is as old as the pod.
            was_ready: not_ready.zip(started(status)).is_some_and(|(unready, started)| unready > started),
            unready_since: not_ready.filter(|_| state == PodState::Running),
            stuck_at: stuck_at(pod, unreachable),
            disrupted,
            unreachable,
            state,
        })
    }

    /// The line that the trainer left at its end, if it could.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        Ending::from_line(&self.termination()?.message)
    }

    /// How it ended, if it has.
    pub(crate) fn termination(&self) -> Option<&Termination> {
        match &self.state {
            PodState::Ended(termination) => Some(termination),
            PodState::Pending(_) | PodState::Running => None,
        }
    }

    /// When it ended, if it has and Kubernetes knows the time.
    pub(crate) fn ended_at(&self) -> Option<Timestamp> {
        self.termination()?.at
    }
}

fn image(pod: &Pod) -> Option<PodImage> {
    let trainer = pod.spec.as_ref()?.containers.iter().find(|container| container.name == TRAINER_CONTAINER)?;
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let id = statuses.filter(|container| container.name == TRAINER_CONTAINER).map(|container| &container.image_id);
    Some(PodImage {
        name: trainer.image.clone()?,
        pull_policy: trainer.image_pull_policy.clone(),
        id: id.into_iter().find(|id| !id.is_empty()).cloned(),
    })
}

fn gates(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.readiness_gates.iter().flatten().next().is_some())
}

/// Seconds that a reporting node has to carry out a deletion after the request, if the pod does not
/// say.
const TERMINATING_SECONDS: i64 = 60;
/// Seconds beyond the pod's own grace period.
const BEYOND_GRACE_SECONDS: i64 = 10;

fn stuck_at(pod: &Pod, unreachable: bool) -> Option<Timestamp> {
    let ends = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    let asked = ends.checked_sub(grace).unwrap_or(ends);
    let stated = pod.metadata.annotations.as_ref().and_then(|given| given.get(label::TERMINATING_TIMEOUT));
    let patience = stated.and_then(|seconds| seconds.parse::<u32>().ok()).map_or(TERMINATING_SECONDS, i64::from);
    let by_request = asked.checked_add(SignedDuration::from_secs(patience)).unwrap_or(ends);
    let by_grace = ends.checked_add(SignedDuration::from_secs(BEYOND_GRACE_SECONDS)).unwrap_or(ends);
    // A node that does not report knows nothing of the deletion and uses no grace period.
    Some(if unreachable { by_request.min(by_grace) } else { by_request.max(by_grace) })
}

/// Reasons of an end whose exit code is not the container's own. The kubelet lost the container, or
/// the runtime found it gone after a reboot.
const NO_CODE: [&str; 2] = ["ContainerStatusUnknown", "Unknown"];

fn state(status: &PodStatus) -> PodState {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let trainer = containers.iter().find(|container| container.name == TRAINER_CONTAINER);
    let ended = trainer.and_then(|trainer| trainer.state.as_ref()?.terminated.as_ref());
    match (ended, status.phase.as_deref()) {
        // The node gave the pod up. The exit code belongs to none of our processes.
        (_, Some("Failed")) if status.reason.is_some() => PodState::Ended(Termination {
            code: None,
            reason: status.reason.clone(),
            message: clip(status.message.as_deref().unwrap_or_default()),
            at: ended.and_then(|ended| ended.finished_at.as_ref()).map(|time| time.0),
            ran: None,
        }),
        (Some(ended), _) => PodState::Ended(termination(ended)),
        (None, Some("Failed" | "Succeeded")) => PodState::Ended(ended_before_the_trainer(status)),
        (None, Some("Running")) if trainer.is_none_or(is_running) => PodState::Running,
        (None, _) => PodState::Pending(waiting::waiting(status)),
    }
}

fn termination(ended: &ContainerStateTerminated) -> Termination {
    let times = ended.finished_at.as_ref().zip(ended.started_at.as_ref());
    Termination {
        code: Some(ended.exit_code).filter(|_| !ended.reason.as_deref().is_some_and(|why| NO_CODE.contains(&why))),
        reason: ended.reason.clone(),
        message: clip_ending(ended.message.as_deref().unwrap_or_default()),
        at: ended.finished_at.as_ref().map(|time| time.0),
        ran: times.map(|(end, start)| end.0.duration_since(start.0)),
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

/// An init container failed. With restart policy Never the trainer never starts.
fn ended_before_the_trainer(status: &PodStatus) -> Termination {
    let inits = status.init_container_statuses.iter().flatten();
    let failed = inits
        .filter_map(|init| Some((init, init.state.as_ref()?.terminated.as_ref()?)))
        .find(|(_, terminated)| terminated.exit_code != 0);
    match failed {
        Some((init, terminated)) => Termination {
            // The trainer's table of exit codes does not apply: any code is a crash.
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
        None => Termination { message: clip(status.message.as_deref().unwrap_or_default()), ..Termination::default() },
    }
}

/// A trainer's ending is bounded already. If it were cut, it would no longer be JSON.
fn clip_ending(message: &str) -> String {
    if Ending::from_line(message).is_some() { message.to_owned() } else { clip(message) }
}
