//! Hindrances: what keeps a pod from its work, and what a person can do. The advice depends on the
//! cause: a job's template cannot change, the operator's image can.

use lockstep_api::{Reason, TRAINER_CONTAINER, TrainingJobStatus, ValidJob};

use super::{image, situation::Situation};
use crate::{PodState, PodWait};

/// The scheduler's words if another pod uses a port of the node.
const NO_FREE_PORTS: &str = "free ports";

/// Returns what keeps a pod from its work, with advice.
pub(crate) fn hindrance(situation: &Situation<'_>, status: &TrainingJobStatus) -> Option<(Reason, String)> {
    let job = situation.job;
    let waiting = situation.present.iter().filter_map(|pod| match &pod.state {
        PodState::Pending(Some(waiting)) => Some((pod, waiting)),
        PodState::Running => pod.beside.as_ref().map(|waiting| (pod, waiting)),
        PodState::Pending(None) | PodState::Ended(_) => None,
    });
    // A hindrance that never passes by itself comes first.
    let (pod, waiting) = waiting.min_by_key(|(pod, waiting)| match waiting.reason {
        Reason::ContainerConfigError => (0, pod.role),
        Reason::ImageNotPulled => (1, pod.role),
        Reason::ContainerCrashes => (2, pod.role),
        _ => (3, pod.role),
    })?;
    let PodWait { reason, container, message } = waiting;
    let advice = match reason {
        Reason::ImageNotPulled => advice_on_image(job, status, container.as_deref()),
        Reason::ContainerConfigError => {
            "create what spec.template names, or delete the job and create it again with another template".to_owned()
        }
        Reason::ContainerCrashes => {
            let container = container.as_deref().unwrap_or_default();
            format!("`kubectl logs {} -c {container} --previous` shows why", pod.name)
        }
        _ => advice_on_room(job, message),
    };
    Some((*reason, format!("pod {}: {message}; {advice}", pod.name)))
}

fn advice_on_image(job: &ValidJob, status: &TrainingJobStatus, container: Option<&str>) -> String {
    let by_template = container != Some(TRAINER_CONTAINER) || image::is_given_by_template(job);
    let advice = match &status.trainer {
        _ if by_template => {
            "make the image that spec.template names available to the nodes, or create its pull secret; spec.template cannot change: \
             for another image delete the job and create it again"
        }
        Some(_) => {
            "spec.template names no image, and the job keeps the one with which it began, status.trainer: make that available to the \
             nodes again"
        }
        None => {
            "spec.template names no image, so this is the operator's: correct trainer.image of its chart (--trainer-image), and these \
             pods are replaced"
        }
    };
    advice.to_owned()
}

fn advice_on_room(job: &ValidJob, message: &str) -> String {
    let on_host = job.template.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    if on_host && message.contains(NO_FREE_PORTS) {
        return format!(
            "with hostNetwork a node takes one pod of a job, and the coordinator is one: {} nodes are needed",
            job.replicas.get() + 1
        );
    }
    "free or add nodes, or delete the job and create it again with a spec.template that asks for less".to_owned()
}
