//! A job that can be run.

use std::{collections::BTreeMap, num::NonZeroU32, path::PathBuf};

use k8s_openapi::api::core::v1::PodTemplateSpec;
use lockstep_launch::{CommunicationAlgorithm, Elastic, InvalidField, SHARDS, Task, Training, Workload};
use lockstep_lifecycle::Limits;
use serde_json::Value;

use crate::{
    CleanPodPolicy, FailurePolicy, SchedulingPolicy, TRAINER_CONTAINER, TrainingJob, TrainingJobSpec, label, manifest,
    metadata,
    rules::{ALONE, AT_LEAST_MIN, AT_MOST_MAX, MIN_MEASURED, MISSING_TO_TRAIN, NO_BENCHMARK, canonical_accepted},
};

/// Greatest number of workers, as in the schema.
const MAX_REPLICAS: u32 = 1000;

/// A job that can be run, because every rule of the API holds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValidJob {
    /// Its namespace; empty if the manifest names none.
    pub namespace: String,
    /// Its name. It has at most 50 characters and stays a DNS label with `-worker-999` after it. If
    /// a manifest has only a `generateName`, this is that name without dashes at its end.
    pub name: String,
    /// Its uid. A manifest has none.
    pub uid: Option<String>,
    /// Number of workers.
    pub replicas: NonZeroU32,
    /// Smallest and greatest number of workers while it trains.
    pub elastic: Elastic,
    /// True if it is to rest.
    pub suspend: bool,
    /// True if it is to rest although its state cannot be saved.
    pub suspend_unsaved: bool,
    /// The controller that acts on it.
    pub managed_by: String,
    /// The work: training or a benchmark.
    pub task: Task,
    /// The limits at which it fails.
    pub failure_policy: FailurePolicy,
    /// The way in which its pods get their nodes.
    pub scheduling_policy: SchedulingPolicy,
    /// Seconds from the start after which it fails.
    pub active_deadline_seconds: Option<u32>,
    /// The pods that are deleted at the end.
    pub clean_pod_policy: CleanPodPolicy,
    /// Seconds from the end after which it is deleted.
    pub ttl_seconds_after_finished: Option<u32>,
    /// The template of its pods; empty if the manifest has none.
    pub template: PodTemplateSpec,
}

/// True if the annotation has the value `true`.
fn is_annotated(annotations: Option<&BTreeMap<String, String>>, key: &str) -> bool {
    annotations.and_then(|annotations| annotations.get(key)).is_some_and(|value| value == "true")
}

