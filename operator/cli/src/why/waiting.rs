//! Pods that exist and do not work: no node, no image, something missing, a crash at each start.

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::{Phase, Reason, TRAINER_CONTAINER};
use lockstep_plan::{PodSeen, PodState, PodWait};

use super::{
    facts::{Facts, is_worker},
    finding::Finding,
    words::{ago, listed, said, sentence},
};

/// Events of a pod whose containers cannot be made for want of something outside it.
const NOT_MOUNTED: [&str; 3] = ["FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"];
/// Seconds in which a worker usually joins once it runs.
const JOINS_IN: i64 = 60;
/// Kinds of objects in the words of Kubernetes, and in those of kubectl.
const KINDS: [(&str, &str, &str); 3] = [
    ("secret", "Secret", "create secret generic"),
    ("configmap", "ConfigMap", "create configmap"),
    ("persistentvolumeclaim", "PersistentVolumeClaim", ""),
];

/// Finds what keeps pods from their work, one finding for each cause.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let pods = facts.pods_seen();
    let mut causes: Vec<(Cause, Vec<&PodSeen>)> = Vec::new();
    for pod in &pods {
        let Some(cause) = cause(facts, pod) else { continue };
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, pods)) => pods.push(pod),
            None => causes.push((cause, vec![pod])),
        }
    }
    causes.iter().map(|(cause, pods)| explain(facts, cause, pods)).collect()
}

/// Finds what a job waits for whose pods have no trouble.
pub(super) fn beginning(facts: &Facts) -> Option<Finding> {
    let pods = facts.pods_seen();
    let workers: Vec<&PodSeen> = pods.iter().filter(|pod| is_worker(pod)).collect();
    let running = workers.iter().filter(|pod| pod.state == PodState::Running).count();
    let (name, replicas) = (facts.name(), facts.spec().replicas);
    match facts.status().phase? {
        Phase::Pending | Phase::Restarting if running < replicas as usize => {
            let last = |pod: &&PodSeen| {
                let event = facts.events.iter().rfind(|event| event.object == pod.name)?;
                Some(format!("{}: {}: {}", pod.name, event.reason, sentence(&event.message)))
            };
            let waiting = pods.iter().filter(|pod| matches!(pod.state, PodState::Pending(_)));
            Some(
                Finding::new(format!(
                    "{name} is starting: {running} of {replicas} workers' pods run, and nothing keeps the others."
                ))
                .seen_all(waiting.filter_map(|pod| last(&pod)).take(3))
                .next(facts.lockstep("watch", ""), "follow it"),
            )
        }
        Phase::Starting => Some(joining(facts, &workers)),
        _ => None,
    }
}

/// Describes workers that run and have not joined the group.
fn joining(facts: &Facts, workers: &[&PodSeen]) -> Finding {
    let (name, replicas) = (facts.name(), facts.spec().replicas);
    let joined = workers.iter().filter(|pod| pod.ready).count();
    let late = workers.iter().filter(|pod| !pod.ready).filter_map(|pod| Some((pod, pod.started?)));
    let late = late.min_by_key(|(_, started)| *started);
    let limit = facts.spec().failure_policy.startup_timeout_seconds;
    match late.filter(|(_, started)| facts.now.duration_since(*started).as_secs() > JOINS_IN) {
        None => Finding::new(format!("{name} is starting: {joined} of {replicas} workers have joined."))
            .seen("A worker loads its data and then joins; that takes a moment.")
            .next(facts.lockstep("watch", ""), "follow it"),
        Some((pod, started)) => Finding::new(format!(
            "{name} waits for {}: it has run for {} and has not joined the group.",
            pod.name,
            ago(started, facts.now)
        ))
        .seen(format!("{joined} of {replicas} workers have joined."))
        .seen(format!("The job fails once that takes {limit} s, failurePolicy.startupTimeoutSeconds."))
        .seen("A worker that cannot reach its coordinator says so in its log: DNS, a NetworkPolicy, hostNetwork.")
        .next(facts.log_of(&pod.name), "what it is doing")
        .next(facts.kubectl("get networkpolicies"), "policies that may keep its pods apart"),
    }
}

/// The reason why a pod does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cause {
    reason: Reason,
    container: Option<String>,
    /// In the words of Kubernetes.
    words: String,
}

fn cause(facts: &Facts, pod: &PodSeen) -> Option<Cause> {
    let of = |PodWait { reason, container, message }: &PodWait| Cause {
        reason: *reason,
        container: container.clone(),
        words: message.clone(),
    };
    match &pod.state {
        PodState::Pending(Some(waiting)) => Some(of(waiting)),
        PodState::Running => pod.beside.as_ref().map(of),
        PodState::Ended(_) => None,
        // The pod itself does not say that a volume is missing. Its events do.
        PodState::Pending(None) => {
            let events = facts.events.iter().filter(|event| event.object == pod.name);
            let failed = events.rev().find(|event| NOT_MOUNTED.contains(&event.reason.as_str()))?;
            let words = failed.message.clone();
            Some(Cause { reason: Reason::ContainerConfigError, container: None, words })
        }
    }
}

