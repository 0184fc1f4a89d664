//! Cross-entropy of softmax against labels, as `torch.nn.CrossEntropyLoss`: for logits `z`, label
//! `c`, smoothing `ε` and class weights `w` (1 where none are given), with `lp = z − log Σ exp z`:
//! `loss = −(1 − ε)·w_c·lp_c − ε/K·Σ_k w_k·lp_k`.
//!
//! With a label for each pixel a sample's loss is the average over its pixels; a pixel whose label
//! is ignored adds nothing. Unlike PyTorch's mean, that of a batch does not divide by the weights
//! of its labels: a sample counts the same whichever worker has it.

use super::{Judge, Judged, Misfit};
use crate::{
    dtype::DType,
    op::{self, Op},
    shape::Shape,
};

/// Cross-entropy of softmax against labels.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SoftmaxCrossEntropy {
    /// `ε`: the share of the target that is spread over all classes.
    pub smoothing: f32,
    /// A weight for each class; empty where all count the same.
    pub class_weights: Vec<f32>,
    /// The label of pixels that do not count.
    pub ignored: Option<u32>,
    /// True if every pixel has a label.
    pub per_pixel: bool,
}

impl Judge for SoftmaxCrossEntropy {
    fn check(&self, prediction: Shape) -> Result<(), Misfit> {
        if !(prediction.is_flat() || self.per_pixel) {
            return Err(Misfit::new("features, one a class", prediction));
        }
        if !self.class_weights.is_empty() && self.class_weights.len() != prediction.channels {
            return Err(Misfit::new(format!("{} class weights", prediction.channels), self.class_weights.len()));
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(Misfit::new("a smoothing of at least 0 and less than 1", self.smoothing));
        }
        Ok(())
    }

    fn target(&self, prediction: Shape) -> (DType, Shape) {
        (DType::U32, Shape { channels: 1, ..prediction })
    }

    fn ignored(&self) -> Option<u32> {
        self.ignored
    }

    fn constants(&self) -> &[f32] {
        &self.class_weights
    }

    fn operation(&self, at: &Judged) -> Op {
        Op::SoftmaxCrossEntropy(op::SoftmaxCrossEntropy {
            z: at.prediction,
            dz: at.gradient,
            labels: at.target.region,
            tally: at.tally,
            smoothing: self.smoothing,
            class_weights: at.constants,
            ignored: self.ignored,
            weight: at.weight,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_loss;
    use super::*;

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        check_loss(Shape::features(5), SoftmaxCrossEntropy::default());
    }

    #[test]
    fn with_smoothing_and_class_weights_it_is_that_of_finite_differences() {
        let class_weights = vec![0.5, 1.0, 2.0, 0.25, 3.0];
        check_loss(Shape::features(5), SoftmaxCrossEntropy { smoothing: 0.1, class_weights, ..Default::default() });
    }

    #[test]
    fn with_a_label_for_each_pixel_some_of_them_ignored_it_is_that_of_finite_differences() {
        check_loss(
            Shape::image(4, 3, 2),
            SoftmaxCrossEntropy { smoothing: 0.2, ignored: Some(2), per_pixel: true, ..Default::default() },
        );
    }
}
