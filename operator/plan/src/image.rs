//! The image of the trainer where the job's template names none. It is the operator's until the job
//! has begun. From then on the job keeps the image with which it began, through replacement,
//! restart, suspension and an upgrade of the operator.

use lockstep_api::{Reason, TRAINER_CONTAINER, TrainerImage, TrainingJobStatus, ValidJob};

use crate::{PodSeen, PodState, Role, Settings};

/// What the trainer's container of a pod runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSeen {
    /// The image as the pod names it.
    pub name: String,
    /// When it is pulled.
    pub pull_policy: Option<String>,
    /// The image that the node runs, in its own words: a repository with a digest, or only a local
    /// id.
    pub id: Option<String>,
}

/// Whether the job's template names the image.
pub(crate) fn is_given(job: &ValidJob) -> bool {
    let containers = job.template.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter(|container| container.name == TRAINER_CONTAINER).any(|container| container.image.is_some())
}

/// Notes the image with which the job began: the one that a worker has run.
pub(crate) fn keep(job: &ValidJob, status: &mut TrainingJobStatus, pods: &[PodSeen]) {
    if is_given(job) {
        return;
    }
    let ran = pods.iter().filter(|pod| pod.role != Role::Coordinator && has_run(pod));
    for image in ran.filter_map(|pod| pod.image.as_ref()) {
        let kept = status.trainer.get_or_insert_with(|| TrainerImage {
            image: image.name.clone(),
            image_pull_policy: image.pull_policy.clone().unwrap_or_else(|| "IfNotPresent".to_owned()),
        });
        if kept.image == image.name
            && let Some(digest) = digest(&image.name, image.id.as_deref())
        {
            kept.image = format!("{}@{digest}", image.name);
        }
    }
}

/// What the job's new pods are made of.
pub(crate) fn of_new_pods(status: &TrainingJobStatus, present: &[&PodSeen], settings: &Settings) -> Settings {
    if let Some(TrainerImage { image, image_pull_policy }) = status.trainer.clone() {
        return Settings { trainer_image: image, trainer_image_pull_policy: image_pull_policy };
    }
    // The processes of an attempt understand each other: an operator that was updated meanwhile
    // gives another image to the next one.
    let Settings { trainer_image, trainer_image_pull_policy } = settings.clone();
    let there = present.iter().find_map(|pod| pod.image.clone());
    let policy = there.as_ref().and_then(|image| image.pull_policy.clone());
    Settings {
        trainer_image: there.map_or(trainer_image, |image| image.name),
        trainer_image_pull_policy: policy.unwrap_or(trainer_image_pull_policy),
    }
}

/// The pods that cannot start because of their image, and would be made of another one now.
pub(crate) fn outdated<'a>(
    job: &ValidJob,
    status: &TrainingJobStatus,
    present: &[&'a PodSeen],
    settings: &Settings,
) -> Vec<&'a PodSeen> {
    let now = of_new_pods(status, &[], settings);
    let differs = |image: &ImageSeen| {
        let is_same = now.trainer_image.strip_prefix(image.name.as_str()).is_some_and(|rest| {
            // A digest says more of the same image.
            rest.is_empty() || rest.starts_with('@')
        });
        !is_same || image.pull_policy.as_ref().is_some_and(|policy| *policy != now.trainer_image_pull_policy)
    };
    let is_outdated = |pod: &&PodSeen| waits_for_image(pod) && pod.image.as_ref().is_some_and(differs);
    present.iter().copied().filter(|_| !is_given(job)).filter(is_outdated).collect()
}

fn waits_for_image(pod: &PodSeen) -> bool {
    let PodState::Pending(Some(waiting)) = &pod.state else { return false };
    waiting.container.as_deref() == Some(TRAINER_CONTAINER)
        && matches!(waiting.reason, Reason::ImageNotPulled | Reason::ContainerConfigError)
}

fn has_run(pod: &PodSeen) -> bool {
    pod.state == PodState::Running || pod.image.as_ref().is_some_and(|image| image.id.is_some())
}

/// The digest of an image that names none, if the node has it from the same repository: an image
/// that was put there by hand has another name, or none.
fn digest<'a>(image: &str, id: Option<&'a str>) -> Option<&'a str> {
    let (repository, digest) = id?.split_once('@')?;
    let repository = repository.rsplit_once("://").map_or(repository, |(_, rest)| rest);
    let is_same = !image.contains('@') && whole(without_tag(image)) == whole(repository);
    Some(digest).filter(|digest| is_same && digest.contains(':'))
}

fn without_tag(image: &str) -> &str {
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => image,
    }
}

/// A repository with the registry and the folder that Kubernetes adds where a name has none.
fn whole(repository: &str) -> String {
    match repository.split_once('/') {
        Some((registry, _)) if registry.contains(['.', ':']) || registry == "localhost" => repository.to_owned(),
        Some(_) => format!("docker.io/{repository}"),
        None => format!("docker.io/library/{repository}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_taken_from_a_node_that_has_the_image_from_its_own_repository() {
        for (image, id, found) in [
            ("lockstep.dev/trainer:1", "lockstep.dev/trainer@sha256:ab", Some("sha256:ab")),
            ("trainer:1", "docker.io/library/trainer@sha256:ab", Some("sha256:ab")),
            ("team/trainer", "docker-pullable://team/trainer@sha256:ab", Some("sha256:ab")),
            ("host:5000/trainer", "host:5000/trainer@sha256:ab", Some("sha256:ab")),
            ("lockstep.dev/trainer:1", "docker.io/library/import-2026@sha256:ab", None),
            ("lockstep.dev/trainer:1", "sha256:ab", None),
            ("lockstep.dev/trainer@sha256:cd", "lockstep.dev/trainer@sha256:ab", None),
        ] {
            assert_eq!(digest(image, Some(id)), found, "{image} as {id}");
        }
    }
}
