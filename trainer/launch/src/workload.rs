//! The workload of a job: the fields of a `TrainingJob` that the operator passes on and the trainer
//! reads.
//!
//! `kubectl explain` prints the doc comments of the fields. Each states the unit and the default.

use serde::{Deserialize, Serialize};

use crate::{
    Communication, CommunicationAlgorithm, DatasetSpec, InvalidField, OBJECT_URI_ACCEPTED, ObjectUri,
    file_uri::check_file_uri,
    optimization::{Decay, LearningRateSchedule, Optimizer},
    precision::{LossScale, NO_PRECISION_OF_OWN, Precision},
};

/// Refusal of canonicalTree for workers with several devices.
pub const NO_TREE_OF_DEVICES: &str = "1 with spec.communication.algorithm canonicalTree; leave one of them out";

/// The model, the data set and the rules of training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// The network.
    pub model: ModelSpec,
    /// The data set.
    pub dataset: DatasetSpec,
    /// The rules of training.
    pub training: Training,
    /// The communication of gradients.
    pub communication: Communication,
    /// The checkpoints.
    pub checkpoint: CheckpointSpec,
    /// Number of devices that one worker drives.
    #[serde(default = "Workload::default_devices_per_worker")]
    pub devices_per_worker: u32,
}

/// The network to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSpec {
    /// Architecture: perceptron (no hidden layer), mlp (widths from `hidden`), mlp25m (25 million
    /// weights, for communication benchmarks), lenet5, alexnet, vgg16, googlenet, resnet20,
    /// resnet32 and resnet56 (for small images), resnet18, resnet34 and resnet50 (for large ones),
    /// unet (for labels by pixel), or own (the model that the trainer's program brings). The data
    /// set decides image size, channels and classes. Required without `layers`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ModelName>,
    /// Widths of the hidden layers of an mlp, in neurons, first layer first; only for mlp. With []
    /// it has none. Default: [128].
    #[allow(rustdoc::broken_intra_doc_links, reason = "the default is written as in a manifest, and is no link")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(range(min = 1, max = 65536))))]
    pub hidden: Option<Vec<u32>>,
    /// Channels of the first convolutions of a unet; each halving of the picture doubles them. Only
    /// for unet. Default: 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
    pub width: Option<u32>,
    /// The layers of an own model, in place of a name, one after another. Each is an object with
    /// the kind of the layer and its settings, such as `conv2d: {outputs: 6, kernel: 5}`. Kinds:
    /// linear, conv2d, depthwiseConv2d, upConvolution, batchNorm, layerNorm, groupNorm, maxPool,
    /// averagePool, globalAveragePool, relu, gelu, silu, tanh, sigmoid, dropout, flatten, residual
    /// and branches. A linear layer or a convolution without outputs has one for each class.
    /// Default: [].
    #[allow(rustdoc::broken_intra_doc_links, reason = "the default is written as in a manifest, and is no link")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "layer_list"))]
    pub layers: Vec<serde_json::Value>,
    /// Weights to begin with, from a file. Default: none, the seed's values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<InitialWeights>,
}

/// Weights to begin with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitialWeights {
    /// The safetensors file, as a file:// URI such as file:///weights/resnet50.safetensors.
    /// Lockstep exports such files, and PyTorch writes them with safetensors.torch.save_file. Its
    /// tensors have the names and shapes of the model. Each worker reads it before the first step;
    /// a run that continues from a checkpoint does not. Required.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub uri: String,
    /// Names of tensors that begin with the seed's values, whatever the file has, such as those of
    /// the last layer for other classes. A `*` stands for any characters: `fc.*`. Default: [].
    #[allow(rustdoc::broken_intra_doc_links, reason = "the default is written as in a manifest, and is no link")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), inner(length(min = 1, max = 256))))]
    pub except: Vec<String>,
}

/// Only the trainer knows the settings of each kind of layer.
#[cfg(feature = "schema")]
fn layer_list(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "maxItems": 512,
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    })
}

/// Architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    Perceptron,
    #[allow(missing_docs, reason = "as above")]
    Mlp,
    #[allow(missing_docs, reason = "as above")]
    Mlp25m,
    #[allow(missing_docs, reason = "as above")]
    Lenet5,
    #[allow(missing_docs, reason = "as above")]
    Alexnet,
    #[allow(missing_docs, reason = "as above")]
    Vgg16,
    #[allow(missing_docs, reason = "as above")]
    Googlenet,
    #[allow(missing_docs, reason = "as above")]
    Resnet20,
    #[allow(missing_docs, reason = "as above")]
    Resnet32,
    #[allow(missing_docs, reason = "as above")]
    Resnet56,
    #[allow(missing_docs, reason = "as above")]
    Resnet18,
    #[allow(missing_docs, reason = "as above")]
    Resnet34,
    #[allow(missing_docs, reason = "as above")]
    Resnet50,
    #[allow(missing_docs, reason = "as above")]
    Unet,
    #[allow(missing_docs, reason = "as above")]
    Own,
}

impl ModelName {
    /// Returns the name that a manifest uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Perceptron => "perceptron",
            Self::Mlp => "mlp",
            Self::Mlp25m => "mlp25m",
            Self::Lenet5 => "lenet5",
            Self::Alexnet => "alexnet",
            Self::Vgg16 => "vgg16",
            Self::Googlenet => "googlenet",
            Self::Resnet20 => "resnet20",
            Self::Resnet32 => "resnet32",
            Self::Resnet56 => "resnet56",
            Self::Resnet18 => "resnet18",
            Self::Resnet34 => "resnet34",
            Self::Resnet50 => "resnet50",
            Self::Unet => "unet",
            Self::Own => "own",
        }
    }
}

/// The rules of training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Training {
    /// Passes over the training samples. Default: 5.
    #[serde(default = "Training::default_epochs")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub epochs: u32,
    /// Samples of one optimiser step over all workers together. It stays the same for any number of
    /// workers. batchSizeSchedule may change it during the run. Default: 64.
    #[serde(default = "Training::default_global_batch_size")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_048_576)))]
    pub global_batch_size: u32,
    /// Changes of globalBatchSize during the run, such as a batch that grows in place of a rate
    /// that falls (arXiv 1711.00489), ascending by epoch. The learning rate does not follow, unless
    /// schedule.rescale is true. Default: [].
    #[allow(rustdoc::broken_intra_doc_links, reason = "the default is written as in a manifest, and is no link")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub batch_size_schedule: Vec<BatchSizeChange>,
    /// Most samples that a worker takes through the model at once. A larger share is accumulated in
    /// several rounds. The value bounds a worker's memory. Default: 64.
    #[serde(default = "Training::default_micro_batch_size")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65_536)))]
    pub micro_batch_size: u32,
    /// Share of each label that is spread over all classes, without unit. Default: 0.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.9)))]
    pub label_smoothing: f32,
    /// Weight of each class in the loss, in the order of the classes, as the weight of PyTorch's
    /// CrossEntropyLoss. The loss of a step is the weighted mean over all labels of its global
    /// batch, so it does not depend on the number of workers. Default: [], all count the same.
    #[allow(rustdoc::broken_intra_doc_links, reason = "the default is written as in a manifest, and is no link")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 65_536), inner(range(min = 0.0, max = 1_000_000.0))))]
    pub class_weights: Vec<f32>,
    /// Number format of the values between layers, their gradients and the weights that multiply
    /// them: f32, bf16 or f16. The weights that the optimiser updates, its own values and all sums
    /// stay in f32, and so do checkpoints: a run may go on in another precision. Default: f32.
    #[serde(default)]
    pub precision: Precision,
    /// Factor of the loss before backward; gradients are divided by it before anything uses them.
    /// Only for bf16 and f16. Default: {} in f16, and none in bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Seed of the initial weights, the order of the samples and the glyphs. The same seed gives
    /// the same run, with two exceptions over tcp: three or more workers need
    /// communication.algorithm and bucketBytes, and two workers with a wire other than f32 need
    /// bucketBytes. Without these fields, the plan follows measured times. Default: 0.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 9_007_199_254_740_991_i64)))]
    pub seed: u64,
    /// The update rule. Default: sgd with momentum 0.9.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// The learning rate over time. Default: constant, at the value that suits the optimizer.
    #[serde(default)]
    pub schedule: LearningRateSchedule,
    /// Longest norm that the gradient of all weights together may have, without unit. A longer
    /// gradient is scaled down to it. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1e-9, max = 1_000_000.0)))]
    pub clip_gradient_norm: Option<f32>,
    /// What happens at a loss or a gradient that is infinite or not a number: stop (the job fails
    /// and says where; the newest checkpoint stays) or skip (the step changes no weight, on all
    /// workers alike; after 10 such steps in a row the job fails). Default: stop.
    #[serde(default)]
    pub on_non_finite: OnNonFinite,
}

