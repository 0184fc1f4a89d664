//! The image of the trainer if the job's template names none. It is the operator's image until the
//! job has begun. From then on the job keeps the image with which it began, through replacement,
//! restart, suspension and an upgrade of the operator.

use lockstep_api::{Reason, TRAINER_CONTAINER, TrainerImage, TrainingJobStatus, ValidJob};

use super::situation::Situation;
use crate::{DefaultImage, PodImage, PodRole, PodSeen, PodState};

/// True if the job's template names the image.
pub(super) fn is_given_by_template(job: &ValidJob) -> bool {
    let containers = job.template.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter(|container| container.name == TRAINER_CONTAINER).any(|container| container.image.is_some())
}

/// Returns the image with which the job began, which a worker has run, for the status.
pub(crate) fn image_begun_with(situation: &Situation<'_>, status: &TrainingJobStatus) -> Option<TrainerImage> {
    let mut kept = status.trainer.clone();
    if is_given_by_template(situation.job) {
        return kept;
    }
    let ran = situation.seen.pods.iter().filter(|pod| pod.role != PodRole::Coordinator && has_run(pod));
    for image in ran.filter_map(|pod| pod.image.as_ref()) {
        let kept = kept.get_or_insert_with(|| TrainerImage {
            image: image.name.clone(),
            image_pull_policy: image.pull_policy.clone().unwrap_or_else(|| "IfNotPresent".to_owned()),
        });
        if kept.image == image.name
            && let Some(digest) = digest(&image.name, image.id.as_deref())
        {
            kept.image = format!("{}@{digest}", image.name);
        }
    }
    kept
}

/// Returns the image of new pods. All processes of an attempt run the same one, so that they
/// understand each other. An upgraded operator gives its image to the next attempt.
pub(crate) fn image_of_new_pods(situation: &Situation<'_>, status: &TrainingJobStatus) -> DefaultImage {
    if let Some(kept) = kept_image(status) {
        return kept;
    }
    let DefaultImage { name, pull_policy } = situation.default_image.clone();
    let present = situation.present.iter().find_map(|pod| pod.image.clone());
    let policy = present.as_ref().and_then(|image| image.pull_policy.clone());
    DefaultImage { name: present.map_or(name, |image| image.name), pull_policy: policy.unwrap_or(pull_policy) }
}

fn kept_image(status: &TrainingJobStatus) -> Option<DefaultImage> {
    let TrainerImage { image, image_pull_policy } = status.trainer.clone()?;
    Some(DefaultImage { name: image, pull_policy: image_pull_policy })
}

/// Returns the pods that cannot start because of their image, and would get another one now.
pub(crate) fn outdated_pods<'a>(situation: &Situation<'a>, status: &TrainingJobStatus) -> Vec<&'a PodSeen> {
    let now = kept_image(status).unwrap_or_else(|| situation.default_image.clone());
    let differs = |image: &PodImage| {
        // The kept name may add a digest to the same image.
        let rest = now.name.strip_prefix(image.name.as_str());
        let is_same = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('@'));
        !is_same || image.pull_policy.as_ref().is_some_and(|policy| *policy != now.pull_policy)
    };
    let is_outdated = |pod: &&PodSeen| waits_for_image(pod) && pod.image.as_ref().is_some_and(differs);
    let pods = situation.present.iter().copied();
    pods.filter(|_| !is_given_by_template(situation.job)).filter(is_outdated).collect()
}

fn waits_for_image(pod: &PodSeen) -> bool {
    let PodState::Pending(Some(waiting)) = &pod.state else { return false };
    waiting.container.as_deref() == Some(TRAINER_CONTAINER)
        && matches!(waiting.reason, Reason::ImageNotPulled | Reason::ContainerConfigError)
}

fn has_run(pod: &PodSeen) -> bool {
    pod.state == PodState::Running || pod.image.as_ref().is_some_and(|image| image.id.is_some())
}

/// Returns the digest of an image that names none, if the node has it from the same repository. An
/// image that was put there by hand has another name, or none.
fn digest<'a>(image: &str, id: Option<&'a str>) -> Option<&'a str> {
    let (repository, digest) = id?.split_once('@')?;
    let repository = repository.rsplit_once("://").map_or(repository, |(_, rest)| rest);
    let is_same = !image.contains('@') && full_name(without_tag(image)) == full_name(repository);
    Some(digest).filter(|digest| is_same && digest.contains(':'))
}

fn without_tag(image: &str) -> &str {
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => image,
    }
}

/// Adds the registry and the folder that Kubernetes adds to a name without them.
fn full_name(repository: &str) -> String {
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