fn explain(facts: &Facts, cause: &Cause, pods: &[&PodSeen]) -> Finding {
    match cause.reason {
        Reason::ImageNotPulled => no_image(facts, cause, pods),
        Reason::ContainerConfigError => not_made(facts, cause, pods),
        Reason::ContainerCrashes => crashes(facts, cause, pods),
        Reason::Unschedulable => no_node(facts, cause, pods),
        Reason::PodsPending
        | Reason::WorkersJoining
        | Reason::Training
        | Reason::Measuring
        | Reason::WorkerFailed
        | Reason::WorkerLost
        | Reason::AllWorkersJoined
        | Reason::GroupChanges
        | Reason::GroupComplete
        | Reason::NoGroup
        | Reason::Suspending
        | Reason::SaveFailed
        | Reason::Saved
        | Reason::Suspended
        | Reason::Resumed
        | Reason::TrainingComplete
        | Reason::BenchmarkComplete
        | Reason::InvalidSpec
        | Reason::InvalidInput
        | Reason::BackoffLimitExceeded
        | Reason::StartupTimeout
        | Reason::DeadlineExceeded => waits(facts, cause, pods),
    }
}

/// Describes pods that wait for a reason that is none of pods.
fn waits(facts: &Facts, Cause { words, .. }: &Cause, pods: &[&PodSeen]) -> Finding {
    let pod = pods.first().map(|pod| pod.name.as_str()).unwrap_or_default();
    Finding::new(format!("{}: nothing runs yet in {}.", facts.opening(), names(pods)))
        .seen_all(said(words))
        .next(facts.kubectl(&format!("describe pod {pod}")), "its events in full")
}

fn names(pods: &[&PodSeen]) -> String {
    listed(&pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>())
}

fn no_node(facts: &Facts, Cause { words, .. }: &Cause, pods: &[&PodSeen]) -> Finding {
    let (opening, names) = (facts.opening(), names(pods));
    let said = format!("The scheduler says: {}", sentence(words));
    let raw = |seen: &PodSeen| facts.pods.iter().find(|pod| pod.metadata.name.as_ref() == Some(&seen.name));
    let asks = pods.first().and_then(|pod| requests(raw(pod)?));
    let asks = asks.map(|asks| format!("{} asks for {asks}.", if pods.len() == 1 { "It" } else { "Each" }));
    let placed = facts.pods_seen().iter().filter(|pod| is_worker(pod) && pod.node.is_some()).count() as u32;
    let fewer = facts.fewer_meanwhile(placed);
    if words.contains("ersistentvolumeclaim") || words.contains("ersistentVolumeClaim") {
        return Finding::new(format!("{opening}: a volume of {names} is not there."))
            .seen(said)
            .next(facts.kubectl("get persistentvolumeclaims"), "a claim of that name must exist and be Bound")
            .next(facts.kubectl("describe persistentvolumeclaims"), "why it is not bound");
    }
    if words.contains("Insufficient") || words.contains("Too many pods") {
        return Finding::new(format!("{opening}: no node has room for {names}."))
            .seen(said)
            .seen_all(asks)
            .next("kubectl describe nodes | grep -A 9 'Allocated resources'", "what each node has left")
            .next_if(fewer)
            .next_if(facts.create_again("smaller requests in spec.template, or add nodes and leave it as it is"));
    }
    let wanted = facts.spec().template.as_ref().and_then(|template| template.spec.as_ref());
    let selector = wanted.and_then(|spec| spec.node_selector.clone()).unwrap_or_default();
    let selector: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let asks_label =
        (!selector.is_empty()).then(|| format!("spec.template asks for nodes with {}.", selector.join(", ")));
    let finding =
        Finding::new(format!("{opening}: no node may take {names}.")).seen(said).seen_all(asks_label).seen_all(asks);
    let finding = match words.contains("taint") {
        true => finding.next(
            "kubectl get nodes -o custom-columns=NODE:.metadata.name,TAINTS:.spec.taints",
            "the taints that spec.template would have to tolerate",
        ),
        false => finding.next("kubectl get nodes --show-labels", "the labels that nodes have"),
    };
    finding.next_if(fewer).next_if(facts.create_again("a spec.template that some node fits"))
}

/// Returns the resources that a pod's containers ask for.
fn requests(pod: &Pod) -> Option<String> {
    let trainer = pod.spec.as_ref()?.containers.iter().find(|container| container.name == TRAINER_CONTAINER)?;
    let resources = trainer.resources.as_ref()?;
    let asked = resources.requests.as_ref().or(resources.limits.as_ref())?;
    let asked: Vec<String> = asked.iter().map(|(resource, amount)| format!("{resource} {}", amount.0)).collect();
    (!asked.is_empty()).then(|| asked.join(", "))
}

