//! The pods of a job: the job's template with the launch contract written into its trainer.

use std::{collections::BTreeMap, net::Ipv4Addr, path::PathBuf};

use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction,
        NodeSelectorRequirement, NodeSelectorTerm, ObjectFieldSelector, Pod, PodSecurityContext, PodSpec,
        PreferredSchedulingTerm, Probe, SeccompProfile, SecretVolumeSource, SecurityContext, Volume, VolumeMount,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::Resource;
use lockstep_api::{TRAINER_CONTAINER, TrainingJob, ValidJob, label};
use lockstep_launch::{
    Address, DEFAULT_GRACE_SECONDS, Encryption, Job, Launch, ObjectUri, Ports, RecordStore, Task, Variable, names,
    readiness,
};

use super::gang;
use crate::{DefaultImage, PodRole, pod_name};

/// Service account, Role and RoleBinding of all coordinators of a namespace. They belong to every
/// job there and go with the last one.
pub(super) const COORDINATOR_ACCOUNT: &str = "lockstep-coordinator";

/// User and group of the trainer's image. The group also owns the volumes.
const NON_ROOT: i64 = 65532;
/// File for a container's ending.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Folder of the workers' credentials.
const CREDENTIALS: &str = "/run/lockstep/credentials";
/// The volume there.
const CREDENTIALS_VOLUME: &str = "lockstep-credentials";
/// Folder of a worker's metrics if checkpoints go to an object store.
const RUN: &str = "/run/lockstep/run";
/// The volume there.
const RUN_VOLUME: &str = "lockstep-run";
/// Folder of a worker's fetched data set if the job names none.
const DATA: &str = "/run/lockstep/data";
/// The volume there.
const DATA_VOLUME: &str = "lockstep-data";
/// Only owner and group may read the credentials. The group is the pod's.
const CREDENTIALS_MODE: i32 = 0o440;
/// Seconds between two readiness probes.
const READINESS_SECONDS: i32 = 2;
/// Failed readiness probes until a worker counts as not joined.
const READINESS_FAILURES: i32 = 3;
/// Seconds before the first probe of a new process. Kubernetes warns of each probe that finds no
/// open port, and a process opens its port within a second unless its node is overloaded. A worker
/// is not ready before, so a longer delay would hide short runs.
const START_SECONDS: i32 = 2;
/// Seconds between two startup probes.
const AWAITING_SECONDS: i32 = 1;
/// Greatest weight of a preference.
const MOST_PREFERRED: i32 = 100;
/// Seconds that a startup probe waits, which is longer than the answer may take.
const AWAITED_SECONDS: i32 = 600;

