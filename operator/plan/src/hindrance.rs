//! What keeps a pod from its work, and what to do about it. The advice follows from where the cause
//! lies: a job's template cannot change, the operator's image can.

use lockstep_api::{Reason, TRAINER_CONTAINER, TrainingJobStatus, ValidJob};

use crate::{PodSeen, PodState, Waiting, image};

/// The scheduler's words where another pod has a port of the node.
const NO_FREE_PORTS: &str = "free ports";

/// What keeps a pod from its work, with what to do about it.
pub(crate) fn hindrance(job: &ValidJob, status: &TrainingJobStatus, pods: &[&PodSeen]) -> Option<(Reason, String)> {
    let waiting = pods.iter().filter_map(|pod| match &pod.state {
        PodState::Pending(Some(waiting)) => Some((pod, waiting)),
        PodState::Running => pod.beside.as_ref().map(|waiting| (pod, waiting)),
        PodState::Pending(None) | PodState::Ended(_) => None,
    });
    // What never passes by itself comes first.
    let (pod, waiting) = waiting.min_by_key(|(pod, waiting)| match waiting.reason {
        Reason::ContainerConfigError => (0, pod.role),
        Reason::ImageNotPulled => (1, pod.role),
        Reason::ContainerCrashes => (2, pod.role),
        _ => (3, pod.role),
    })?;
    let Waiting { reason, container, message } = waiting;
    let advice = match reason {
        Reason::ImageNotPulled => of_image(job, status, container.as_deref()),
        Reason::ContainerConfigError => {
            "create what spec.template names, or delete the job and create it anew with another template".to_owned()
        }
        Reason::ContainerCrashes => {
            let container = container.as_deref().unwrap_or_default();
            format!("`kubectl logs {} -c {container} --previous` shows why", pod.name)
        }
        _ => of_room(job, message),
    };
    Some((*reason, format!("pod {}: {message}; {advice}", pod.name)))
}

fn of_image(job: &ValidJob, status: &TrainingJobStatus, container: Option<&str>) -> String {
    let by_template = container != Some(TRAINER_CONTAINER) || image::is_given(job);
    let advice = match &status.trainer {
        _ if by_template => {
            "make the image that spec.template names available to the nodes, or create its pull secret; spec.template cannot change: \
             for another image delete the job and create it anew"
        }
        Some(_) => {
            "spec.template names no image, and the job keeps the one with which it began, status.trainer: make that available to the \
             nodes again"
        }
        None => {
            "spec.template names no image, so this is the operator's: correct trainer.image of its chart (--trainer-image), and these \
             pods are made anew"
        }
    };
    advice.to_owned()
}

fn of_room(job: &ValidJob, message: &str) -> String {
    let on_host = job.template.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    if on_host && message.contains(NO_FREE_PORTS) {
        return format!(
            "with hostNetwork a node takes one pod of a job, and the coordinator is one: {} nodes are needed",
            job.replicas.get() + 1
        );
    }
    "free or add nodes, or delete the job and create it anew with a spec.template that asks for less".to_owned()
}
