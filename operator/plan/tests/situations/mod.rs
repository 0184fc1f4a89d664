#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test takes what it needs of it")]
//! Situations and plans in words. `Running; all ready; worker 1 exited 137` becomes the facts about
//! a job, and a plan becomes words.

use std::num::NonZeroU32;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::{CleanPodPolicy, LastFailure, LostWorker, Phase, Reason, TrainerImage, ValidJob};
use lockstep_launch::{CheckpointMark, Unsaved};
use lockstep_plan::{
    Child, DefaultImage, JobPlan, Observed, PodImage, PodRole, PodSeen, PodState, PodWait, Termination, plan,
};

pub const UID: &str = "0a1b2c3d-0000-4000-8000-000000000000";

/// The time of every plan.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

pub fn default_image() -> DefaultImage {
    DefaultImage { name: "trainer:1".into(), pull_policy: "IfNotPresent".into() }
}

/// A job with two workers and backoffLimit 1.
pub fn job() -> ValidJob {
    let mut job = ValidJob::from_manifest(
        "{apiVersion: lockstep.dev/v1alpha1, kind: TrainingJob, metadata: {name: lenet, namespace: team}, spec: {
          replicas: 2, model: {name: lenet5}, dataset: {format: glyphs}, checkpoint: {uri: 'file:///checkpoints'},
          failurePolicy: {backoffLimit: 1}}}",
    )
    .expect("valid");
    job.uid = Some(UID.into());
    job
}

/// A benchmark with two workers.
pub fn benchmark() -> ValidJob {
    let mut job = ValidJob::from_manifest(
        "{apiVersion: lockstep.dev/v1alpha1, kind: TrainingJob, metadata: {name: lenet, namespace: team}, spec: {
          replicas: 2, benchmark: {collectives: {maxBytes: 1Mi}}, communication: {backend: tcp}}}",
    )
    .expect("valid");
    job.uid = Some(UID.into());
    job
}

fn seconds_ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// Reads a situation.
pub fn read(text: &str) -> (ValidJob, Observed) {
    let (mut job, mut seen) = (job(), Observed { generation: Some(1), ..Observed::default() });
    for item in text.split("; ") {
        understand(item.trim(), &mut job, &mut seen).unwrap_or_else(|| panic!("`{item}` of `{text}`"));
    }
    if seen.status.phase.is_some_and(|phase| phase != Phase::Suspended) {
        seen.status.start_time.get_or_insert(Time(seconds_ago(100)));
        let asked = seen.status.attempt_time.get_or_insert(Time(seconds_ago(100))).clone();
        if seen.status.phase != Some(Phase::Running) {
            seen.status.conditions.push(Condition {
                type_: "Running".into(),
                status: "False".into(),
                reason: String::new(),
                message: String::new(),
                observed_generation: None,
                last_transition_time: asked,
            });
        }
    }
    (job, seen)
}