/// Describes one pod of the given attempt. The trainer runs `image` if the template names none. The
/// scheduler keeps the pod off the `avoided` nodes if another one has room.
pub(crate) fn pod(job: &ValidJob, image: &DefaultImage, role: PodRole, attempt: u32, avoided: &[&str]) -> Pod {
    let template = job.template.clone();
    let given = template.metadata.unwrap_or_default();
    let mut labels = labels_of_pods(job);
    labels.extend(role_labels(role));
    labels.insert(label::ATTEMPT.to_owned(), attempt.to_string());
    let mut spec = template.spec.unwrap_or_default();
    let mut trainer = take_trainer(&mut spec);
    write_launch(&mut trainer, job, role, attempt);
    if trainer.image.is_none() {
        trainer.image = Some(image.name.clone());
        trainer.image_pull_policy.get_or_insert_with(|| image.pull_policy.clone());
    }
    if role == PodRole::Coordinator {
        // It reads no data and computes nothing, so it needs no init containers and no
        // accelerators.
        spec.init_containers = None;
        spec.containers.clear();
        spec.resource_claims = None;
        without_accelerators(&mut trainer);
        spec.service_account_name = Some(COORDINATOR_ACCOUNT.to_owned());
    }
    if encrypts(job) && role != PodRole::Coordinator {
        mount_credentials(&mut spec, &mut trainer, job);
    }
    if objects(job).is_some() && role != PodRole::Coordinator {
        mount_empty(&mut spec, &mut trainer, RUN_VOLUME, RUN);
    }
    if needs_cache(job) && role != PodRole::Coordinator {
        mount_empty(&mut spec, &mut trainer, DATA_VOLUME, DATA);
    }
    spec.automount_service_account_token = Some(role == PodRole::Coordinator);
    spec.containers.insert(0, trainer);
    if spec.host_network == Some(true) {
        // The API server's own choice would not resolve names of the cluster, such as the
        // coordinator's.
        spec.dns_policy.get_or_insert_with(|| "ClusterFirstWithHostNet".to_owned());
    }
    keep_last_lines(&mut spec);
    // The operator decides about restarts, for all pods together.
    spec.restart_policy = Some("Never".to_owned());
    restrict(&mut spec);
    avoid(&mut spec, avoided);
    let mut annotations = given.annotations.unwrap_or_default();
    let patience = job.failure_policy.pod_terminating_timeout_seconds;
    annotations.insert(label::TERMINATING_TIMEOUT.to_owned(), patience.to_string());
    gang::mark(job, &mut labels, &mut annotations, &mut spec);
    Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(job, role)),
            namespace: Some(job.namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The labels of every object of the job.
pub(super) fn job_labels(job: &ValidJob) -> BTreeMap<String, String> {
    BTreeMap::from([
        (label::JOB_NAME.to_owned(), job.name.clone()),
        (label::JOB_UID.to_owned(), job.uid.clone().unwrap_or_default()),
    ])
}

/// The labels that tell the pods of a job apart.
pub(super) fn role_labels(role: PodRole) -> BTreeMap<String, String> {
    match role {
        PodRole::Coordinator => BTreeMap::from([(label::ROLE.to_owned(), label::COORDINATOR.to_owned())]),
        PodRole::Worker(index) => BTreeMap::from([
            (label::ROLE.to_owned(), label::WORKER.to_owned()),
            (label::INDEX.to_owned(), index.to_string()),
        ]),
    }
}

/// The label selector of a job's workers.
pub(crate) fn worker_selector(job: &ValidJob) -> String {
    let uid = job.uid.as_deref().unwrap_or_default();
    format!("{}={uid},{}={}", label::JOB_UID, label::ROLE, label::WORKER)
}

/// The labels that all of the job's pods have, including the template's.
#[must_use]
pub fn labels_of_pods(job: &ValidJob) -> BTreeMap<String, String> {
    let given = job.template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
    let mut labels = given.unwrap_or_default();
    labels.extend(job_labels(job));
    labels
}

/// Ties an object to the job, so that it goes with the job.
pub(super) fn owner(job: &ValidJob) -> OwnerReference {
    OwnerReference {
        api_version: TrainingJob::api_version(&()).into_owned(),
        kind: TrainingJob::kind(&()).into_owned(),
        name: job.name.clone(),
        uid: job.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// True if the workers need credentials.
pub(super) fn encrypts(job: &ValidJob) -> bool {
    job.task.communication().encryption == Encryption::Tls
}

/// The name of the Secret with the credentials. A new job of the same name gets another Secret,
/// because the operator may not read whose the old one is.
pub(super) fn credentials_name(job: &ValidJob) -> String {
    format!("{}-tls", unique_name(job))
}

/// The job's name with the beginning of its uid.
fn unique_name(job: &ValidJob) -> String {
    names::unique(&job.name, job.uid.as_deref().unwrap_or_default())
}

fn mount_credentials(spec: &mut PodSpec, trainer: &mut Container, job: &ValidJob) {
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| volume.name != CREDENTIALS_VOLUME);
    volumes.push(Volume {
        name: CREDENTIALS_VOLUME.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(credentials_name(job)),
            default_mode: Some(CREDENTIALS_MODE),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    });
    let mounts = trainer.volume_mounts.get_or_insert_default();
    mounts.retain(|mount| mount.name != CREDENTIALS_VOLUME && mount.mount_path != CREDENTIALS);
    mounts.push(VolumeMount {
        name: CREDENTIALS_VOLUME.to_owned(),
        mount_path: CREDENTIALS.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
}

/// Mounts an empty folder that lives as long as the pod.
fn mount_empty(spec: &mut PodSpec, trainer: &mut Container, name: &str, path: &str) {
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| volume.name != name);
    let empty_dir = Some(EmptyDirVolumeSource::default());
    volumes.push(Volume { name: name.to_owned(), empty_dir, ..Volume::default() });
    let mounts = trainer.volume_mounts.get_or_insert_default();
    mounts.retain(|mount| mount.name != name && mount.mount_path != path);
    mounts.push(VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() });
}

/// True if the workers fetch their data set, and the job names no folder for it.
fn needs_cache(job: &ValidJob) -> bool {
    match &job.task {
        Task::Train(workload) => workload.dataset.is_remote() && workload.dataset.cache.is_none(),
        Task::Benchmark { .. } => false,
    }
}

/// Returns the job's task, with a folder for a data set that is fetched.
fn task(job: &ValidJob) -> Task {
    let mut task = job.task.clone();
    if let (Task::Train(workload), true) = (&mut task, needs_cache(job)) {
        workload.dataset.cache = Some(format!("file://{DATA}"));
    }
    task
}

/// Makes Kubernetes keep the last log lines of a failed container. They outlive its pod.
fn keep_last_lines(spec: &mut PodSpec) {
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container.termination_message_policy.get_or_insert_with(|| "FallbackToLogsOnError".to_owned());
    }
}

fn take_trainer(spec: &mut PodSpec) -> Container {
    match spec.containers.iter().position(|container| container.name == TRAINER_CONTAINER) {
        Some(index) => spec.containers.remove(index),
        None => Container { name: TRAINER_CONTAINER.to_owned(), ..Container::default() },
    }
}

fn write_launch(trainer: &mut Container, job: &ValidJob, role: PodRole, attempt: u32) {
    let word = if role == PodRole::Coordinator { label::COORDINATOR } else { label::WORKER };
    trainer.args = Some(vec![word.to_owned()]);
    let ours = launch(job, attempt).variables();
    let env = trainer.env.get_or_insert_default();
    env.retain(|given| !ours.keys().any(|variable| variable.name() == given.name));
    env.extend(ours.into_iter().map(|(variable, value)| match variable {
        Variable::Member => from_field(variable, "metadata.name"),
        Variable::Address => from_field(variable, "status.podIP"),
        _ => EnvVar { name: variable.name().to_owned(), value: Some(value), value_from: None },
    }));
    trainer.termination_message_path = Some(TERMINATION_LOG.to_owned());
    // A process that is killed before it can give a reason still leaves its last log lines.
    trainer.termination_message_policy = Some("FallbackToLogsOnError".to_owned());
    let Ports { control, data, metrics } = Ports::POD;
    let own = if role == PodRole::Coordinator { ("control", control) } else { ("data", data) };
    trainer.ports.get_or_insert_default().extend([own, ("metrics", metrics)].map(|(name, port)| ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }));
    trainer.startup_probe = Some(startup_probe());
    trainer.readiness_probe = Some(Probe {
        period_seconds: Some(READINESS_SECONDS),
        failure_threshold: Some(READINESS_FAILURES),
        success_threshold: Some(1),
        timeout_seconds: Some(1),
        ..http_probe(readiness::PATH.to_owned())
    });
}

