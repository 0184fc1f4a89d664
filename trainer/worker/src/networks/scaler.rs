//! The scale of the loss in a run: a tensor of the state, beside those of the replica.

use lockstep_launch::{LossScale as Named, Precision, Training};
use lockstep_nn::{Arena, LossScale, LossScaling};

use crate::trainee::{Lent, StateRange};

/// The factor, then the number of good steps since it changed.
pub(super) const ELEMENTS: usize = 2;
const NAME: &str = "loss_scale";

/// The rule of the scale, and its state.
pub(super) struct Scaler {
    scaling: LossScaling,
    kept: Arena,
}

impl Scaler {
    /// Returns the scaler of a training, before its first step.
    pub(super) fn new(training: &Training) -> Self {
        Self { scaling: scaling(training), kept: Arena::zeroed(ELEMENTS) }
    }

    fn state(&self) -> LossScale {
        let kept = self.kept.view::<f32>(0..ELEMENTS);
        LossScale { scale: kept[0], good_steps: kept[1] }
    }

    fn set(&mut self, LossScale { scale, good_steps }: LossScale) {
        self.write(&[scale, good_steps]);
    }

    /// Returns the factor of the next step.
    pub(super) fn factor(&self) -> f32 {
        self.scaling.factor(self.state())
    }

    /// Returns true if a step with a lower factor may have finite gradients.
    pub(super) fn can_fall(&self) -> bool {
        self.scaling.can_fall(self.state())
    }

    /// Counts a step that changed the weights.
    pub(super) fn did_step(&mut self) {
        self.set(self.scaling.after_good_step(self.state()));
    }

    /// Counts a step that all ranks left out.
    pub(super) fn skipped_step(&mut self) {
        self.set(self.scaling.after_skipped_step(self.state()));
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        self.set(LossScale::default());
    }

    /// Returns the tensor, which lies behind so many values of the state.
    pub(super) fn tensor(&self, before: usize) -> StateRange {
        let elements = before..before + ELEMENTS;
        StateRange { name: NAME.to_owned(), shape: vec![ELEMENTS], elements, is_slot: true }
    }

    /// Returns true if a tensor of this name and shape is this one.
    pub(super) fn is_tensor(&self, name: &str, shape: &[usize]) -> bool {
        name == NAME && shape == [ELEMENTS]
    }

    /// Lends the tensor's memory.
    pub(super) fn memory(&mut self) -> Lent {
        Lent::new(self.kept.lease::<f32>(0..ELEMENTS))
    }

    /// Returns the values of the tensor.
    pub(super) fn values(&self) -> [f32; ELEMENTS] {
        let LossScale { scale, good_steps } = self.state();
        [scale, good_steps]
    }

    /// Replaces the values of the tensor.
    pub(super) fn write(&mut self, values: &[f32]) {
        self.kept.lease::<f32>(0..ELEMENTS).copy_from_slice(values);
    }

    /// Returns a checksum of the replica's state together with this one.
    pub(super) fn checksum_with(&self, replica: u32) -> u32 {
        self.values().into_iter().fold(replica, |sum, value| sum.rotate_left(1) ^ value.to_bits())
    }
}

/// Returns the rule of a training. Only f16 needs a scale, so only f16 has one unless it is named.
fn scaling(training: &Training) -> LossScaling {
    let named = match training.precision {
        Precision::F32 => None,
        Precision::Bf16 => training.loss_scale,
        Precision::F16 => Some(training.loss_scale.unwrap_or_default()),
    };
    match named {
        None => LossScaling::Constant(1.0),
        Some(Named { constant: Some(constant), .. }) => LossScaling::Constant(constant),
        Some(Named { constant: None, initial, growth_interval }) => LossScaling::Dynamic {
            initial: initial.unwrap_or(Named::INITIAL),
            growth_interval: growth_interval.unwrap_or(Named::GROWTH_INTERVAL),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_f16_scales_its_loss_unless_the_manifest_says_so() {
        let dynamic = |initial, growth_interval| LossScaling::Dynamic { initial, growth_interval };
        for (training, expected) in [
            (json!({}), LossScaling::Constant(1.0)),
            (json!({"precision": "bf16"}), LossScaling::Constant(1.0)),
            (json!({"precision": "bf16", "lossScale": {}}), dynamic(65_536.0, 2000)),
            (json!({"precision": "f16"}), dynamic(65_536.0, 2000)),
            (json!({"precision": "f16", "lossScale": {"initial": 8, "growthInterval": 5}}), dynamic(8.0, 5)),
            (json!({"precision": "f16", "lossScale": {"constant": 128}}), LossScaling::Constant(128.0)),
        ] {
            let read = serde_json::from_value(training.clone()).expect("a training");
            assert_eq!(scaling(&read), expected, "{training}");
        }
    }
}
