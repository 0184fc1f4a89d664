//! Layer-wise adaptive rate scaling (You et al., arXiv 1708.03888), in the form of MLPerf's
//! ResNet-50. For each tensor: `trust = η‖w‖ / (‖g‖ + λ‖w‖ + ε)`, 1 if a norm is 0;
//! `v ← m·v − rate·trust·(g + λ·w)`, then `w ← w + v`.
//!
//! The rate lies inside `v`: a rate that changes does not rescale the steps that came before. Norm
//! parameters take trust 1 and no decay; biases have no decay, and trust as [`Biases`] says.

use super::{Biases, Tensor};
use crate::kernels::{Instructions, Vectorised, norm::norm};

/// Hyperparameters of LARS.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lars {
    /// The momentum `m`.
    pub momentum: f32,
    /// The weight decay `λ`.
    pub weight_decay: f32,
    /// The trust coefficient `η`.
    pub trust_coefficient: f32,
    /// `ε`, which bounds the ratio where gradient and decay vanish.
    pub epsilon: f32,
    /// The treatment of biases.
    pub biases: Biases,
}

impl Lars {
    pub(super) fn update(&self, instructions: Instructions, tensor: Tensor<'_>) {
        let decay = tensor.decay(self.weight_decay);
        let trust = if self.biases.trusts(tensor.role) { self.trust(instructions, &tensor, decay) } else { 1.0 };
        instructions.run(Step { momentum: self.momentum, decay, rate: tensor.rate * trust, tensor });
    }

    fn trust(&self, instructions: Instructions, tensor: &Tensor<'_>, decay: f32) -> f32 {
        let weights = norm(instructions, tensor.weights);
        let gradients = norm(instructions, tensor.gradients) * f64::from(tensor.scale);
        if weights == 0.0 || gradients == 0.0 {
            return 1.0;
        }
        let pull = gradients + f64::from(decay) * weights + f64::from(self.epsilon);
        (f64::from(self.trust_coefficient) * weights / pull) as f32
    }
}

/// The update of one tensor, its trust ratio in the rate.
struct Step<'a> {
    momentum: f32,
    decay: f32,
    rate: f32,
    tensor: Tensor<'a>,
}

impl Vectorised for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Step { momentum, decay, rate, tensor } = self;
        let Tensor { weights, gradients, slots: [velocity, _], scale, .. } = tensor;
        for ((w, g), v) in weights.iter_mut().zip(gradients).zip(velocity) {
            *v = momentum.mul_add(*v, -rate * decay.mul_add(*w, scale * g));
            *w += *v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Optimizer,
        tests::{assert_close, run, run_as},
    };
    use super::*;
    use crate::parameters::Role;

    const RULE: Lars =
        Lars { momentum: 0.9, weight_decay: 5e-5, trust_coefficient: 0.001, epsilon: 0.0, biases: Biases::Trust };
    const WEIGHTS: [f32; 2] = [3.0, 4.0];
    const GRADIENTS: [f32; 2] = [0.06, 0.08];

    /// Vectors of the design's data plane page: trust 0.0498753117.
    #[test]
    fn updates_are_those_of_the_vectors() {
        let updated = |rates: &[f32]| run(Optimizer::Lars(RULE), &WEIGHTS, &GRADIENTS, rates);
        assert_close(&updated(&[10.0]), &[2.97, 3.96], 1e-7);
        assert_close(&updated(&[10.0, 10.0]), &[2.9133, 3.8844], 1e-6);
    }

    #[test]
    fn a_new_rate_does_not_rescale_the_steps_before_it() {
        assert_close(&run(Optimizer::Lars(RULE), &WEIGHTS, &GRADIENTS, &[10.0, 20.0]), &[2.8836, 3.8448], 1e-6);
    }

    #[test]
    fn the_trust_ratio_is_that_of_the_vectors() {
        let [mut weights, mut first, mut second] = [WEIGHTS; 3];
        let tensor = Tensor {
            role: Role::Weight,
            weights: &mut weights,
            gradients: &GRADIENTS,
            slots: [&mut first, &mut second],
            scale: 1.0,
            rate: 10.0,
            step: 1,
        };
        let trust = RULE.trust(Instructions::detect(), &tensor, RULE.weight_decay);
        assert!((f64::from(trust) - 0.049_875_311_7).abs() < 1e-8, "{trust}");
    }

    #[test]
    fn skipped_biases_and_norm_parameters_take_the_raw_rate_without_decay() {
        let skipping = Optimizer::Lars(Lars { biases: Biases::Skip, ..RULE });
        let of = |role, rule| run_as(role, rule, Instructions::detect(), &WEIGHTS, &GRADIENTS, &[1.0]);
        let raw = [3.0 - 0.06, 4.0 - 0.08];
        assert_close(&of(Role::Bias, skipping), &raw, 1e-7);
        assert_close(&of(Role::Norm, Optimizer::Lars(RULE)), &raw, 1e-7);
        // Trusted: η·5 / 0.1 = 0.05.
        assert_close(&of(Role::Bias, Optimizer::Lars(RULE)), &[3.0 - 0.003, 4.0 - 0.004], 1e-7);
    }
}