fn understand(item: &str, job: &mut ValidJob, seen: &mut Observed) -> Option<()> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let seconds = |text: &str| text.strip_suffix(" s").and_then(number);
    let ago = |text: &str| text.strip_suffix(" s ago").and_then(number).map(|ago| Time(seconds_ago(ago.into())));
    let attempt = seen.status.attempt;
    if item == "new" {
    } else if let Some(phase) = Phase::ALL.into_iter().find(|phase| phase.to_string() == item) {
        seen.status.phase = Some(phase);
        if matches!(phase, Phase::Starting | Phase::Running) {
            seen.status.target_replicas = job.replicas.get();
        }
        if phase.is_finished() {
            seen.status.completion_time = Some(Time(seconds_ago(10)));
        }
    } else if let Some(count) = item.strip_prefix("attempt ") {
        seen.status.restarts = number(count)?;
        seen.status.attempt = number(count)?;
        seen.status.reason = Some(Reason::WorkerFailed.to_string());
        seen.status.last_failure = Some(LastFailure { time: Some(Time(seconds_ago(100))), ..LastFailure::default() });
    } else if let Some(count) = item.strip_prefix("failures ") {
        seen.status.failures = number(count)?;
    } else if let Some(time) = item.strip_prefix("failed ") {
        seen.status.last_failure.get_or_insert_default().time = Some(ago(time)?);
    } else if let Some(time) = item.strip_prefix("lacked something ") {
        let failure = seen.status.last_failure.get_or_insert_default();
        (failure.time, failure.reason) = (Some(ago(time)?), Some("Retry".to_owned()));
    } else if let Some(time) = item.strip_prefix("asked ") {
        seen.status.attempt_time = Some(ago(time)?);
    } else if let Some(time) = item.strip_prefix("started ") {
        seen.status.start_time = Some(ago(time)?);
    } else if let Some(time) = item.strip_prefix("ended ") {
        seen.status.completion_time = Some(ago(time)?);
    } else if let Some(time) = item.strip_prefix("deadline ") {
        job.active_deadline_seconds = Some(seconds(time)?);
    } else if let Some(time) = item.strip_prefix("ttl ") {
        job.ttl_seconds_after_finished = Some(seconds(time)?);
    } else if let Some(policy) = item.strip_prefix("clean ") {
        job.clean_pod_policy = serde_json::from_value::<CleanPodPolicy>(policy.into()).ok()?;
    } else if let Some(words) = item.strip_prefix("refused ") {
        seen.refused = Some(words.to_owned());
    } else if let Some(image) = item.strip_prefix("began with ") {
        let image_pull_policy = "IfNotPresent".to_owned();
        seen.status.trainer = Some(TrainerImage { image: image.to_owned(), image_pull_policy });
    } else if item == "no record" {
        seen.group = None;
    } else if item == "to be suspended" {
        job.suspend = true;
    } else if item == "whatever is unsaved" {
        job.suspend_unsaved = true;
    } else if let Some(when) = item.strip_prefix("saves fail") {
        let (step, waits) = if when == " at the end" { (200, true) } else { (100, false) };
        let told = seen.status.progress.get_or_insert_default();
        (told.step, told.total_steps, told.percent) = (step, 200, (step / 2) as u8);
        told.unsaved = Some(Unsaved::new(30, "/c: no space left; free some", waits));
        seen.status.last_checkpoint = Some(CheckpointMark { step: 30, ..CheckpointMark::default() });
    } else if let Some(count) = item.strip_prefix("wants ") {
        job.replicas = NonZeroU32::new(number(count)?)?;
    } else if let Some(bounds) = item.strip_prefix("elastic ") {
        let (least, most) = bounds.split_once(" to ")?;
        (job.elastic.min_replicas, job.elastic.max_replicas) = (number(least)?, number(most)?);
    } else if let Some(lost) = item.strip_prefix("lost ").or(item.strip_prefix("crashed ")) {
        let (role, words) = role_of(lost)?;
        let (state, since) = words.strip_suffix(" s ago")?.rsplit_once(' ')?;
        let PodRole::Worker(worker) = role else { return None };
        let uid = match state {
            "gone" => None,
            "there" => Some(pod(role, attempt, "ready")?.uid),
            _ => return None,
        };
        let (since, failed) = (Time(seconds_ago(since.parse().ok()?)), item.starts_with("crashed"));
        let not_before = since.clone();
        seen.status.replacing.push(LostWorker { worker, uid, since, not_before, failed, counted: failed });
    } else if let Some(time) = item.strip_prefix("reported ") {
        seen.status.progress.get_or_insert_default().last_update_time = Some(ago(time)?);
        seen.status.membership.get_or_insert_default().world_size = job.replicas.get();
    } else if let Some(next) = item.strip_prefix("next ") {
        let (role, state) = role_of(next)?;
        let next = pod(role, attempt, state)?;
        put(seen, PodSeen { uid: format!("next {}", next.uid), ..next });
    } else if let Some(state) = item.strip_prefix("all ") {
        for role in [PodRole::Coordinator, PodRole::Worker(0), PodRole::Worker(1)] {
            put(seen, pod(role, attempt, state)?);
        }
    } else if let Some(role) = item.strip_prefix("no ") {
        let role = role_of(role)?.0;
        seen.pods.retain(|pod| pod.role != role);
    } else if let Some(old) = item.strip_prefix("old ") {
        let (role, state) = role_of(old)?;
        put(seen, pod(role, attempt.checked_sub(1)?, state)?);
    } else {
        let (role, state) = role_of(item)?;
        put(seen, pod(role, attempt, state)?);
    }
    Some(())
}

fn put(seen: &mut Observed, pod: PodSeen) {
    seen.pods.retain(|other| other.role != pod.role);
    seen.pods.push(pod);
}

fn role_of(text: &str) -> Option<(PodRole, &str)> {
    if let Some(rest) = text.strip_prefix("coordinator") {
        return Some((PodRole::Coordinator, rest.trim()));
    }
    let rest = text.strip_prefix("worker ")?;
    let (index, state) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((PodRole::Worker(index.parse().ok()?), state))
}

