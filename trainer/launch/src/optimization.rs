//! The update rule of a job and its learning rate over time. The trainer reads these fields. A
//! learning rate or a scaling that a job leaves out takes the value that suits the rule.
//!
//! `kubectl explain` prints the doc comments of the fields. Each states the unit and the default.

use serde::{Deserialize, Serialize};

/// The update rule; exactly one is named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Optimizer {
    /// Stochastic gradient descent with momentum: v ← m·v + g + λ·w, then w ← w − rate·v.
    Sgd(Sgd),
    /// Layer-wise adaptive rate scaling, for large batches (arXiv 1708.03888, in MLPerf's form):
    /// each tensor's rate is multiplied by η‖w‖ / (‖g‖ + λ‖w‖).
    Lars(Lars),
    /// LARS's local rate around SGD with momentum, clipped to the global rate or multiplied with
    /// it.
    Larc(Larc),
    /// Layer-wise adaptive moments, for large batches (arXiv 1904.00962): Adam's step, scaled to
    /// each tensor's norm.
    Lamb(Lamb),
    /// Adam with decoupled weight decay (arXiv 1711.05101).
    Adamw(AdamW),
    /// Root mean square propagation.
    Rmsprop(Rmsprop),
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::Sgd(Sgd::default())
    }
}

impl Optimizer {
    /// Returns the name that a manifest uses. Two rules give slots of the same name another
    /// meaning: the rate is inside the momentum of LARS, and outside that of SGD.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Sgd(_) => "sgd",
            Self::Lars(_) => "lars",
            Self::Larc(_) => "larc",
            Self::Lamb(_) => "lamb",
            Self::Adamw(_) => "adamw",
            Self::Rmsprop(_) => "rmsprop",
        }
    }
}

/// Stochastic gradient descent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sgd {
    /// Share of the last velocity that is kept, without unit. Default: 0.9.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.9999)))]
    pub momentum: f32,
    /// Rate at which every weight decays towards zero, without unit; biases and norms are exempt.
    /// Default: 0.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub weight_decay: f32,
    /// True for Nesterov's momentum, which looks one step ahead. Default: false.
    pub nesterov: bool,
}

impl Default for Sgd {
    fn default() -> Self {
        Self { momentum: 0.9, weight_decay: 0.0, nesterov: false }
    }
}

/// Layer-wise adaptive rate scaling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Lars {
    /// Share of the last velocity that is kept, without unit. Default: 0.9.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.9999)))]
    pub momentum: f32,
    /// Rate at which every weight decays towards zero, without unit; biases and norms are exempt.
    /// Default: 0.00005.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub weight_decay: f32,
    /// Trust coefficient η, the share of a tensor's norm that a step of rate 1 may change, without
    /// unit. Default: 0.001.
    #[cfg_attr(feature = "schema", schemars(range(min = 1e-9, max = 1.0)))]
    pub eta: f32,
    /// What biases get: trust (their rate is scaled as that of weights), skip (the raw rate, as in
    /// MLPerf's ResNet-50). Default: trust in a model without norm layers, else skip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub biases: Option<Biases>,
}

impl Default for Lars {
    fn default() -> Self {
        Self { momentum: 0.9, weight_decay: 5e-5, eta: 0.001, biases: None }
    }
}

/// What a layer-wise rule does with biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Biases {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    Trust,
    #[allow(missing_docs, reason = "as above")]
    Skip,
}

/// LARS's local rate around SGD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Larc {
    /// Share of the last velocity that is kept, without unit. Default: 0.9.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.9999)))]
    pub momentum: f32,
    /// Rate at which every weight decays towards zero, without unit; biases and norms are exempt.
    /// Default: 0.0001.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub weight_decay: f32,
    /// Trust coefficient, without unit. Default: 0.02.
    #[cfg_attr(feature = "schema", schemars(range(min = 1e-9, max = 1.0)))]
    pub eta: f32,
    /// What the local rate does to the global one: clip (the lower counts), scale (their product
    /// counts). Default: clip.
    pub mode: LarcMode,
}

impl Default for Larc {
    fn default() -> Self {
        Self { momentum: 0.9, weight_decay: 1e-4, eta: 0.02, mode: LarcMode::Clip }
    }
}

/// What LARC's local rate does to the global one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LarcMode {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    Clip,
    #[allow(missing_docs, reason = "as above")]
    Scale,
}

/// Layer-wise adaptive moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Lamb {
    /// Share of the mean gradient that is kept, without unit. Default: 0.9.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.9999)))]
    pub beta1: f32,
    /// Share of the mean squared gradient that is kept, without unit. Default: 0.999.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.999999)))]
    pub beta2: f32,
    /// Rate at which every weight decays towards zero, without unit; biases and norms are exempt.
    /// Default: 0.01.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub weight_decay: f32,
    /// Added to the root of the mean square, without unit. Default: 0.000001.
    #[cfg_attr(feature = "schema", schemars(range(min = 1e-12, max = 1.0)))]
    pub epsilon: f32,
}

