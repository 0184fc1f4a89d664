//! The rules of a job that a schema cannot state, in CEL. The API server refuses an object that
//! breaks one. For manifests that never reach an API server, `Task::check` and `ValidJob` repeat
//! the rules that do not compare with an older object.

use lockstep_launch::{
    CONSTANT_ALONE, DataUri, NO_LOSS_SCALE, NO_PRECISION_OF_OWN, NO_TREE_OF_DEVICES, OBJECT_URI_ACCEPTED,
    OBJECT_URI_PATTERN, SHARDS, WEB_URI_PATTERN,
};

/// A CEL rule over `spec`.
pub(crate) struct Rule {
    /// The expression that holds for a valid object.
    pub(crate) rule: String,
    /// The accepted values, for people.
    pub(crate) message: String,
    /// The field to blame, relative to the rule's position. None if the schema does not know the
    /// field, as in the metadata.
    pub(crate) field: Option<&'static str>,
}

/// Longest name of a job. `<name>-worker-999` and `<name>-coordinator` must be DNS labels of at
/// most 63 characters.
pub(crate) const MAX_NAME_LENGTH: usize = 50;
/// The fields of `spec` that describe the training. A benchmark has none of them.
pub(crate) const TRAINING_FIELDS: [&str; 5] = [".devicesPerWorker", ".model", ".dataset", ".training", ".checkpoint"];
/// The training fields without a default.
pub(crate) const REQUIRED_TO_TRAIN: [&str; 3] = [".model", ".dataset", ".checkpoint"];
pub(crate) const NO_BENCHMARK: &str = "a benchmark trains nothing: leave it out, or spec.benchmark";
pub(crate) const MISSING_TO_TRAIN: &str = "required to train; to measure instead, give spec.benchmark";
/// Fewest workers of a benchmark.
pub(crate) const MIN_MEASURED: u32 = 2;
pub(crate) const ALONE: &str = "2 or more for a benchmark: one worker alone has nothing to sum";
pub(crate) const AT_LEAST_MIN: &str = "1 to spec.replicas";
pub(crate) const AT_MOST_MAX: &str = "spec.replicas to 1000";
pub(crate) const NAME_ACCEPTED: &str =
    "a lower-case letter, then lower-case letters, digits and `-`, ending in a letter or digit, at most 50 characters";

/// The accepted values if gradients are added as a tree of shards. Every worker has at least one
/// shard.
pub(crate) fn canonical_accepted() -> String {
    format!("canonicalTree takes up to {SHARDS} replicas; take fewer, or leave it out")
}

/// Rules over the whole object.
pub(crate) fn object_rules() -> Vec<Rule> {
    vec![Rule {
        rule: format!(
            "self.metadata.name.size() <= {MAX_NAME_LENGTH} && \
             self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"
        ),
        message: format!("metadata.name: {NAME_ACCEPTED}"),
        field: None,
    }]
}