fn no_image(facts: &Facts, Cause { container, words, .. }: &Cause, pods: &[&PodSeen]) -> Finding {
    let template = facts.spec().template.as_ref().and_then(|template| template.spec.as_ref());
    let by_template = template
        .iter()
        .flat_map(|spec| &spec.containers)
        .any(|of| Some(&of.name) == container.as_ref() && of.image.is_some());
    let finding = Finding::new(format!("{}: the image of {} cannot be pulled.", facts.opening(), names(pods)))
        .seen(format!("The node says: {}", sentence(words)));
    let low = words.to_lowercase();
    let finding = if ["unauthorized", "denied", "401", "403", "authentication"].iter().any(|word| low.contains(word)) {
        finding.seen("The registry wants credentials, or has no image of that name.").next(
            facts.kubectl("get secrets"),
            "a pull secret must exist and be in spec.template.spec.imagePullSecrets",
        )
    } else if ["not found", "manifest unknown"].iter().any(|word| low.contains(word)) {
        finding.seen("The registry answers: it has no image of that name and tag.")
    } else if ["no such host", "timeout", "refused", "unreachable"].iter().any(|word| low.contains(word)) {
        finding.seen("The node does not reach the registry.")
    } else {
        finding
    };
    let pod = pods.first().map(|pod| pod.name.as_str()).unwrap_or_default();
    let finding = finding.next(facts.kubectl(&format!("describe pod {pod}")), "the registry's whole answer");
    match (by_template, facts.status().trainer.is_some()) {
        (true, _) => finding.next_if(facts.create_again(
            "another image in spec.template; if the image is only late, it starts by itself once it is there",
        )),
        (false, true) => {
            finding.seen("The job keeps the image with which it began, status.trainer: make that available again.")
        }
        (false, false) => finding.seen("spec.template names no image, so this is the operator's own choice.").next(
            "helm upgrade … --set trainer.image.repository=…",
            "correct it in the chart; these pods are then replaced",
        ),
    }
}

/// Something that the pod names is missing, or a container cannot be made as described.
fn not_made(facts: &Facts, Cause { words, .. }: &Cause, pods: &[&PodSeen]) -> Finding {
    let (opening, names) = (facts.opening(), names(pods));
    let need = if pods.len() == 1 { "needs" } else { "need" };
    let said = format!("The node says: {}", sentence(words));
    let again = facts.create_again("a spec.template that names what exists");
    for (word, kind, create) in KINDS {
        let Some(object) = missing(words, word) else { continue };
        let finding =
            Finding::new(format!("{opening}: the {kind} {object}, which {names} {need}, does not exist.")).seen(said);
        let finding = match create {
            "" => finding.next(facts.kubectl("get persistentvolumeclaims"), "the claims that there are"),
            create => finding.next(
                facts.kubectl(&format!("{create} {object} --from-literal=KEY=VALUE")),
                "create it; the pods then start by themselves",
            ),
        };
        return finding.next_if(again);
    }
    let pod = pods.first().map(|pod| pod.name.as_str()).unwrap_or_default();
    let what = if words.contains("olume") { "a volume of" } else { "a container of" };
    Finding::new(format!("{opening}: {what} {names} cannot be made."))
        .seen(said)
        .next(facts.kubectl(&format!("describe pod {pod}")), "its events in full")
        .next_if(again)
}

/// Returns the name of a missing object of a kind, as in `secret "s3" not found`.
fn missing<'a>(words: &'a str, kind: &str) -> Option<&'a str> {
    let low = words.to_lowercase();
    // An ASCII text keeps its offsets in lower case. Others are not found, or only in part.
    let quoted = low.find(&format!("{kind} \"")).map(|at| at + kind.len() + 2);
    let named = quoted.and_then(|at| words.get(at..)?.split('"').next()).filter(|_| low.contains("not found"));
    named.map(|name| name.rsplit('/').next().unwrap_or(name))
}

fn crashes(facts: &Facts, Cause { container, words, .. }: &Cause, pods: &[&PodSeen]) -> Finding {
    let container = container.as_deref().unwrap_or(TRAINER_CONTAINER);
    let pod = pods.first().map(|pod| pod.name.as_str()).unwrap_or_default();
    Finding::new(format!("{}: container {container} of {} ends again and again.", facts.opening(), names(pods)))
        .seen(sentence(words))
        .next(facts.kubectl(&format!("logs {pod} -c {container} --previous")), "what it said before it ended")
        .next_if(facts.create_again("that container mended in spec.template"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_is_found_in_the_words_of_kubernetes() {
        for (words, kind, name) in [
            ("cannot start image x: CreateContainerConfigError: secret \"s3\" not found", "secret", Some("s3")),
            (
                "MountVolume.SetUp failed for volume \"c\" : configmap \"settings\" not found",
                "configmap",
                Some("settings"),
            ),
            ("persistentvolumeclaim \"checkpoints\" not found", "persistentvolumeclaim", Some("checkpoints")),
            ("secret \"s3\" has no key x", "secret", None),
            ("configmap \"a\" not found", "secret", None),
        ] {
            assert_eq!(missing(words, kind), name, "{words}");
        }
    }
}
