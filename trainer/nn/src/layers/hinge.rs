//! The margin by which wrong classes come close, as `torch.nn.MultiMarginLoss`: for scores `z` of
//! `K` classes and label `c`, `loss = Σ_{k≠c} max(0, margin − z_c + z_k) / K`. Each `k` above 0
//! adds `1/K` to `dz_k` and takes it from `dz_c`.

use super::{Judge, Judged, Misfit};
use crate::{
    dtype::DType,
    op::{self, Op},
    shape::Shape,
};

/// The margin by which wrong classes come close.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hinge {
    /// By how much the label's score is to exceed the others.
    pub margin: f32,
}

impl Default for Hinge {
    fn default() -> Self {
        Hinge { margin: 1.0 }
    }
}

impl Judge for Hinge {
    fn check(&self, prediction: Shape) -> Result<(), Misfit> {
        if prediction.is_flat() { Ok(()) } else { Err(Misfit::new("features, one a class", prediction)) }
    }

    fn target(&self, _prediction: Shape) -> (DType, Shape) {
        (DType::U32, Shape::features(1))
    }

    fn operation(&self, at: &Judged) -> Op {
        let (z, dz, labels) = (at.prediction, at.gradient, at.target.region);
        Op::Hinge(op::Hinge { z, dz, labels, tally: at.tally, margin: self.margin, weight: at.weight })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_loss;
    use super::*;

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        check_loss(Shape::features(5), Hinge::default());
    }
}
