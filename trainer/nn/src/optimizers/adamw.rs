//! Adam with decoupled weight decay (arXiv 1711.05101), as `torch.optim.AdamW`:
//! `m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`; `w ← w − rate·λ·w − rate·m̂ / (√v̂ + ε)`, where
//! `m̂ = m / (1−β₁ᵗ)` and `v̂ = v / (1−β₂ᵗ)`.

use super::{Tensor, filled};
use crate::kernels::{Instructions, Vectorised};

/// Hyperparameters of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// `β₁` and `β₂`.
    pub betas: [f32; 2],
    /// The weight decay `λ`.
    pub weight_decay: f32,
    /// `ε`.
    pub epsilon: f32,
}

impl AdamW {
    pub(super) fn update(&self, instructions: Instructions, tensor: Tensor<'_>) {
        let filled = self.betas.map(|beta| filled(beta, tensor.step));
        let shrink = tensor.rate * tensor.decay(self.weight_decay);
        instructions.run(Step { betas: self.betas, filled, epsilon: self.epsilon, shrink, tensor });
    }
}

struct Step<'a> {
    betas: [f32; 2],
    /// `1 − βᵗ` of both.
    filled: [f32; 2],
    epsilon: f32,
    /// `rate·λ`.
    shrink: f32,
    tensor: Tensor<'a>,
}

impl Vectorised for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Step { betas: [keep_mean, keep_square], filled: [mean_filled, square_filled], epsilon, shrink, tensor } =
            self;
        let Tensor { weights, gradients, slots: [means, squares], scale, rate, .. } = tensor;
        for (((w, g), m), v) in weights.iter_mut().zip(gradients).zip(means).zip(squares) {
            let g = scale * g;
            *m = keep_mean.mul_add(*m, (1.0 - keep_mean) * g);
            *v = keep_square.mul_add(*v, (1.0 - keep_square) * g * g);
            let shrunk = (-shrink).mul_add(*w, *w);
            *w = (-rate).mul_add(*m / mean_filled / ((*v / square_filled).sqrt() + epsilon), shrunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Optimizer,
        tests::{assert_close, run},
    };
    use super::*;

    /// At the first step m̂ = g and v̂ = g²: w′ = w − 0.1·0.01·w − 0.1·sign(g).
    #[test]
    fn the_first_update_is_the_one_derived_by_hand() {
        let rule = AdamW { betas: [0.9, 0.999], weight_decay: 0.01, epsilon: 1e-8 };
        let updated = run(Optimizer::AdamW(rule), &[3.0, 4.0], &[0.06, -0.08], &[0.1]);
        assert_close(&updated, &[3.0 - 0.003 - 0.1, 4.0 - 0.004 + 0.1], 1e-6);
    }
}
