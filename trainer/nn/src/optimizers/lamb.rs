//! Layer-wise adaptive moments (You et al., arXiv 1904.00962). For each tensor Adam's moments
//! `m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`, both divided by `1 − βᵗ`; `r = m̂ / (√v̂ + ε) + λ·w`;
//! `w ← w − rate·(‖w‖/‖r‖)·r`, with ratio 1 if a norm is 0. Biases and norm parameters take ratio 1
//! and no decay.

use super::{Tensor, filled};
use crate::{
    kernels::{
        Instructions, Vectorised,
        norm::{norm, squares_by},
    },
    parameters::Role,
};

/// Hyperparameters of LAMB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lamb {
    /// `β₁` and `β₂`.
    pub betas: [f32; 2],
    /// The weight decay `λ`.
    pub weight_decay: f32,
    /// `ε`.
    pub epsilon: f32,
}

impl Lamb {
    pub(super) fn update(&self, instructions: Instructions, mut tensor: Tensor<'_>) {
        let direction = Direction {
            betas: self.betas,
            filled: self.betas.map(|beta| filled(beta, tensor.step)),
            epsilon: self.epsilon,
            decay: tensor.decay(self.weight_decay),
        };
        let length = instructions.run(Moments { direction, tensor: &mut tensor });
        let weights = norm(instructions, tensor.weights);
        let is_scaled = tensor.role == Role::Weight && weights > 0.0 && length > 0.0;
        let ratio = if is_scaled { (weights / length) as f32 } else { 1.0 };
        instructions.run(Apply { direction, rate: tensor.rate * ratio, tensor });
    }
}

/// `r` of one element, from its moments.
#[derive(Clone, Copy)]
struct Direction {
    betas: [f32; 2],
    /// `1 − βᵗ` of both.
    filled: [f32; 2],
    epsilon: f32,
    decay: f32,
}

impl Direction {
    #[inline(always)]
    fn of(&self, weight: f32, mean: f32, square: f32) -> f32 {
        let [mean_filled, square_filled] = self.filled;
        self.decay.mul_add(weight, mean / mean_filled / ((square / square_filled).sqrt() + self.epsilon))
    }
}

/// Moves the moments on; returns `‖r‖`.
struct Moments<'a, 'b> {
    direction: Direction,
    tensor: &'a mut Tensor<'b>,
}

impl Vectorised for Moments<'_, '_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Moments { direction, tensor } = self;
        let Tensor { weights, gradients, slots: [means, squares], scale, .. } = tensor;
        let [keep_mean, keep_square] = direction.betas;
        for ((g, m), v) in gradients.iter().zip(means.iter_mut()).zip(squares.iter_mut()) {
            let g = *scale * g;
            *m = keep_mean.mul_add(*m, (1.0 - keep_mean) * g);
            *v = keep_square.mul_add(*v, (1.0 - keep_square) * g * g);
        }
        let count = weights.len();
        let (weights, means, squares) = (&weights[..count], &means[..count], &squares[..count]);
        squares_by(count, |index| direction.of(weights[index], means[index], squares[index])).sqrt()
    }
}

struct Apply<'a> {
    direction: Direction,
    rate: f32,
    tensor: Tensor<'a>,
}

impl Vectorised for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Apply { direction, rate, tensor } = self;
        let Tensor { weights, slots: [means, squares], .. } = tensor;
        for ((w, m), v) in weights.iter_mut().zip(means).zip(squares) {
            *w = (-rate).mul_add(direction.of(*w, *m, *v), *w);
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

    const RULE: Lamb = Lamb { betas: [0.9, 0.999], weight_decay: 0.01, epsilon: 1e-6 };

    /// At the first step m̂ = g and v̂ = g², so r = sign(g) + λw up to ε: (1.03, 1.04) for w = (3,
    /// 4); ‖r‖ = 1.463728, ratio 3.415935; w′ = w − 0.1·3.415935·r.
    #[test]
    fn the_first_update_is_the_one_derived_by_hand() {
        let updated = run(Optimizer::Lamb(RULE), &[3.0, 4.0], &[0.06, 0.08], &[0.1]);
        let length = f64::hypot(1.03, 1.04);
        let step = 0.1 * 5.0 / length;
        assert_close(&updated, &[3.0 - step * 1.03, 4.0 - step * 1.04], 2e-5);
    }

    #[test]
    fn biases_take_the_step_of_adam() {
        let rule = Optimizer::Lamb(RULE);
        let updated = run_as(Role::Bias, rule, Instructions::detect(), &[3.0, 4.0], &[0.06, -0.08], &[0.1]);
        assert_close(&updated, &[2.9, 4.1], 2e-5);
    }
}
