//! The pods of a job: the template of the job with the launch contract written into its trainer.

use std::{collections::BTreeMap, net::Ipv4Addr, path::PathBuf};

use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction,
        ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, Probe, SeccompProfile, SecretVolumeSource,
        SecurityContext, Volume, VolumeMount,
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

use crate::{Role, pod_name};

/// Service account, Role and RoleBinding of all coordinators of a namespace. They belong to every job there and go with the
/// last one.
pub(crate) const COORDINATOR_ACCOUNT: &str = "lockstep-coordinator";

/// User and group of the trainer's image; also the group that owns the volumes.
const NON_ROOT: i64 = 65532;
/// Where a container leaves its ending.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Where workers find their credentials.
const CREDENTIALS: &str = "/run/lockstep/credentials";
/// The volume there.
const CREDENTIALS_VOLUME: &str = "lockstep-credentials";
/// Where workers keep their metrics when checkpoints go to an object store.
const RUN: &str = "/run/lockstep/run";
/// The volume there.
const RUN_VOLUME: &str = "lockstep-run";
/// Owner and group may read it, nobody else; the group is the pod's.
const CREDENTIALS_MODE: i32 = 0o440;
/// Seconds between two questions whether a worker has joined.
const READINESS_SECONDS: i32 = 2;
/// Failed questions until a worker counts as not joined.
const READINESS_FAILURES: i32 = 3;
/// Seconds in which a process is not asked yet: Kubernetes warns of each question that finds no
/// open port.
const START_SECONDS: i32 = 2;
/// Seconds between two questions that await a worker.
const AWAITING_SECONDS: i32 = 1;
/// Seconds for which such a question waits: longer than the answer may take.
const AWAITED_SECONDS: i32 = 600;

/// What the operator's own flags say about pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of the trainer where the template names none.
    pub trainer_image: String,
    /// When that image is pulled: Always, IfNotPresent or Never.
    pub trainer_image_pull_policy: String,
}

/// One pod of the given attempt.
pub(crate) fn pod(job: &ValidJob, settings: &Settings, role: Role, attempt: u32) -> Pod {
    let template = job.template.clone();
    let given = template.metadata.unwrap_or_default();
    let mut labels = labels_of_pods(job);
    labels.extend(role_labels(role));
    labels.insert(label::ATTEMPT.to_owned(), attempt.to_string());
    let mut spec = template.spec.unwrap_or_default();
    let mut trainer = take_trainer(&mut spec);
    write_launch(&mut trainer, job, role, attempt);
    if trainer.image.is_none() {
        trainer.image = Some(settings.trainer_image.clone());
        trainer.image_pull_policy.get_or_insert_with(|| settings.trainer_image_pull_policy.clone());
    }
    if role == Role::Coordinator {
        // It reads no data and computes nothing: neither what prepares the data nor accelerators are for it.
        spec.init_containers = None;
        spec.containers.clear();
        spec.resource_claims = None;
        without_accelerators(&mut trainer);
        spec.service_account_name = Some(COORDINATOR_ACCOUNT.to_owned());
    }
    if encrypts(job) && role != Role::Coordinator {
        mount_credentials(&mut spec, &mut trainer, job);
    }
    if objects(job).is_some() && role != Role::Coordinator {
        mount_run(&mut spec, &mut trainer);
    }
    spec.automount_service_account_token = Some(role == Role::Coordinator);
    spec.containers.insert(0, trainer);
    if spec.host_network == Some(true) {
        // What the API server would choose knows no names of the cluster, the coordinator's among
        // them.
        spec.dns_policy.get_or_insert_with(|| "ClusterFirstWithHostNet".to_owned());
    }
    read_last_words(&mut spec);
    // Starting again is a decision about all pods at once.
    spec.restart_policy = Some("Never".to_owned());
    restrict(&mut spec);
    Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(job, role)),
            namespace: Some(job.namespace.clone()),
            labels: Some(labels),
            annotations: given.annotations,
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The labels of everything that belongs to the job.
pub(crate) fn job_labels(job: &ValidJob) -> BTreeMap<String, String> {
    BTreeMap::from([
        (label::JOB_NAME.to_owned(), job.name.clone()),
        (label::JOB_UID.to_owned(), job.uid.clone().unwrap_or_default()),
    ])
}