/// What happens at a loss or a gradient that is infinite or not a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnNonFinite {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    #[default]
    Stop,
    #[allow(missing_docs, reason = "as above")]
    Skip,
}

impl Training {
    fn default_epochs() -> u32 {
        5
    }

    fn default_global_batch_size() -> u32 {
        64
    }

    fn default_micro_batch_size() -> u32 {
        64
    }
}

/// The checkpoints of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointSpec {
    /// Storage of the checkpoints: a folder that every worker sees, as a file:// URI such as
    /// file:///checkpoints, or a prefix in an object store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX
    /// or az://CONTAINER/PREFIX. The environment of the trainer's container holds the store's
    /// credentials, for example from a Secret by envFrom. Each job has a folder of its own in the
    /// storage. Required.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub uri: String,
    /// Seconds between two checkpoints. One more is saved at the end and at each stop. Default: 60.
    #[serde(default = "CheckpointSpec::default_interval_seconds")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86_400)))]
    pub interval_seconds: u32,
    /// Number of checkpoints to keep. Older ones are deleted once a newer one was read back.
    /// Default: 3.
    #[serde(default = "CheckpointSpec::default_keep_last")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub keep_last: u32,
    /// The checkpoint to keep besides the newest ones, however old it is: the best of those that
    /// were saved after an evaluation. One is saved whenever an evaluation finds a better state.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestCheckpoint>,
}

/// The best checkpoint of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BestCheckpoint {
    /// What decides, on the held-out samples: accuracy (the greatest) or loss (the least). Default:
    /// accuracy.
    #[serde(default)]
    pub metric: BestMetric,
}

/// A metric that says which of two states is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum BestMetric {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    #[default]
    Accuracy,
    #[allow(missing_docs, reason = "as above")]
    Loss,
}

impl CheckpointSpec {
    /// Returns the prefix in an object store; `None` for a folder. The URI has been
    /// [checked](Workload::check).
    #[must_use]
    pub fn objects(&self) -> Option<ObjectUri> {
        self.uri.parse().ok()
    }

    fn default_interval_seconds() -> u32 {
        60
    }

    fn default_keep_last() -> u32 {
        3
    }
}

impl Workload {
    fn default_devices_per_worker() -> u32 {
        1
    }

    /// Checks the rules that no schema can state, between fields or inside a string. Each is a CEL
    /// rule of the CRD as well.
    ///
    /// # Errors
    /// A field breaks a rule. The error names the first one.
    pub fn check(&self) -> Result<(), InvalidField> {
        let Self { model, dataset, training, communication, checkpoint, devices_per_worker } = self;
        if model.name.is_some() != model.layers.is_empty() {
            let (value, accepted) = match model.name {
                Some(name) => (name.as_str(), "only without spec.model.layers; leave one of them out"),
                None => ("missing", "the name of a model, or spec.model.layers in its place"),
            };
            return Err(InvalidField::new("spec.model.name", value, accepted));
        }
        let hidden = model.hidden.as_deref().unwrap_or_default();
        if model.name != Some(ModelName::Mlp) && !hidden.is_empty() {
            return Err(InvalidField::new(
                "spec.model.hidden",
                format!("{hidden:?}"),
                "only for model mlp; leave it out",
            ));
        }
        if let (Some(width), true) = (model.width, model.name != Some(ModelName::Unet)) {
            return Err(InvalidField::new("spec.model.width", width, "only for model unet; leave it out"));
        }
        if let Some(weights) = &model.weights {
            check_file_uri("spec.model.weights.uri", &weights.uri)?;
        }
        dataset.check()?;
        training.check_batch_sizes()?;
        if model.name == Some(ModelName::Own) && training.precision != Precision::F32 {
            let precision = training.precision.as_str();
            return Err(InvalidField::new("spec.training.precision", precision, NO_PRECISION_OF_OWN));
        }
        training.loss_scale.map_or(Ok(()), |scale| scale.check(training.precision))?;
        let LearningRateSchedule { decay, decay_epochs, .. } = &training.schedule;
        if (*decay == Decay::Step) == decay_epochs.is_empty() {
            return Err(InvalidField::new(
                "spec.training.schedule.decayEpochs",
                format!("{decay_epochs:?}"),
                "one or more epochs with decay step, none with any other",
            ));
        }
        communication.check()?;
        if communication.algorithm == CommunicationAlgorithm::CanonicalTree && *devices_per_worker > 1 {
            return Err(InvalidField::new("spec.devicesPerWorker", devices_per_worker, NO_TREE_OF_DEVICES));
        }
        match &checkpoint.uri {
            uri if ObjectUri::begins(uri) => match uri.parse::<ObjectUri>() {
                Ok(_) => Ok(()),
                Err(accepted) => Err(InvalidField::new("spec.checkpoint.uri", uri, accepted)),
            },
            uri => check_file_uri("spec.checkpoint.uri", uri).map_err(|InvalidField { field, value, accepted }| {
                InvalidField { field, value, accepted: format!("{accepted}, or {OBJECT_URI_ACCEPTED}") }
            }),
        }
    }
}

