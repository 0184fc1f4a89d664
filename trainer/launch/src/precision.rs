//! The number formats of a training.

use serde::{Deserialize, Serialize};

use crate::InvalidField;

/// Refusal of a precision for a model of the trainer's own.
pub const NO_PRECISION_OF_OWN: &str =
    "f32 with spec.model.name own: such a model computes its gradients by itself; leave it out";
/// Refusal of a loss scale in f32.
pub const NO_LOSS_SCALE: &str = "only with spec.training.precision bf16 or f16; leave it out";
/// Refusal of a constant loss scale that is to change.
pub const CONSTANT_ALONE: &str = "without initial and growthInterval: a constant scale never changes";

/// Number formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    #[default]
    F32,
    #[allow(missing_docs, reason = "as above")]
    Bf16,
    #[allow(missing_docs, reason = "as above")]
    F16,
}

impl Precision {
    /// Returns the name that a manifest uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// The factor by which the loss is multiplied before backward, so that small gradients do not
/// vanish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LossScale {
    /// A factor that never changes, without unit; 1 turns scaling off. Default: none, the factor
    /// changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1.0, max = 1_099_511_627_776.0)))]
    pub constant: Option<f32>,
    /// The factor of the first step, without unit. It halves at each step whose gradients are not
    /// finite. Default: 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1.0, max = 1_099_511_627_776.0)))]
    pub initial: Option<f32>,
    /// Steps with finite gradients in a row after which the factor doubles. Default: 2000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub growth_interval: Option<u32>,
}

impl LossScale {
    /// The factor of the first step, unless a manifest names another.
    pub const INITIAL: f32 = 65_536.0;
    /// Good steps in a row after which the factor doubles, unless a manifest names another number.
    pub const GROWTH_INTERVAL: u32 = 2000;

    /// Checks the rules between this scale, which a manifest names, and its precision.
    pub(crate) fn check(&self, precision: Precision) -> Result<(), InvalidField> {
        let Self { constant, initial, growth_interval } = self;
        if precision == Precision::F32 {
            return Err(InvalidField::new("spec.training.lossScale", "given in f32", NO_LOSS_SCALE));
        }
        match constant {
            Some(constant) if initial.is_some() || growth_interval.is_some() => {
                Err(InvalidField::new("spec.training.lossScale.constant", constant, CONSTANT_ALONE))
            }
            _ => Ok(()),
        }
    }
}