/// Rules over `spec`, between its fields or inside a string.
pub(crate) fn spec_rules() -> Vec<Rule> {
    let mut rules = vec![
        Rule {
            rule: "!has(self.model) || \
                   has(self.model.name) != (has(self.model.layers) && self.model.layers.size() > 0)"
                .to_owned(),
            message: "spec.model.name: the name of a model, or spec.model.layers in its place".to_owned(),
            field: Some(".model"),
        },
        Rule {
            rule: "!has(self.model) || (has(self.model.name) && self.model.name == 'mlp') || \
                   !has(self.model.hidden) || self.model.hidden.size() == 0"
                .to_owned(),
            message: "spec.model.hidden: only for model mlp; leave it out".to_owned(),
            field: Some(".model.hidden"),
        },
        Rule {
            rule: "!has(self.model) || !has(self.model.width) || \
                   (has(self.model.name) && self.model.name == 'unet')"
                .to_owned(),
            message: "spec.model.width: only for model unet; leave it out".to_owned(),
            field: Some(".model.width"),
        },
        Rule {
            rule: format!("!has(self.model) || !has(self.model.weights) || {}", is_file("self.model.weights.uri")),
            message: "spec.model.weights.uri: file:///FOLDER/FILE, an absolute path without `..`".to_owned(),
            field: Some(".model.weights.uri"),
        },
        Rule {
            rule: "!has(self.training) || !has(self.training.batchSizeSchedule) || \
                   (self.training.batchSizeSchedule.map(change, change.epoch).isSorted() && \
                   self.training.batchSizeSchedule.all(change, \
                   self.training.batchSizeSchedule.exists_one(other, other.epoch == change.epoch)))"
                .to_owned(),
            message: "spec.training.batchSizeSchedule: epochs that ascend, each once".to_owned(),
            field: Some(".training.batchSizeSchedule"),
        },
        Rule {
            rule: "!has(self.training) || !has(self.training.schedule) || \
                   (self.training.schedule.decay == 'step') == (has(self.training.schedule.decayEpochs) && \
                   self.training.schedule.decayEpochs.size() > 0)"
                .to_owned(),
            message: "spec.training.schedule.decayEpochs: one or more epochs with decay step, none with any other"
                .to_owned(),
            field: Some(".training.schedule.decayEpochs"),
        },
        Rule {
            rule: "!has(self.training) || !has(self.model) || !has(self.model.name) || self.model.name != 'own' || \
                   self.training.precision == 'f32'"
                .to_owned(),
            message: format!("spec.training.precision: {NO_PRECISION_OF_OWN}"),
            field: Some(".training.precision"),
        },
        Rule {
            rule: "!has(self.training) || !has(self.training.lossScale) || self.training.precision != 'f32'".to_owned(),
            message: format!("spec.training.lossScale: {NO_LOSS_SCALE}"),
            field: Some(".training.lossScale"),
        },
        Rule {
            rule: "!has(self.training) || !has(self.training.lossScale) || !has(self.training.lossScale.constant) || \
                   !(has(self.training.lossScale.initial) || has(self.training.lossScale.growthInterval))"
                .to_owned(),
            message: format!("spec.training.lossScale.constant: {CONSTANT_ALONE}"),
            field: Some(".training.lossScale.constant"),
        },
        Rule {
            rule: format!(
                "!has(self.checkpoint) || {} || self.checkpoint.uri.matches('{OBJECT_URI_PATTERN}')",
                is_file("self.checkpoint.uri")
            ),
            message: format!(
                "spec.checkpoint.uri: file:///FOLDER, an absolute path without `..`, or {OBJECT_URI_ACCEPTED}"
            ),
            field: Some(".checkpoint.uri"),
        },
        Rule {
            rule: format!(
                "!has(self.communication.bucketBytes) || {}",
                is_between("self.communication.bucketBytes", "1Ki", "1Gi")
            ),
            message: "spec.communication.bucketBytes: 1Ki to 1Gi".to_owned(),
            field: Some(".communication.bucketBytes"),
        },
        Rule {
            rule: "self.communication.wire == 'f32' || self.communication.algorithm in ['auto', 'direct']".to_owned(),
            message: "spec.communication.wire: f32 if communication.algorithm is named; leave that out, or name direct"
                .to_owned(),
            field: Some(".communication.wire"),
        },
        Rule {
            rule: "!has(self.communication.interfaces) || \
                   self.communication.interfaces.all(network, !network.contains('/') || isCIDR(network))"
                .to_owned(),
            message: "spec.communication.interfaces: interfaces' names such as eth1, or subnets such as 10.20.0.0/16"
                .to_owned(),
            field: Some(".communication.interfaces"),
        },
        Rule {
            rule: "!has(self.elastic) || self.elastic.minReplicas <= self.replicas".to_owned(),
            message: format!("spec.elastic.minReplicas: {AT_LEAST_MIN}"),
            field: Some(".elastic.minReplicas"),
        },
        Rule {
            rule: "!has(self.elastic) || self.elastic.maxReplicas >= self.replicas".to_owned(),
            message: format!("spec.elastic.maxReplicas: {AT_MOST_MAX}"),
            field: Some(".elastic.maxReplicas"),
        },
        Rule {
            rule: format!(
                "self.communication.algorithm != 'canonicalTree' || \
                 (has(self.elastic) ? self.elastic.maxReplicas : self.replicas) <= {SHARDS}"
            ),
            message: format!("spec.communication.algorithm: {}", canonical_accepted()),
            field: Some(".communication.algorithm"),
        },
        Rule {
            rule: "self.communication.algorithm != 'canonicalTree' || !has(self.devicesPerWorker) || \
                   self.devicesPerWorker == 1"
                .to_owned(),
            message: format!("spec.devicesPerWorker: {NO_TREE_OF_DEVICES}"),
            field: Some(".devicesPerWorker"),
        },
        Rule {
            rule: "!has(self.template) || !has(self.template.spec) || \
                   self.template.spec.containers.exists(c, c.name == 'trainer')"
                .to_owned(),
            message: "spec.template.spec.containers: one must be named trainer".to_owned(),
            field: Some(".template"),
        },
        Rule {
            rule: format!("!has(self.benchmark) || self.replicas >= {MIN_MEASURED}"),
            message: format!("spec.replicas: {ALONE}"),
            field: Some(".replicas"),
        },
        measured_size("minBytes", ".benchmark.collectives.minBytes"),
        measured_size("maxBytes", ".benchmark.collectives.maxBytes"),
        Rule {
            rule: format!(
                "!has(self.benchmark) || !has(self.benchmark.collectives.minBytes) || \
                 !has(self.benchmark.collectives.maxBytes) || \
                 {}.compareTo({}) <= 0",
                size("self.benchmark.collectives.minBytes"),
                size("self.benchmark.collectives.maxBytes")
            ),
            message: "spec.benchmark.collectives.minBytes: no more than maxBytes".to_owned(),
            field: Some(".benchmark.collectives.minBytes"),
        },
    ];
    rules.extend(dataset_rules());
    rules.extend(TRAINING_FIELDS.iter().map(|field| Rule {
        rule: format!("!has(self.benchmark) || !has(self{field})"),
        message: format!("spec{field}: {NO_BENCHMARK}"),
        field: Some(field),
    }));
    rules.extend(REQUIRED_TO_TRAIN.iter().map(|field| Rule {
        rule: format!("has(self.benchmark) || has(self{field})"),
        message: format!("spec{field}: {MISSING_TO_TRAIN}"),
        field: Some(field),
    }));
    rules.push(Rule {
        rule: "has(self.elastic) || self.replicas == oldSelf.replicas".to_owned(),
        message: "spec.replicas: can change only if spec.elastic gives the bounds; delete the job and create it again with that".to_owned(),
        field: Some(".replicas"),
    });
    rules.extend(IMMUTABLE.iter().map(|field| immutable(field)));
    rules
}

