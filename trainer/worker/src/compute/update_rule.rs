//! The update rule of a training, as a manifest names it.

use lockstep_launch::{Training, optimization as spec};
use lockstep_nn::{
    Optimizer,
    optimizers::{AdamW, Biases, Lamb, Larc, LarcMode, Lars, Rmsprop, Sgd},
};

/// The term that bounds the trust ratio of LARS if gradient and decay vanish. MLPerf has none.
const LARS_EPSILON: f32 = 0.0;

/// An optimiser, and the longest gradient that it sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct UpdateRule {
    pub optimizer: Optimizer,
    pub clip_norm: Option<f32>,
}

impl UpdateRule {
    /// Returns the rule of a training for a model with or without norm layers.
    pub(crate) fn new(training: &Training, has_norms: bool) -> Self {
        Self { optimizer: optimizer(&training.optimizer, has_norms), clip_norm: training.clip_gradient_norm }
    }
}

fn optimizer(named: &spec::Optimizer, has_norms: bool) -> Optimizer {
    let biases = |named: Option<spec::Biases>| match named {
        Some(spec::Biases::Skip) => Biases::Skip,
        Some(spec::Biases::Trust) => Biases::Trust,
        None if has_norms => Biases::Skip,
        None => Biases::Trust,
    };
    match *named {
        spec::Optimizer::Sgd(spec::Sgd { momentum, weight_decay, nesterov }) => {
            Optimizer::Sgd(Sgd { momentum, weight_decay, nesterov })
        }
        spec::Optimizer::Lars(spec::Lars { momentum, weight_decay, eta, biases: named }) => Optimizer::Lars(Lars {
            momentum,
            weight_decay,
            trust_coefficient: eta,
            epsilon: LARS_EPSILON,
            biases: biases(named),
        }),
        spec::Optimizer::Larc(spec::Larc { momentum, weight_decay, eta, mode }) => {
            let mode = match mode {
                spec::LarcMode::Clip => LarcMode::Clip,
                spec::LarcMode::Scale => LarcMode::Scale,
            };
            Optimizer::Larc(Larc { momentum, weight_decay, trust_coefficient: eta, mode, biases: biases(None) })
        }
        spec::Optimizer::Lamb(spec::Lamb { beta1, beta2, weight_decay, epsilon }) => {
            Optimizer::Lamb(Lamb { betas: [beta1, beta2], weight_decay, epsilon })
        }
        spec::Optimizer::Adamw(spec::AdamW { beta1, beta2, weight_decay, epsilon }) => {
            Optimizer::AdamW(AdamW { betas: [beta1, beta2], weight_decay, epsilon })
        }
        spec::Optimizer::Rmsprop(spec::Rmsprop { smoothing, momentum, weight_decay, epsilon }) => {
            Optimizer::Rmsprop(Rmsprop { smoothing, momentum, weight_decay, epsilon })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lars_trusts_biases_unless_the_model_has_norm_layers() {
        let biases = |has_norms, lars| {
            let training = serde_json::from_value(json!({"optimizer": {"lars": lars}})).expect("a training");
            match UpdateRule::new(&training, has_norms).optimizer {
                Optimizer::Lars(lars) => lars.biases,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(biases(false, json!({})), Biases::Trust);
        assert_eq!(biases(true, json!({})), Biases::Skip);
        assert_eq!(biases(true, json!({"biases": "trust"})), Biases::Trust);
    }
}
