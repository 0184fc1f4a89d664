//! Dropout (Srivastava et al. 2014) as `torch.nn.Dropout`: in training each element is zero with
//! probability `p`, else `x / (1 − p)`; in evaluation `y = x`.
//!
//! The dice depend only on the run's seed, the step, the sample's key, the layer and the element:
//! neither on the number of workers nor on the size of micro-batches. Backward draws them again.

use super::{Gradients, Misfit, Mode, Operands, Reads, Rule, single};
use crate::{
    op::{self, Op, Sum},
    shape::Shape,
};

/// Zeros at places drawn by dice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// The share of elements that become zero.
    pub probability: f32,
}

impl Dropout {
    /// With this share of zeros.
    #[must_use]
    pub const fn new(probability: f32) -> Dropout {
        Dropout { probability }
    }

    const fn operation(&self, at: &Operands, from: crate::device::Tensor, into: Sum<crate::device::Tensor>) -> Op {
        let (probability, layer, keys) = (self.probability, at.number, at.sample_keys);
        Op::Dropout(op::Dropout { from, into, probability, layer, keys })
    }
}

impl Rule for Dropout {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, Misfit> {
        if (0.0..1.0).contains(&self.probability) {
            single(inputs)
        } else {
            Err(Misfit::new("a probability of at least 0 and less than 1", self.probability))
        }
    }

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

    fn forward(&self, at: &Operands, mode: Mode, ops: &mut Vec<Op>) {
        ops.push(match mode {
            Mode::Training => self.operation(at, at.x(), Sum::only(at.output)),
            Mode::Evaluation => Op::Accumulate(op::Accumulate { from: at.x(), into: Sum::only(at.output) }),
        });
    }

    fn backward(&self, at: &Operands, gradients: &mut Gradients<'_>, ops: &mut Vec<Op>) {
        if let Some(dx) = gradients.dx(0) {
            ops.push(self.operation(at, gradients.dy, dx));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, outputs};
    use super::*;

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        check(&[Shape::image(3, 4, 5)], |graph, x| graph.then(Dropout::new(0.4), x[0]));
    }

    #[test]
    fn elements_are_zero_or_scaled_up_and_keep_their_mean() {
        let ones = vec![1.0; 20_000];
        let found = outputs(&[Shape::features(10_000)], &[&ones], |graph, x| graph.then(Dropout::new(0.25), x[0]));
        assert!(found.iter().all(|value| *value == 0.0 || (*value - 4.0 / 3.0).abs() < 1e-6));
        let mean = found.iter().sum::<f32>() / 20_000.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert_ne!(found[..10_000], found[10_000..], "samples have their own dice");
    }
}
