//! Update rules: hyperparameters, the slots that each keeps between steps, and its arithmetic for
//! one tensor.
//!
//! Every rule gives the same bits on every instruction set, so that ranks on different machines
//! stay equal: element by element, with fused multiply-adds, from norms whose sums have a fixed
//! order.

mod adamw;
mod arenas;
mod lamb;
mod larc;
mod lars;
mod rmsprop;
mod sgd;

pub use adamw::AdamW;
pub use arenas::update_arenas;
pub use lamb::Lamb;
pub use larc::{Larc, LarcMode};
pub use lars::Lars;
pub use rmsprop::Rmsprop;
pub use sgd::Sgd;

use crate::{kernels::Instructions, parameters::Role};

/// An update rule with its hyperparameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent with momentum.
    Sgd(Sgd),
    /// Layer-wise adaptive rate scaling (arXiv 1708.03888), in the form that MLPerf uses.
    Lars(Lars),
    /// LARS with a clipped or scaled local rate, around SGD with momentum.
    Larc(Larc),
    /// Layer-wise adaptive moments (arXiv 1904.00962).
    Lamb(Lamb),
    /// Adam with decoupled weight decay (arXiv 1711.05101).
    AdamW(AdamW),
    /// Root mean square propagation, as `torch.optim.RMSprop`.
    Rmsprop(Rmsprop),
}

impl Optimizer {
    /// The names of the slots, as PyTorch's optimisers call them. A slot has one value for each
    /// weight.
    #[must_use]
    pub const fn slots(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd(_) | Optimizer::Lars(_) | Optimizer::Larc(_) => &["momentum_buffer"],
            Optimizer::Lamb(_) | Optimizer::AdamW(_) => &["exp_avg", "exp_avg_sq"],
            Optimizer::Rmsprop(_) => &["square_avg", "momentum_buffer"],
        }
    }

    /// The name that a manifest uses.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd(_) => "sgd",
            Optimizer::Lars(_) => "lars",
            Optimizer::Larc(_) => "larc",
            Optimizer::Lamb(_) => "lamb",
            Optimizer::AdamW(_) => "adamw",
            Optimizer::Rmsprop(_) => "rmsprop",
        }
    }

    /// Updates one tensor.
    pub(crate) fn update(&self, instructions: Instructions, tensor: Tensor<'_>) {
        match self {
            Optimizer::Sgd(rule) => rule.update(instructions, tensor),
            Optimizer::Lars(rule) => rule.update(instructions, tensor),
            Optimizer::Larc(rule) => rule.update(instructions, tensor),
            Optimizer::Lamb(rule) => rule.update(instructions, tensor),
            Optimizer::AdamW(rule) => rule.update(instructions, tensor),
            Optimizer::Rmsprop(rule) => rule.update(instructions, tensor),
        }
    }
}

/// Slots that a rule keeps at most.
pub(crate) const MAX_SLOTS: usize = 2;

/// What a layer-wise rule does with biases, which have few values and often start at zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Biases {
    /// The trust ratio scales them as it scales weights: right for a model without norm layers.
    Trust,
    /// They take the raw rate, as norm parameters always do. MLPerf's ResNet-50 does this.
    Skip,
}

impl Biases {
    /// True if the trust ratio applies to a parameter of this role.
    pub(crate) fn trusts(self, role: Role) -> bool {
        match role {
            Role::Weight => true,
            Role::Bias => self == Biases::Trust,
            Role::Norm | Role::Statistic { .. } => false,
        }
    }
}

/// One parameter tensor in the middle of an update. All slices have the same length.
pub(crate) struct Tensor<'a> {
    pub(crate) role: Role,
    pub(crate) weights: &'a mut [f32],
    pub(crate) gradients: &'a [f32],
    /// In the order of [`Optimizer::slots`]; those that the rule does not keep are empty.
    pub(crate) slots: [&'a mut [f32]; MAX_SLOTS],
    /// Every gradient counts times this: below 1 where the norm of all gradients is clipped.
    pub(crate) scale: f32,
    /// The learning rate.
    pub(crate) rate: f32,
    /// The number of this step, from 1.
    pub(crate) step: u64,
}

impl Tensor<'_> {
    /// `decay` for weights, 0 for biases and norm parameters (arXiv 1706.02677).
    pub(crate) fn decay(&self, decay: f32) -> f32 {
        if self.role == Role::Weight { decay } else { 0.0 }
    }
}