impl Default for Lamb {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, weight_decay: 0.01, epsilon: 1e-6 }
    }
}

/// Adam with decoupled weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdamW {
    /// Share of the mean gradient that is kept, without unit. Default: 0.9.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.9999)))]
    pub beta1: f32,
    /// Share of the mean squared gradient that is kept, without unit. Default: 0.999.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.999999)))]
    pub beta2: f32,
    /// Share of every weight that a step of rate 1 takes away; biases and norms are exempt.
    /// Default: 0.01.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub weight_decay: f32,
    /// Added to the root of the mean square, without unit. Default: 0.00000001.
    #[cfg_attr(feature = "schema", schemars(range(min = 1e-12, max = 1.0)))]
    pub epsilon: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, weight_decay: 0.01, epsilon: 1e-8 }
    }
}

/// Root mean square propagation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rmsprop {
    /// Share of the mean squared gradient that is kept, without unit. Default: 0.99.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.999999)))]
    pub smoothing: f32,
    /// Share of the last step that is kept, without unit. Default: 0.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.9999)))]
    pub momentum: f32,
    /// Rate at which every weight decays towards zero, without unit; biases and norms are exempt.
    /// Default: 0.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub weight_decay: f32,
    /// Added to the root of the mean square, without unit. Default: 0.00000001.
    #[cfg_attr(feature = "schema", schemars(range(min = 1e-12, max = 1.0)))]
    pub epsilon: f32,
}

impl Default for Rmsprop {
    fn default() -> Self {
        Self { smoothing: 0.99, momentum: 0.0, weight_decay: 0.0, epsilon: 1e-8 }
    }
}

/// The learning rate over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LearningRateSchedule {
    /// Learning rate before scaling, without unit, more than 0. Default: by the optimizer: 0.02 for
    /// sgd and larc, 4 for lars, 0.01 for lamb, 0.001 for adamw and rmsprop.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1e-9, max = 1000.0)))]
    pub base_learning_rate: Option<f32>,
    /// How the rate follows the global batch, from baseBatchSize on: none, linear (arXiv
    /// 1706.02677) or squareRoot. Default: squareRoot for lars, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// True if scaling goes by the batch that batchSizeSchedule gives for each step. False if it
    /// goes by globalBatchSize in the whole run; a batch that grows then lowers the noise of the
    /// gradient as a falling rate does. Default: false.
    pub rescale: bool,
    /// Samples of the global batch for which baseLearningRate is meant. Default: 64.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_048_576)))]
    pub base_batch_size: u32,
    /// Highest learning rate that scaling may reach, without unit. Default: 64 for lars, else 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1e-9, max = 1000.0)))]
    pub max_learning_rate: Option<f32>,
    /// Epochs over which the rate grows from 0, step by step; may be a fraction. Default: 0.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1_000_000.0)))]
    pub warmup_epochs: f64,
    /// The rate after warm-up: constant, step (times decayFactor at each of decayEpochs), cosine,
    /// or polynomial ((1 − x)^decayPower, x from 0 to 1). Default: constant.
    pub decay: Decay,
    /// Epochs after which the rate drops, ascending; only for step. Default: [].
    #[allow(rustdoc::broken_intra_doc_links, reason = "the default is written as in a manifest, and is no link")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), inner(range(min = 0.0, max = 1_000_000.0))))]
    pub decay_epochs: Vec<f64>,
    /// What is left of the rate at each of decayEpochs, without unit. Default: 0.1.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub decay_factor: f64,
    /// Power of polynomial decay, without unit. Default: 2.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.1, max = 10.0)))]
    pub decay_power: f64,
    /// The last learning rate of cosine and polynomial decay, without unit. Default: 0.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1000.0)))]
    pub end_learning_rate: f64,
}

impl Default for LearningRateSchedule {
    fn default() -> Self {
        Self {
            base_learning_rate: None,
            scaling: None,
            rescale: false,
            base_batch_size: 64,
            max_learning_rate: None,
            warmup_epochs: 0.0,
            decay: Decay::Constant,
            decay_epochs: Vec::new(),
            decay_factor: 0.1,
            decay_power: 2.0,
            end_learning_rate: 0.0,
        }
    }
}

/// How the rate follows the global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Scaling {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    None,
    #[allow(missing_docs, reason = "as above")]
    Linear,
    #[allow(missing_docs, reason = "as above")]
    SquareRoot,
}

/// The rate after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    Constant,
    #[allow(missing_docs, reason = "as above")]
    Step,
    #[allow(missing_docs, reason = "as above")]
    Cosine,
    #[allow(missing_docs, reason = "as above")]
    Polynomial,
}