/// The startup probe waits until the process has joined. So Kubernetes does not warn of a process
/// that only waits for the others, and never ends it for that.
fn startup_probe() -> Probe {
    Probe {
        initial_delay_seconds: Some(START_SECONDS),
        period_seconds: Some(AWAITING_SECONDS),
        failure_threshold: Some(i32::MAX),
        success_threshold: Some(1),
        timeout_seconds: Some(AWAITED_SECONDS),
        ..http_probe(format!("{}?{}", readiness::PATH, readiness::AWAITED))
    }
}

fn http_probe(path: String) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path),
            port: IntOrString::Int(Ports::POD.metrics.into()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        ..Probe::default()
    }
}

fn launch(job: &ValidJob, attempt: u32) -> Launch {
    let uid = job.uid.clone().unwrap_or_default();
    Launch {
        job: Job { namespace: job.namespace.clone(), name: job.name.clone(), uid },
        attempt,
        // References to the pod's own fields replace both.
        member: String::new(),
        address: Ipv4Addr::UNSPECIFIED.into(),
        replicas: job.replicas.get(),
        elastic: job.elastic,
        coordinator: Address {
            host: format!("{}.{}.svc", pod_name(job, PodRole::Coordinator), job.namespace),
            port: Ports::POD.control,
        },
        ports: Ports::POD,
        inherits_listener: false,
        output: output(job),
        objects: objects(job),
        store: RecordStore::Kubernetes,
        credentials: encrypts(job).then(|| CREDENTIALS.into()),
        grace_seconds: job.grace_seconds().unwrap_or(DEFAULT_GRACE_SECONDS),
        ending: TERMINATION_LOG.into(),
        task: task(job),
    }
}