/// Rules over the data set. `DatasetSpec` says what each format takes.
fn dataset_rules() -> Vec<Rule> {
    let in_files = "self.dataset.format in ['idx', 'cifar10', 'cifar100', 'imagefolder', 'tar', 'npy', 'segmentation']";
    let crop = "self.dataset.augment.randomResizedCrop";
    let has_crop = "has(self.dataset) && has(self.dataset.augment) && has(self.dataset.augment.randomResizedCrop)";
    let ordered = |name: &str, field: &'static str| Rule {
        rule: format!("!({has_crop}) || {crop}.{name}[0] <= {crop}.{name}[1]"),
        message: format!("spec{field}: the least value, then the greatest"),
        field: Some(field),
    };
    vec![
        Rule {
            rule: format!("!has(self.dataset) || !({in_files}) || has(self.dataset.uri)"),
            message:
                "spec.dataset.uri: required for format idx, cifar10, cifar100, imagefolder, tar, npy and segmentation: \
                 file:///FOLDER, s3://BUCKET/PREFIX or https://HOST/ARCHIVE.tar.gz"
                    .to_owned(),
            field: Some(".dataset.uri"),
        },
        Rule {
            rule: format!(
                "!has(self.dataset) || !({in_files}) || !has(self.dataset.uri) || {} || \
                 self.dataset.uri.matches('{OBJECT_URI_PATTERN}') || \
                 (self.dataset.uri.matches('{WEB_URI_PATTERN}') && !(self.dataset.uri + '/').contains('/../'))",
                is_file("self.dataset.uri")
            ),
            message: format!("spec.dataset.uri: {}", DataUri::accepted()),
            field: Some(".dataset.uri"),
        },
        Rule {
            rule: format!("!has(self.dataset) || !has(self.dataset.cache) || {}", is_file("self.dataset.cache")),
            message: "spec.dataset.cache: file:///FOLDER, an absolute path without `..`".to_owned(),
            field: Some(".dataset.cache"),
        },
        Rule {
            rule: "!has(self.dataset) || !has(self.dataset.classes) || \
                 self.dataset.format in ['idx', 'tar', 'npy', 'segmentation', 'synthetic']"
                .to_owned(),
            message: "spec.dataset.classes: only for idx, tar, npy, segmentation and synthetic; leave it out"
                .to_owned(),
            field: Some(".dataset.classes"),
        },
        Rule {
            rule: "!has(self.dataset) || self.dataset.format != 'synthetic' || has(self.dataset.image)".to_owned(),
            message: "spec.dataset.image: required for format synthetic: height and width in pixels".to_owned(),
            field: Some(".dataset.image"),
        },
        Rule {
            rule: "!has(self.dataset) || !has(self.dataset.image) || \
                   self.dataset.format in ['imagefolder', 'tar', 'npy', 'segmentation', 'synthetic']"
                .to_owned(),
            message: "spec.dataset.image: only for imagefolder, tar, npy, segmentation and synthetic; leave it out"
                .to_owned(),
            field: Some(".dataset.image"),
        },
        Rule {
            rule:
                "!has(self.dataset) || !(self.dataset.format in ['imagefolder', 'tar']) || !has(self.dataset.image) || \
                   self.dataset.image.channels in [1, 3]"
                    .to_owned(),
            message: "spec.dataset.image.channels: 1 (grey) or 3 (red, green and blue) for pictures".to_owned(),
            field: Some(".dataset.image.channels"),
        },
        Rule {
            rule: "!has(self.dataset) || !has(self.dataset.ignoreIndex) || self.dataset.format == 'segmentation'"
                .to_owned(),
            message: "spec.dataset.ignoreIndex: only for segmentation; leave it out".to_owned(),
            field: Some(".dataset.ignoreIndex"),
        },
        Rule {
            rule: "!has(self.dataset) || (has(self.dataset.mean) ? self.dataset.mean.size() : 0) == \
                   (has(self.dataset.std) ? self.dataset.std.size() : 0)"
                .to_owned(),
            message: "spec.dataset.std: as many values as spec.dataset.mean".to_owned(),
            field: Some(".dataset.std"),
        },
        ordered("scale", ".dataset.augment.randomResizedCrop.scale"),
        ordered("ratio", ".dataset.augment.randomResizedCrop.ratio"),
    ]
}