/// Makes a pod from words.
pub fn pod(role: PodRole, attempt: u32, state: &str) -> Option<PodSeen> {
    let name = lockstep_plan::pod_name(&job(), role);
    let mut pod = PodSeen {
        uid: format!("uid of {name} {attempt}"),
        name,
        role,
        attempt,
        node: Some("node-a".into()),
        image: Some(PodImage { name: "trainer:1".into(), pull_policy: Some("IfNotPresent".into()), id: None }),
        beside: None,
        started: None,
        state: PodState::Running,
        over: false,
        ready: false,
        unready_since: None,
        was_ready: false,
        stuck_at: None,
        disrupted: None,
        unreachable: false,
        created: Some(seconds_ago(100)),
    };
    let waits = |reason, container: Option<&str>, message: &str| PodWait {
        reason,
        container: container.map(Into::into),
        message: message.into(),
    };
    let waiting = |reason, container, message: &str| PodState::Pending(Some(waits(reason, container, message)));
    let ended = |code: Option<i32>, reason: Option<&str>, message: &str, at| {
        PodState::Ended(Termination {
            code,
            reason: reason.map(Into::into),
            message: message.into(),
            at: Some(at),
            ran: None,
        })
    };
    match state {
        "ready" => pod.ready = true,
        "running" => {}
        "pending" => pod.state = PodState::Pending(None),
        "unschedulable" => pod.state = waiting(Reason::Unschedulable, None, "0/3 nodes are available"),
        "cannot be pulled" => {
            pod.state = waiting(Reason::ImageNotPulled, Some("trainer"), "cannot pull image x:1: not found")
        }
        "misconfigured" => pod.state = waiting(Reason::ContainerConfigError, Some("trainer"), "secret \"s\" not found"),
        "without a sidecar that runs" => {
            pod.state = waiting(Reason::ContainerCrashes, Some("proxy"), "container proxy: it ended with exit code 3");
        }
        "beside a sidecar that crashes" => {
            pod.beside =
                Some(waits(Reason::ContainerCrashes, Some("proxy"), "container proxy: it ended with exit code 3"));
        }
        "terminating" => pod.stuck_at = Some(now() + SignedDuration::from_secs(30)),
        "stuck" => pod.stuck_at = Some(seconds_ago(1)),
        "drained while terminating" => {
            pod.stuck_at = Some(now() + SignedDuration::from_secs(30));
            pod.state = ended(Some(76), Some("Error"), "", seconds_ago(1));
        }
        "evicted at once" => {
            pod.created = Some(seconds_ago(2));
            pod.state = ended(None, Some("Evicted"), "The node was low on resource: memory", seconds_ago(1));
        }
        "crashed at once" => {
            pod.created = Some(seconds_ago(2));
            pod.state = ended(Some(1), Some("Error"), "", seconds_ago(1));
        }
        "disrupted" => pod.disrupted = Some("EvictionByEvictionAPI".into()),
        "unreachable" => pod.unreachable = true,
        "unready for 50 s" => (pod.unready_since, pod.was_ready) = (Some(seconds_ago(50)), true),
        "unready for 60 s" => (pod.unready_since, pod.was_ready) = (Some(seconds_ago(60)), true),
        "joining for 60 s" => pod.unready_since = Some(seconds_ago(60)),
        "evicted" => pod.state = ended(None, Some("Evicted"), "The node was low on resource: memory", seconds_ago(1)),
        "out of memory" => pod.state = ended(Some(137), Some("OOMKilled"), "", seconds_ago(1)),
        "killed before its first step" => {
            let in_advance = r#"{"message":"this worker needs about 2.0 GB"}"#;
            pod.state = ended(Some(137), Some("Error"), in_advance, seconds_ago(1));
        }
        "panicked before it could say why" => {
            let log = "{\"level\":\"INFO\",\"fields\":{\"message\":\"serving metrics\"}}\n\
                       thread 'main' panicked at /home/x/.cargo/registry/src/i/client-1.0/src/lib.rs:9:5:\n\
                       relative URL without a base\nnote: run with `RUST_BACKTRACE=1`";
            pod.state = ended(Some(101), Some("Error"), log, seconds_ago(1));
        }
        "refused its input" => {
            pod.state = ended(Some(78), Some("Error"), r#"{"message":"read /data: no such folder"}"#, seconds_ago(1));
        }
        "done" => {
            let line = r#"{"progress":{"step":9,"totalSteps":9,"epoch":1,"generation":1,"worldSize":2},"modelUri":"file:///m"}"#;
            pod.state = ended(Some(0), Some("Completed"), line, seconds_ago(1));
        }
        "just running" => pod.started = Some(seconds_ago(20)),
        "unable to come" => pod.state = ended(Some(75), Some("Error"), "", seconds_ago(6)),
        "done beside a sidecar" => pod.state = ended(Some(0), Some("Completed"), "", seconds_ago(1)),
        "done long ago beside a sidecar" => pod.state = ended(Some(0), Some("Completed"), "", seconds_ago(60)),
        "forbidden by its node" => pod.state = ended(None, Some("SysctlForbidden"), "forbidden sysctl", seconds_ago(1)),
        "exited at once" => {
            let ran = Some(SignedDuration::from_secs(1));
            pod.state =
                PodState::Ended(Termination { code: Some(1), at: Some(seconds_ago(4)), ran, ..Termination::default() });
        }
        other => {
            let words = other.strip_prefix("exited ")?;
            let (code, at) = match words.split_once(' ') {
                Some((code, ago)) => (code, seconds_ago(ago.strip_suffix(" s ago")?.parse().ok()?)),
                None => (words, seconds_ago(1)),
            };
            pod.was_ready = true;
            pod.state = ended(Some(code.parse().ok()?), Some("Error"), "", at);
        }
    }
    if !matches!(pod.state, PodState::Pending(_)) {
        pod.started.get_or_insert(seconds_ago(90));
    }
    pod.over = matches!(pod.state, PodState::Ended(_)) && !state.ends_with("beside a sidecar");
    Some(pod)
}

/// Plans for a situation, in words.
pub fn outcome(situation: &str) -> String {
    let (job, seen) = read(situation);
    let next = plan(&job, &seen, &default_image(), now());
    words(&job, &seen, &next)
}

fn words(job: &ValidJob, seen: &Observed, next: &JobPlan) -> String {
    let JobPlan { status, delete, create, events, check_again, delete_job } = next;
    let mut said = Vec::new();
    let named = |pod: &str| pod.trim_start_matches(&format!("{}-", job.name)).replace("worker-", "worker ");
    if let Some(status) = status {
        let phase = status.phase.map(|phase| phase.to_string()).unwrap_or_default();
        said.push(format!("{phase} {}", status.reason.as_deref().unwrap_or_default()));
        for (name, before, after) in [
            ("restarts", seen.status.restarts, status.restarts),
            ("replacements", seen.status.replacements, status.replacements),
            ("failures", seen.status.failures, status.failures),
        ] {
            if before != after {
                said.push(format!("{name} {after}"));
            }
        }
        if !status.replacing.is_empty() {
            let lost: Vec<String> = status.replacing.iter().map(|entry| entry.worker.to_string()).collect();
            said.push(format!("without worker {}", lost.join(", ")));
        }
    }
    if !create.is_empty() {
        let made: Vec<String> = create
            .iter()
            .map(|child| match child {
                Child::Group(_) => "record".to_owned(),
                Child::ServiceAccount(_) => "account".to_owned(),
                Child::Role(_) | Child::RoleBinding(_) => String::new(),
                Child::Service(_) => "service".to_owned(),
                Child::NetworkPolicy(_) => "policy".to_owned(),
                Child::PodGroup(_) => "pod group".to_owned(),
                Child::Credentials(_) => "credentials".to_owned(),
                Child::Pod(pod) => named(pod.metadata.name.as_deref().unwrap_or_default()),
            })
            .filter(|name| !name.is_empty())
            .collect();
        said.push(format!("make {}", made.join(", ")));
    }
    if !delete.is_empty() {
        let mut gone: Vec<String> = delete
            .iter()
            .map(|deletion| format!("{}{}", named(&deletion.pod), if deletion.by_force { " by force" } else { "" }))
            .collect();
        gone.sort();
        said.push(format!("delete {}", gone.join(", ")));
    }
    if !events.is_empty() {
        said.push(format!("tell {}", events.iter().map(|note| note.reason).collect::<Vec<_>>().join(", ")));
    }
    if let Some(wait) = check_again {
        said.push(format!("again in {} s", wait.as_secs()));
    }
    if *delete_job {
        said.push("delete the job".to_owned());
    }
    if said.is_empty() { "nothing".to_owned() } else { said.join("; ") }
}