/// The job's folder below `checkpoint.uri`. A new job of the same name gets another one. If
/// checkpoints go to an object store, each worker has a folder of its own. A benchmark has none.
fn output(job: &ValidJob) -> PathBuf {
    match (&job.task, objects(job)) {
        (Task::Benchmark { .. }, _) => PathBuf::new(),
        (Task::Train(_), Some(_)) => PathBuf::from(RUN),
        (Task::Train(workload), None) => {
            let root = workload.checkpoint.uri.trim_start_matches("file://");
            PathBuf::from(root).join(unique_name(job))
        }
    }
}

/// The job's prefix below `checkpoint.uri` if that is an object store.
pub(super) fn objects(job: &ValidJob) -> Option<ObjectUri> {
    match &job.task {
        Task::Train(workload) => Some(workload.checkpoint.objects()?.join(&unique_name(job))),
        Task::Benchmark { .. } => None,
    }
}

fn from_field(variable: Variable, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { api_version: Some("v1".to_owned()), field_path: path.to_owned() };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: variable.name().to_owned(), value: None, value_from: Some(source) }
}

/// Removes extended resources. Their names contain a domain; those of cpu and memory do not.
fn without_accelerators(trainer: &mut Container) {
    let Some(resources) = &mut trainer.resources else { return };
    resources.claims = None;
    for list in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
        list.retain(|name: &String, _: &mut Quantity| !name.contains('/'));
    }
}

/// Makes the scheduler prefer all other nodes. A requirement takes one name.
fn avoid(spec: &mut PodSpec, nodes: &[&str]) {
    if nodes.is_empty() {
        return;
    }
    let other_than = |node: &&str| NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![(*node).to_owned()]),
    };
    let match_fields = Some(nodes.iter().map(other_than).collect());
    let preference = NodeSelectorTerm { match_expressions: None, match_fields };
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.get_or_insert_default();
    preferred.push(PreferredSchedulingTerm { weight: MOST_PREFERRED, preference });
}

/// Fills in what the restricted Pod Security Standard asks for, unless the template says otherwise.
fn restrict(spec: &mut PodSpec) {
    let of_pod = spec.security_context.get_or_insert_with(PodSecurityContext::default);
    of_pod.run_as_non_root.get_or_insert(true);
    of_pod.run_as_user.get_or_insert(NON_ROOT);
    of_pod.run_as_group.get_or_insert(NON_ROOT);
    of_pod.fs_group.get_or_insert(NON_ROOT);
    of_pod.fs_group_change_policy.get_or_insert_with(|| "OnRootMismatch".to_owned());
    of_pod
        .seccomp_profile
        .get_or_insert_with(|| SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None });
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let of_container = container.security_context.get_or_insert_with(SecurityContext::default);
        of_container.allow_privilege_escalation.get_or_insert(false);
        of_container.capabilities.get_or_insert_with(|| Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) });
    }
}
