//! Root mean square propagation, as `torch.optim.RMSprop`: `s ← α·s + (1−α)·g²` with `g ← g + λ·w`
//! first; `b ← m·b + g / (√s + ε)`, then `w ← w − rate·b`.

use super::Tensor;
use crate::kernels::{Instructions, Vectorised};

/// Hyperparameters of RMSprop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rmsprop {
    /// `α`, the share of the mean square that is kept.
    pub smoothing: f32,
    /// The momentum `m`, 0 for none.
    pub momentum: f32,
    /// The weight decay `λ`.
    pub weight_decay: f32,
    /// `ε`.
    pub epsilon: f32,
}

impl Rmsprop {
    pub(super) fn update(&self, instructions: Instructions, tensor: Tensor<'_>) {
        let decay = tensor.decay(self.weight_decay);
        instructions.run(Step { rule: *self, decay, tensor });
    }
}

struct Step<'a> {
    rule: Rmsprop,
    decay: f32,
    tensor: Tensor<'a>,
}

impl Vectorised for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Step { rule: Rmsprop { smoothing, momentum, epsilon, .. }, decay, tensor } = self;
        let Tensor { weights, gradients, slots: [squares, buffer], scale, rate, .. } = tensor;
        for (((w, g), s), b) in weights.iter_mut().zip(gradients).zip(squares).zip(buffer) {
            let g = decay.mul_add(*w, scale * g);
            *s = smoothing.mul_add(*s, (1.0 - smoothing) * g * g);
            *b = momentum.mul_add(*b, g / (s.sqrt() + epsilon));
            *w = (-rate).mul_add(*b, *w);
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

    /// α = 0.75: s = 0.25·g², √s = |g| / 2, so the first step is rate·2·sign(g).
    #[test]
    fn the_first_update_is_the_one_derived_by_hand() {
        let rule = Rmsprop { smoothing: 0.75, momentum: 0.0, weight_decay: 0.0, epsilon: 0.0 };
        assert_close(&run(Optimizer::Rmsprop(rule), &[3.0, 4.0], &[0.5, -0.25], &[0.1]), &[2.8, 4.2], 1e-6);
    }
}