/// The fields of `spec` that keep their value for the life of the job.
pub(crate) const IMMUTABLE: [&str; 14] = [
    ".devicesPerWorker",
    ".elastic",
    ".managedBy",
    ".benchmark",
    ".model",
    ".dataset",
    ".training",
    ".communication",
    ".checkpoint",
    ".failurePolicy",
    ".schedulingPolicy",
    ".activeDeadlineSeconds",
    ".cleanPodPolicy",
    ".ttlSecondsAfterFinished",
];

/// Fields of a pod that say where it may run. Queue systems set them before they let a job begin.
const SCHEDULING_FIELDS: [&str; 4] = ["affinity", "nodeSelector", "schedulingGates", "tolerations"];

/// A rule over the whole object: the template does not change, except the fields that queue systems
/// set while the job rests. As with batch Jobs, a job rests while it is suspended and has no start
/// time. `fields` are a pod's fields.
pub(crate) fn template_rule<'a>(fields: impl Iterator<Item = &'a str>) -> Rule {
    let kept: Vec<String> = fields
        .filter(|field| !SCHEDULING_FIELDS.contains(field))
        .map(|field| keeps("self.spec.template.spec", "oldSelf.spec.template.spec", &format!(".{field}")))
        .collect();
    Rule {
        rule: format!(
            "has(self.spec.template) == has(oldSelf.spec.template) && (!has(self.spec.template) || \
             self.spec.template == oldSelf.spec.template || \
             (has(oldSelf.spec.suspend) && oldSelf.spec.suspend && \
             (!has(oldSelf.status) || !has(oldSelf.status.startTime)) && \
             has(self.spec.template.spec) == has(oldSelf.spec.template.spec) && \
             (!has(self.spec.template.spec) || ({}))))",
            kept.join(" && ")
        ),
        message: format!(
            "spec.template: cannot change once the job exists; delete the job and create it again. While it is suspended and has no pods, \
             its metadata and {} can",
            SCHEDULING_FIELDS.join(", ")
        ),
        field: Some(".spec.template"),
    }
}

fn immutable(field: &'static str) -> Rule {
    Rule {
        rule: keeps("self", "oldSelf", field),
        message: format!("spec{field}: cannot change once the job exists; delete the job and create it again"),
        field: Some(field),
    }
}

fn keeps(new: &str, old: &str, field: &str) -> String {
    format!("has({new}{field}) == has({old}{field}) && (!has({new}{field}) || {new}{field} == {old}{field})")
}

fn measured_size(name: &str, field: &'static str) -> Rule {
    Rule {
        rule: format!(
            "!has(self.benchmark) || !has(self{field}) || {}",
            is_between(&format!("self{field}"), "4", "1Gi")
        ),
        message: format!("spec.benchmark.collectives.{name}: 4 to 1Gi"),
        field: Some(field),
    }
}

fn is_between(bytes: &str, least: &str, most: &str) -> String {
    let size = size(bytes);
    format!("{size}.compareTo(quantity('{least}')) >= 0 && {size}.compareTo(quantity('{most}')) <= 0")
}

fn size(bytes: &str) -> String {
    format!("quantity(string({bytes}))")
}

fn is_file(uri: &str) -> String {
    format!("{uri}.startsWith('file:///') && {uri}.size() > 8 && !({uri} + '/').contains('/../')")
}
