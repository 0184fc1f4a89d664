//! What a pod's containers wait for, by what Kubernetes says of them.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use lockstep_api::{Reason, TRAINER_CONTAINER};

use crate::observed::{Waiting, clip};

/// Ends of a container that has yet to start properly after which it is held to crash whenever it
/// starts.
const CRASHES: i32 = 2;

/// What a pod waits for, if Kubernetes says so.
pub(crate) fn waiting(status: &PodStatus) -> Option<Waiting> {
    containers(status).find_map(not_made).or_else(|| crashing(status)).or_else(|| unscheduled(status))
}

/// The container of a pod that ends again and again. Of a pod that is not restarted those are
/// sidecars.
pub(crate) fn crashing(status: &PodStatus) -> Option<Waiting> {
    containers(status).find_map(crashes)
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
}

fn not_made(container: &ContainerStatus) -> Option<Waiting> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let said = waiting.reason.as_deref().unwrap_or_default();
    let (reason, what) = match said {
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
    let message = clip(&format!("{}{what} {}: {said}: {message}", of_container(container), container.image));
    Some(Waiting { reason, container: Some(container.name.clone()), message })
}

fn crashes(container: &ContainerStatus) -> Option<Waiting> {
    let state = container.state.as_ref();
    let backs_off = state
        .and_then(|state| state.waiting.as_ref()?.reason.as_deref())
        .is_some_and(|reason| reason == "CrashLoopBackOff");
    // Between two pauses it runs for a moment.
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
    Some(Waiting { reason: Reason::ContainerCrashes, container: Some(container.name.clone()), message: clip(&message) })
}

fn of_container(container: &ContainerStatus) -> String {
    if container.name == TRAINER_CONTAINER { String::new() } else { format!("container {}: ", container.name) }
}

fn unscheduled(status: &PodStatus) -> Option<Waiting> {
    let scheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled")?;
    (scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable")).then(|| Waiting {
        reason: Reason::Unschedulable,
        container: None,
        message: clip(scheduled.message.as_deref().unwrap_or("no node fits")),
    })
}
