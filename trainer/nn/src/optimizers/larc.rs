//! LARC: the layer-wise rate of LARS around SGD with momentum, as NVIDIA's apex computes it. For
//! each tensor `local = c‖w‖ / (‖g‖ + λ‖w‖ + 1e-8)`; clip mode takes `min(local / rate, 1)`, scale
//! mode `local` itself; `g ← (g + λ·w)·local`, then SGD without further decay. If a norm is 0, the
//! gradient stays as it is.

use super::{Biases, Tensor, sgd};
use crate::kernels::{Instructions, norm::norm};

const EPSILON: f64 = 1e-8;

/// Hyperparameters of LARC.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Larc {
    /// The momentum `m`.
    pub momentum: f32,
    /// The weight decay `λ`.
    pub weight_decay: f32,
    /// The trust coefficient `c`.
    pub trust_coefficient: f32,
    /// The effect of the local rate on the global one.
    pub mode: LarcMode,
    /// The treatment of biases.
    pub biases: Biases,
}

/// The effect of LARC's local rate on the global one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LarcMode {
    /// The lower of both counts.
    Clip,
    /// Their product counts.
    Scale,
}

impl Larc {
    pub(super) fn update(&self, instructions: Instructions, mut tensor: Tensor<'_>) {
        let mut decay = tensor.decay(self.weight_decay);
        if self.biases.trusts(tensor.role) {
            match self.local(instructions, &tensor, decay) {
                // (g + λ·w)·local = local·g + local·λ·w.
                Some(local) => {
                    tensor.scale *= local;
                    decay *= local;
                }
                None => decay = 0.0,
            }
        }
        instructions.run(sgd::Step { momentum: self.momentum, decay, nesterov: false, tensor });
    }

    /// The factor of the gradient; none if a norm is 0.
    fn local(&self, instructions: Instructions, tensor: &Tensor<'_>, decay: f32) -> Option<f32> {
        let weights = norm(instructions, tensor.weights);
        let gradients = norm(instructions, tensor.gradients) * f64::from(tensor.scale);
        if weights == 0.0 || gradients == 0.0 {
            return None;
        }
        let local = f64::from(self.trust_coefficient) * weights / (gradients + f64::from(decay) * weights + EPSILON);
        Some(match self.mode {
            LarcMode::Clip => (local / f64::from(tensor.rate)).min(1.0) as f32,
            LarcMode::Scale => local as f32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Optimizer,
        tests::{assert_close, run},
    };
    use super::*;

    const RULE: Larc = Larc {
        momentum: 0.9,
        weight_decay: 1e-4,
        trust_coefficient: 0.02,
        mode: LarcMode::Clip,
        biases: Biases::Trust,
    };

    /// The effective rate is what the update divides by: `(w − w′) / (g + λ·w)`.
    fn effective_rate(mode: LarcMode, gradients: [f32; 2]) -> f64 {
        let updated = run(Optimizer::Larc(Larc { mode, ..RULE }), &[3.0, 4.0], &gradients, &[0.1]);
        (3.0 - f64::from(updated[0])) / (f64::from(gradients[0]) + 1e-4 * 3.0)
    }

    /// Vectors of the design's data plane page: local 0.9950248, and 0.0099995 for a gradient 100
    /// times as long.
    #[test]
    fn clip_mode_takes_the_lower_rate() {
        assert!((effective_rate(LarcMode::Clip, [0.06, 0.08]) - 0.1).abs() < 1e-5);
        assert!((effective_rate(LarcMode::Clip, [6.0, 8.0]) - 0.009_999_5).abs() < 1e-6);
    }

    #[test]
    fn scale_mode_takes_the_product() {
        assert!((effective_rate(LarcMode::Scale, [0.06, 0.08]) - 0.099_502_48).abs() < 1e-5);
        assert!((effective_rate(LarcMode::Scale, [6.0, 8.0]) - 0.000_999_95).abs() < 1e-7);
    }

    #[test]
    fn weights_of_zero_take_the_plain_step() {
        assert_close(&run(Optimizer::Larc(RULE), &[0.0, 0.0], &[1.0, -1.0], &[0.5]), &[-0.5, 0.5], 1e-7);
    }
}