/// Another global batch from an epoch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BatchSizeChange {
    /// Epochs that are done before this batch begins. One at or after spec.training.epochs never
    /// does. Required.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub epoch: u32,
    /// Samples of one optimiser step over all workers together, from that epoch on. Required.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_048_576)))]
    pub global_batch_size: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, WireFormat};

    fn lenet() -> Workload {
        serde_json::from_value(serde_json::json!({
            "model": {"name": "lenet5"},
            "dataset": {"format": "idx", "uri": "file:///data/mnist"},
            "training": {},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        }))
        .expect("every other field has a default")
    }

    #[test]
    fn a_workload_reads_back_from_its_json() {
        let text = serde_json::to_string(&lenet()).expect("serialises");
        assert_eq!(serde_json::from_str::<Workload>(&text).expect("reads back"), lenet());
    }

    #[test]
    fn network_selectors_read_back_from_their_json() {
        let mut job = lenet();
        job.communication.interfaces = vec!["eth1".parse().expect("a name"), "10.20.0.0/16".parse().expect("a subnet")];
        let text = serde_json::to_string(&job).expect("serialises");
        assert!(text.contains(r#""interfaces":["eth1","10.20.0.0/16"]"#), "{text}");
        assert_eq!(serde_json::from_str::<Workload>(&text).expect("reads back"), job);
    }

    #[test]
    fn the_error_names_the_field_that_breaks_a_rule() {
        type Breaking = (&'static str, fn(&mut Workload));
        let cases: [Breaking; 15] = [
            ("spec.model.hidden", |job| job.model.hidden = Some(vec![10])),
            ("spec.model.width", |job| job.model.width = Some(16)),
            ("spec.model.name", |job| job.model.name = None),
            ("spec.model.name", |job| job.model.layers = vec![serde_json::json!({"flatten": {}})]),
            ("spec.model.weights.uri", |job| {
                job.model.weights = Some(InitialWeights { uri: "weights.safetensors".into(), except: vec![] });
            }),
            ("spec.dataset.uri", |job| job.dataset.uri = None),
            ("spec.dataset.uri", |job| job.dataset.uri = Some("ftp://bucket".into())),
            ("spec.checkpoint.uri", |job| job.checkpoint.uri = "file:///a/../b".into()),
            ("spec.checkpoint.uri", |job| job.checkpoint.uri = "s3:///lenet".into()),
            ("spec.training.batchSizeSchedule", |job| {
                job.training.batch_size_schedule = vec![BatchSizeChange { epoch: 2, global_batch_size: 128 }; 2];
            }),
            ("spec.training.schedule.decayEpochs", |job| job.training.schedule.decay = Decay::Step),
            ("spec.training.schedule.decayEpochs", |job| job.training.schedule.decay_epochs = vec![1.0]),
            ("spec.communication.bucketBytes", |job| job.communication.bucket_bytes = Some(ByteSize::bytes(10))),
            ("spec.communication.bucketBytes", |job| job.communication.bucket_bytes = Some(ByteSize::mebibytes(2048))),
            ("spec.communication.wire", |job| {
                job.communication.wire = WireFormat::Bf16;
                job.communication.algorithm = CommunicationAlgorithm::Ring;
            }),
        ];
        assert_eq!(lenet().check(), Ok(()));
        for (field, break_it) in cases {
            let mut job = lenet();
            break_it(&mut job);
            assert_eq!(job.check().expect_err(field).field, field);
        }
    }
}