/// `1 − βᵗ`, the share of a moving average's weights that `t` steps have filled.
pub(crate) fn filled(beta: f32, step: u64) -> f32 {
    let step = i32::try_from(step).unwrap_or(i32::MAX);
    (1.0 - f64::from(beta).powi(step)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `updates` steps of a rule on a weight tensor and returns its weights.
    pub(super) fn run(rule: Optimizer, weights: &[f32], gradients: &[f32], rates: &[f32]) -> Vec<f32> {
        run_as(Role::Weight, rule, Instructions::detect(), weights, gradients, rates)
    }

    pub(super) fn run_as(
        role: Role,
        rule: Optimizer,
        instructions: Instructions,
        weights: &[f32],
        gradients: &[f32],
        rates: &[f32],
    ) -> Vec<f32> {
        let mut weights = weights.to_vec();
        let [mut first, mut second] = [(); 2].map(|()| vec![0.0; weights.len()]);
        for (step, rate) in (1..).zip(rates) {
            let slots = [&mut first[..], &mut second[..]];
            rule.update(
                instructions,
                Tensor { role, weights: &mut weights, gradients, slots, scale: 1.0, rate: *rate, step },
            );
        }
        weights
    }

    pub(super) fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= tolerance * expected.abs().max(1e-3), "{found} where {expected} is right");
        }
    }

    fn values(count: usize, salt: u32) -> Vec<f32> {
        let word = |index: usize| (index as u32).wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503));
        (0..count).map(|index| (word(index) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    fn every_rule() -> [Optimizer; 9] {
        let (momentum, weight_decay) = (0.9, 1e-4);
        let lars = Lars { momentum, weight_decay, trust_coefficient: 0.001, epsilon: 0.0, biases: Biases::Trust };
        let larc =
            Larc { momentum, weight_decay, trust_coefficient: 0.02, mode: LarcMode::Clip, biases: Biases::Trust };
        let rmsprop = Rmsprop { smoothing: 0.99, momentum: 0.0, weight_decay, epsilon: 1e-8 };
        [
            Optimizer::Sgd(Sgd { momentum, weight_decay, nesterov: false }),
            Optimizer::Sgd(Sgd { momentum, weight_decay, nesterov: true }),
            Optimizer::Lars(lars),
            Optimizer::Larc(larc),
            Optimizer::Larc(Larc { mode: LarcMode::Scale, ..larc }),
            Optimizer::Lamb(Lamb { betas: [0.9, 0.999], weight_decay, epsilon: 1e-6 }),
            Optimizer::AdamW(AdamW { betas: [0.9, 0.999], weight_decay, epsilon: 1e-8 }),
            Optimizer::Rmsprop(rmsprop),
            Optimizer::Rmsprop(Rmsprop { momentum, ..rmsprop }),
        ]
    }

    #[test]
    fn every_instruction_set_updates_to_the_same_bits() {
        let wide = [Instructions::Avx2, Instructions::Avx512].into_iter().filter(|set| set.available());
        let wide: Vec<_> = wide.collect();
        for rule in every_rule() {
            for count in (1..70).step_by(7).chain([127, 128, 1000, 4099]) {
                let updated = |instructions| {
                    let (weights, gradients) = (values(count, 1), values(count, 3));
                    let weights = run_as(Role::Weight, rule, instructions, &weights, &gradients, &[0.037, 0.05, 0.04]);
                    weights.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
                };
                let reference = updated(Instructions::Baseline);
                wide.iter()
                    .for_each(|wide| assert_eq!(updated(*wide), reference, "{rule:?} with {wide:?}, {count} elements"));
            }
        }
    }

    /// The gaps between parameters in an arena hold zeros, and an update must leave them so.
    #[test]
    fn zeros_with_a_zero_gradient_stay_zero() {
        for rule in every_rule() {
            assert_eq!(run(rule, &[0.0; 5], &[0.0; 5], &[0.1, 0.1]), [0.0; 5], "{rule:?}");
        }
    }

    #[test]
    fn a_clipped_gradient_is_scaled_before_everything_else() {
        for rule in every_rule() {
            let step = |gradients: &[f32], scale| {
                let (mut weights, mut first, mut second) = (values(20, 1), vec![0.0; 20], vec![0.0; 20]);
                let slots = [&mut first[..], &mut second[..]];
                let weights_now = &mut weights;
                rule.update(
                    Instructions::detect(),
                    Tensor { role: Role::Weight, weights: weights_now, gradients, slots, scale, rate: 0.1, step: 1 },
                );
                weights
            };
            let gradients = values(20, 2);
            let halves: Vec<f32> = gradients.iter().map(|gradient| gradient * 0.5).collect();
            assert_eq!(step(&gradients, 0.5), step(&halves, 1.0), "{rule:?}");
        }
    }

    #[test]
    fn only_weights_are_decayed() {
        let rule = Optimizer::Sgd(Sgd { momentum: 0.0, weight_decay: 0.5, nesterov: false });
        let of = |role| run_as(role, rule, Instructions::detect(), &[1.0], &[0.0], &[1.0]);
        assert_eq!([of(Role::Weight), of(Role::Bias), of(Role::Norm)], [[0.5], [1.0], [1.0]]);
    }
}
