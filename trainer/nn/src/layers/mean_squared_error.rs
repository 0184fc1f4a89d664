//! Squared differences from targets, as `torch.nn.MSELoss`: a sample's loss is `mean (y − t)²` over
//! its elements, so `dy = 2·(y − t)/n`.

use super::{Judge, Judged, Misfit};
use crate::{
    dtype::DType,
    op::{self, Op},
    shape::Shape,
};

/// Squared differences from targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeanSquaredError;

impl Judge for MeanSquaredError {
    fn check(&self, _prediction: Shape) -> Result<(), Misfit> {
        Ok(())
    }

    fn target(&self, prediction: Shape) -> (DType, Shape) {
        (DType::F32, prediction)
    }

    fn operation(&self, at: &Judged) -> Op {
        let (y, dy, targets) = (at.prediction, at.gradient, at.target);
        Op::MeanSquaredError(op::MeanSquaredError { y, dy, targets, tally: at.tally, weight: at.weight })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_loss;
    use super::*;

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        check_loss(Shape::image(4, 3, 2), MeanSquaredError);
    }
}