impl ValidJob {
    /// The limits at which it fails.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        Limits {
            backoff_limit: self.failure_policy.backoff_limit,
            active_deadline_seconds: self.active_deadline_seconds,
            startup_timeout_seconds: self.failure_policy.startup_timeout_seconds,
        }
    }

    /// Checks an object of the cluster.
    ///
    /// # Errors
    /// Every field that breaks a rule.
    pub fn from_object(object: &TrainingJob) -> Result<Self, Vec<InvalidField>> {
        let TrainingJob { metadata, spec, status: _ } = object;
        let TrainingJobSpec {
            replicas,
            devices_per_worker: _,
            elastic,
            suspend,
            managed_by,
            benchmark: _,
            model: _,
            dataset: _,
            training: _,
            communication: _,
            checkpoint: _,
            failure_policy,
            scheduling_policy,
            active_deadline_seconds,
            clean_pod_policy,
            ttl_seconds_after_finished,
            template,
        } = spec.clone();
        let template = template.unwrap_or_default();
        let mut wrong = Vec::new();
        let name = metadata::name(metadata).map_err(|field| wrong.push(field)).unwrap_or_default();
        wrong.extend(metadata::wrong_labels(metadata));
        let task = task(spec).map_err(|fields| wrong.extend(fields)).ok();
        wrong.extend(task.as_ref().and_then(|task| task.check().err()));
        if spec.benchmark.is_some() && replicas < MIN_MEASURED {
            wrong.push(InvalidField::new("spec.replicas", replicas, ALONE));
        }
        wrong.extend(check_containers(&template).err());
        wrong.extend(check_quantities(&template));
        let elastic = elastic.unwrap_or(Elastic::fixed(replicas));
        wrong.extend(check_elastic(elastic, replicas));
        let algorithm = spec.communication.algorithm;
        if algorithm == CommunicationAlgorithm::CanonicalTree && elastic.max_replicas > SHARDS {
            wrong.push(InvalidField::new("spec.communication.algorithm", algorithm, canonical_accepted()));
        }
        match (NonZeroU32::new(replicas).filter(|replicas| replicas.get() <= MAX_REPLICAS), task) {
            (Some(replicas), Some(task)) if wrong.is_empty() => Ok(Self {
                namespace: metadata.namespace.clone().unwrap_or_default(),
                name,
                uid: metadata.uid.clone(),
                replicas,
                elastic,
                suspend,
                suspend_unsaved: is_annotated(metadata.annotations.as_ref(), label::SUSPEND_UNSAVED),
                managed_by,
                task,
                failure_policy,
                scheduling_policy,
                active_deadline_seconds,
                clean_pod_policy,
                ttl_seconds_after_finished,
                template,
            }),
            (Some(_), _) => Err(wrong),
            (None, _) => {
                wrong.push(InvalidField::new("spec.replicas", replicas, format!("1 to {MAX_REPLICAS}")));
                Err(wrong)
            }
        }
    }

    /// Reads a manifest, YAML or JSON, as strictly as the API server reads it.
    ///
    /// # Errors
    /// Every field that is unknown, missing, of the wrong type, out of range or breaks a rule.
    pub fn from_manifest(yaml: &str) -> Result<Self, Vec<InvalidField>> {
        Self::from_value(manifest::parse(yaml).map_err(|error| vec![error])?)
    }

    /// Checks a manifest that is parsed already.
    ///
    /// # Errors
    /// The same as for [`Self::from_manifest`].
    pub fn from_value(manifest: Value) -> Result<Self, Vec<InvalidField>> {
        let wrong = manifest::problems(&manifest);
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let object: TrainingJob = serde_json::from_value(without_nulls(manifest))
            .map_err(|error| vec![InvalidField::new("manifest", "not readable", error)])?;
        Self::from_object(&object)
    }

    /// Returns what is likely to disappoint although it is valid. Each says what to change.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        match &self.task {
            Task::Train(workload) => workload.warnings(self.elastic.max_replicas),
            Task::Benchmark { .. } => Vec::new(),
        }
    }

    /// The seconds that a process has to end before it is killed, if the template gives them.
    #[must_use]
    pub fn grace_seconds(&self) -> Option<u32> {
        let seconds = self.template.spec.as_ref()?.termination_grace_period_seconds?;
        // Kubernetes takes a number below 0 for 1.
        Some(if seconds < 0 { 1 } else { u32::try_from(seconds).unwrap_or(u32::MAX) })
    }

    /// The paths inside the trainer's container at which the template mounts volumes.
    #[must_use]
    pub fn volume_mounts(&self) -> Vec<PathBuf> {
        let containers = self.template.spec.iter().flat_map(|spec| &spec.containers);
        containers
            .filter(|container| container.name == TRAINER_CONTAINER)
            .flat_map(|container| container.volume_mounts.iter().flatten())
            .map(|mount| PathBuf::from(&mount.mount_path))
            .collect()
    }
}

/// Removes fields that are null, as the API server does.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        plain => plain,
    }
}

