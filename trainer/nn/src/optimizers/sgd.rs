//! Stochastic gradient descent with momentum, as `torch.optim.SGD`: `v ← m·v + g + λ·w`, then
//! `w ← w − rate·v`; with Nesterov's momentum `w ← w − rate·(g + λ·w + m·v)`.

use super::Tensor;
use crate::kernels::{Instructions, Vectorised};

/// Hyperparameters of stochastic gradient descent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// The momentum `m`, 0 for none.
    pub momentum: f32,
    /// The weight decay `λ`, 0 for none.
    pub weight_decay: f32,
    /// True for Nesterov's form, which looks one step ahead.
    pub nesterov: bool,
}

impl Sgd {
    pub(super) fn update(&self, instructions: Instructions, tensor: Tensor<'_>) {
        let decay = tensor.decay(self.weight_decay);
        instructions.run(Step { momentum: self.momentum, decay, nesterov: self.nesterov, tensor });
    }
}

/// The update of one tensor.
pub(super) struct Step<'a> {
    pub(super) momentum: f32,
    pub(super) decay: f32,
    pub(super) nesterov: bool,
    pub(super) tensor: Tensor<'a>,
}

impl Vectorised for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Step { momentum, decay, nesterov, tensor } = self;
        let Tensor { weights, gradients, slots: [velocity, _], scale, rate, .. } = tensor;
        let elements = weights.iter_mut().zip(gradients).zip(velocity);
        if nesterov {
            for ((w, g), v) in elements {
                let pull = decay.mul_add(*w, scale * g);
                *v = momentum.mul_add(*v, pull);
                *w = (-rate).mul_add(momentum.mul_add(*v, pull), *w);
            }
        } else {
            for ((w, g), v) in elements {
                *v = momentum.mul_add(*v, decay.mul_add(*w, scale * g));
                *w = (-rate).mul_add(*v, *w);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Optimizer, tests::run};
    use super::*;

    /// m = 0.5, λ = 0.25, rate = 0.5. Every intermediate is a dyadic fraction, so the numbers are
    /// exact: first v = g + λw = (0.75, −1.5), w = (1, −2) − 0.5·v = (0.625, −1.25); then v =
    /// 0.5·(0.75, −1.5) + (0.65625, −1.3125) = (1.03125, −2.0625), w = w − 0.5·v.
    #[test]
    fn two_updates_are_the_ones_derived_by_hand() {
        let rule = Optimizer::Sgd(Sgd { momentum: 0.5, weight_decay: 0.25, nesterov: false });
        assert_eq!(run(rule, &[1.0, -2.0], &[0.5, -1.0], &[0.5]), [0.625, -1.25]);
        assert_eq!(run(rule, &[1.0, -2.0], &[0.5, -1.0], &[0.5, 0.5]), [0.109_375, -0.218_75]);
    }

    /// As above with Nesterov: w = (1, −2) − 0.5·(0.75 + 0.5·0.75, …) = (0.4375, −0.875).
    #[test]
    fn nesterov_looks_one_step_ahead() {
        let rule = Optimizer::Sgd(Sgd { momentum: 0.5, weight_decay: 0.25, nesterov: true });
        assert_eq!(run(rule, &[1.0, -2.0], &[0.5, -1.0], &[0.5]), [0.4375, -0.875]);
    }
}
