//! The reason why a pod's containers wait, as Kubernetes states it.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use lockstep_api::{Reason, TRAINER_CONTAINER};

use super::messages::clip;

/// A container that ended so often before it started properly crashes at every start.
const CRASHES: i32 = 2;

/// The reason why a pod waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodWait {
    /// In this API's word.
    pub reason: Reason,
    /// The container that waits; none if the whole pod does.
    pub container: Option<String>,
    /// In the words of Kubernetes, with the image if there is one.
    pub message: String,
}

/// Returns the reason why a pod waits, if Kubernetes says so.
pub(super) fn waiting(status: &PodStatus) -> Option<PodWait> {
    containers(status).find_map(not_made).or_else(|| crashing(status)).or_else(|| unscheduled(status))
}

/// Finds a container that ends again and again. The pod itself is not restarted, so such a
/// container is a sidecar.
pub(super) fn crashing(status: &PodStatus) -> Option<PodWait> {
    containers(status).find_map(crashes)
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
}

fn not_made(container: &ContainerStatus) -> Option<PodWait> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let said = waiting.reason.as_deref().unwrap_or_default();
    let (reason, problem) = match said {
        "ImagePullBackOff"
        | "ErrImagePull"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => (Reason::ImageNotPulled, "cannot pull image"),
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            (Reason::ContainerConfigError, "cannot start image")
        }
        _ => return None,
    };
    let message = waiting.message.as_deref().unwrap_or_default();
    let message = clip(&format!("{}{problem} {}: {said}: {message}", of_container(container), container.image));
    Some(PodWait { reason, container: Some(container.name.clone()), message })
}

fn crashes(container: &ContainerStatus) -> Option<PodWait> {
    let state = container.state.as_ref();
    let backs_off = state
        .and_then(|state| state.waiting.as_ref()?.reason.as_deref())
        .is_some_and(|reason| reason == "CrashLoopBackOff");
    // Between two pauses the container runs for a moment.
    let never_starts = container.restart_count >= CRASHES && container.started != Some(true);
    if !backs_off && !never_starts {
        return None;
    }
    let last = container.last_state.as_ref().or(state).and_then(|state| state.terminated.as_ref())?;
    let reason = last.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let said = last.message.as_deref().map(|message| format!(": {}", message.trim())).unwrap_or_default();
    let message = format!(
        "{}image {}: CrashLoopBackOff: it was started {} times and ended with exit code {}{reason}{said}",
        of_container(container),
        container.image,
        container.restart_count + 1,
        last.exit_code,
    );
    Some(PodWait { reason: Reason::ContainerCrashes, container: Some(container.name.clone()), message: clip(&message) })
}

fn of_container(container: &ContainerStatus) -> String {
    if container.name == TRAINER_CONTAINER { String::new() } else { format!("container {}: ", container.name) }
}

fn unscheduled(status: &PodStatus) -> Option<PodWait> {
    let scheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled")?;
    (scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable")).then(|| PodWait {
        reason: Reason::Unschedulable,
        container: None,
        message: clip(scheduled.message.as_deref().unwrap_or("no node fits")),
    })
}