/// Returns the job's work: the benchmark if there is one, else the training.
fn task(spec: &TrainingJobSpec) -> Result<Task, Vec<InvalidField>> {
    let TrainingJobSpec { devices_per_worker, benchmark, model, dataset, training, communication, checkpoint, .. } =
        spec.clone();
    if let Some(benchmark) = benchmark {
        let given = [
            ("spec.devicesPerWorker", devices_per_worker.is_some()),
            ("spec.model", model.is_some()),
            ("spec.dataset", dataset.is_some()),
            ("spec.training", training.is_some()),
            ("spec.checkpoint", checkpoint.is_some()),
        ];
        let wrong: Vec<_> = given
            .into_iter()
            .filter(|(_, given)| *given)
            .map(|(field, _)| InvalidField::new(field, "given", NO_BENCHMARK))
            .collect();
        return if wrong.is_empty() { Ok(Task::Benchmark { benchmark, communication }) } else { Err(wrong) };
    }
    let training = training.unwrap_or_else(training_by_default);
    let missing = |field| InvalidField::new(field, "missing", MISSING_TO_TRAIN);
    match (model, dataset, checkpoint) {
        (Some(model), Some(dataset), Some(checkpoint)) => {
            let devices_per_worker = devices_per_worker.unwrap_or(1);
            Ok(Task::Train(Box::new(Workload {
                model,
                dataset,
                training,
                communication,
                checkpoint,
                devices_per_worker,
            })))
        }
        (model, dataset, checkpoint) => Err([
            model.is_none().then(|| missing("spec.model")),
            dataset.is_none().then(|| missing("spec.dataset")),
            checkpoint.is_none().then(|| missing("spec.checkpoint")),
        ]
        .into_iter()
        .flatten()
        .collect()),
    }
}

/// Suffixes of quantities.
const SUFFIXES: [&str; 16] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const QUANTITY_ACCEPTED: &str = "a quantity, such as 500m, 2, 128Mi or 4Gi";

fn training_by_default() -> Training {
    serde_json::from_value(serde_json::json!({})).expect("every field of the optimisation has a default")
}

fn check_elastic(elastic: Elastic, replicas: u32) -> Vec<InvalidField> {
    let Elastic { min_replicas, max_replicas } = elastic;
    let min = (min_replicas < 1 || min_replicas > replicas).then(|| {
        InvalidField::new("spec.elastic.minReplicas", min_replicas, format!("{AT_LEAST_MIN}, which is {replicas}"))
    });
    let max = (max_replicas < replicas || max_replicas > MAX_REPLICAS).then(|| {
        let accepted = format!("{AT_MOST_MAX}; spec.replicas is {replicas}");
        InvalidField::new("spec.elastic.maxReplicas", max_replicas, accepted)
    });
    // A wrong number of replicas is reported for its own field.
    min.into_iter().chain(max).filter(|_| (1..=MAX_REPLICAS).contains(&replicas)).collect()
}

/// Lists quantities that the API server would refuse once the job's pods are made.
fn check_quantities(template: &PodTemplateSpec) -> Vec<InvalidField> {
    let Some(spec) = &template.spec else { return Vec::new() };
    let mut wrong = Vec::new();
    for (list, containers) in
        [("containers", Some(&spec.containers)), ("initContainers", spec.init_containers.as_ref())]
    {
        for (index, container) in containers.into_iter().flatten().enumerate() {
            let Some(resources) = &container.resources else { continue };
            for (kind, quantities) in [("requests", &resources.requests), ("limits", &resources.limits)] {
                let refused = quantities.iter().flatten().filter(|(_, quantity)| !is_quantity(&quantity.0));
                wrong.extend(refused.map(|(resource, quantity)| {
                    let field = format!("spec.template.spec.{list}[{index}].resources.{kind}.{resource}");
                    InvalidField::new(&field, format!("\"{}\"", quantity.0), QUANTITY_ACCEPTED)
                }));
            }
        }
    }
    wrong
}

/// True if the text is a quantity: digits, a decimal point, and a suffix or an exponent.
fn is_quantity(text: &str) -> bool {
    let number = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    let (digits, suffix) = number.split_at(end);
    let is_exponent = |suffix: &str| {
        let exponent = suffix.strip_prefix(['e', 'E']).unwrap_or_default();
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && exponent.bytes().all(|byte| byte.is_ascii_digit())
    };
    digits.bytes().any(|byte| byte.is_ascii_digit())
        && digits.bytes().filter(|byte| *byte == b'.').count() <= 1
        && (SUFFIXES.contains(&suffix) || is_exponent(suffix))
}

fn check_containers(template: &PodTemplateSpec) -> Result<(), InvalidField> {
    let Some(spec) = &template.spec else { return Ok(()) };
    if spec.containers.iter().any(|container| container.name == TRAINER_CONTAINER) {
        return Ok(());
    }
    let given: Vec<_> = spec.containers.iter().map(|container| container.name.as_str()).collect();
    Err(InvalidField::new("spec.template.spec.containers", given.join(", "), "one must be named trainer"))
}