/// The labels that tell the pods of a job apart.
pub(crate) fn role_labels(role: Role) -> BTreeMap<String, String> {
    match role {
        Role::Coordinator => BTreeMap::from([(label::ROLE.to_owned(), label::COORDINATOR.to_owned())]),
        Role::Worker(index) => BTreeMap::from([
            (label::ROLE.to_owned(), label::WORKER.to_owned()),
            (label::INDEX.to_owned(), index.to_string()),
        ]),
    }
}

/// Selects the workers of a job.
pub(crate) fn worker_selector(job: &ValidJob) -> String {
    let uid = job.uid.as_deref().unwrap_or_default();
    format!("{}={uid},{}={}", label::JOB_UID, label::ROLE, label::WORKER)
}

/// The labels that all of the job's pods have, the template's included.
#[must_use]
pub fn labels_of_pods(job: &ValidJob) -> BTreeMap<String, String> {
    let given = job.template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
    let mut labels = given.unwrap_or_default();
    labels.extend(job_labels(job));
    labels
}

/// Ties an object to the job: it goes when the job goes.
pub(crate) fn owner(job: &ValidJob) -> OwnerReference {
    OwnerReference {
        api_version: TrainingJob::api_version(&()).into_owned(),
        kind: TrainingJob::kind(&()).into_owned(),
        name: job.name.clone(),
        uid: job.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether the workers need credentials.
pub(crate) fn encrypts(job: &ValidJob) -> bool {
    job.task.communication().encryption == Encryption::Tls
}

/// The Secret that holds them. A job that is made anew under the same name gets another one: the operator may not read whose it is.
pub(crate) fn credentials_name(job: &ValidJob) -> String {
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

fn mount_run(spec: &mut PodSpec, trainer: &mut Container) {
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| volume.name != RUN_VOLUME);
    let empty_dir = Some(EmptyDirVolumeSource::default());
    volumes.push(Volume { name: RUN_VOLUME.to_owned(), empty_dir, ..Volume::default() });
    let mounts = trainer.volume_mounts.get_or_insert_default();
    mounts.retain(|mount| mount.name != RUN_VOLUME && mount.mount_path != RUN);
    mounts.push(VolumeMount { name: RUN_VOLUME.to_owned(), mount_path: RUN.to_owned(), ..VolumeMount::default() });
}

/// Whatever fails has its last lines read: they are all that is left of it once its pod is gone.
fn read_last_words(spec: &mut PodSpec) {
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

fn write_launch(trainer: &mut Container, job: &ValidJob, role: Role, attempt: u32) {
    let word = if role == Role::Coordinator { label::COORDINATOR } else { label::WORKER };
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
    // Whoever was killed before it could say why has at least its last lines read.
    trainer.termination_message_policy = Some("FallbackToLogsOnError".to_owned());
    let Ports { control, data, metrics } = Ports::POD;
    let own = if role == Role::Coordinator { ("control", control) } else { ("data", data) };
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
        ..asks(readiness::PATH.to_owned())
    });
}

/// Readiness is asked for once the process has joined, so that nothing warns of one that only waits
/// for the others. However long that takes, the kubelet does not end it.
fn startup_probe() -> Probe {
    Probe {
        initial_delay_seconds: Some(START_SECONDS),
        period_seconds: Some(AWAITING_SECONDS),
        failure_threshold: Some(i32::MAX),
        success_threshold: Some(1),
        timeout_seconds: Some(AWAITED_SECONDS),
        ..asks(format!("{}?{}", readiness::PATH, readiness::AWAITED))
    }
}

fn asks(path: String) -> Probe {
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
        // Both are replaced by references to the pod's own fields.
        member: String::new(),
        address: Ipv4Addr::UNSPECIFIED.into(),
        replicas: job.replicas.get(),
        elastic: job.elastic,
        coordinator: Address {
            host: format!("{}.{}.svc", pod_name(job, Role::Coordinator), job.namespace),
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
        task: job.task.clone(),
    }
}

/// The job's folder below `checkpoint.uri`; a job that is made anew under the same name gets another one. Where that is an object store,
/// each worker has one of its own. A benchmark, which keeps nothing, has none.
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

/// The job's place below `checkpoint.uri` where that is an object store.
pub(crate) fn objects(job: &ValidJob) -> Option<ObjectUri> {
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

/// Extended resources are all that bear a domain; the machine's own (cpu, memory) do not.
fn without_accelerators(trainer: &mut Container) {
    let Some(resources) = &mut trainer.resources else { return };
    resources.claims = None;
    for list in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
        list.retain(|name: &String, _: &mut Quantity| !name.contains('/'));
    }
}

/// Fills in what the restricted Pod Security Standard asks for, where the template does not say otherwise.
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
