//! Cross-entropy of softmax against labels, as `torch.nn.CrossEntropyLoss`: for logits `z`, label
//! `c`, smoothing `ε` and class weights `w` (1 where none are given), with `lp = z − log Σ exp z`:
//! `loss = −(1 − ε)·w_c·lp_c − ε/K·Σ_k w_k·lp_k`.
//!
//! With a label for each pixel a sample's loss is the average over its pixels; a pixel whose label
//! is ignored adds nothing. PyTorch's mean of a batch divides by the weights of its labels. So does
//! ours, for the whole batch of a step: each sample's loss is multiplied by
//! [`Batch::importance`](crate::Batch), the labels of the step divided by the sum of their weights,
//! and the mean over the samples is `Σ w_c·loss / Σ w_c` over all workers.

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
    use super::super::testing::{check_loss, mean_loss};
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

    /// PyTorch 2.15.0, in double precision:
    /// `CrossEntropyLoss(weight=[0.5, 2, 4], ignore_index=255, label_smoothing=ε)`.
    #[test]
    fn with_the_importance_of_its_labels_it_is_the_weighted_mean_of_pytorch() {
        #[rustfmt::skip]
        let z = [
            0.5, -1.0, 2.0, 0.25, 1.5, 0.75, -0.5, 1.0, -0.25, 0.5, 1.25, -2.0,
            1.0, -0.5, 0.5, 0.0, -1.5, 2.5, 0.75, -0.25, 0.25, 1.0, -1.0, 1.5,
        ];
        let labels = [0, 2, 255, 1, 2, 1, 0, 255];
        #[rustfmt::skip]
        let recorded = [
            (0.0, 0.841_535_674_631_399_3, [
                -0.02928359, 0.02738379, 0.0, 0.04774274, 0.02494824, 0.15758286, 0.0, -0.05277478,
                0.00433535, -0.18496665, 0.0, 0.00503205, 0.19794268, 0.00601732, -0.02312083, 0.0,
                0.01624812, -0.03298507, 0.01969786, 0.0, -0.21419081, 0.02696775, 0.00342297, 0.0,
            ]),
            (0.1, 0.919_059_383_173_239_7, [
                -0.02366018, 0.02484665, 0.0, 0.04685854, 0.02813611, 0.14523211, 0.0, -0.04167611,
                -0.00447594, -0.17007876, 0.0, -0.00518243, 0.18758826, 0.00478541, -0.01544316, 0.0,
                0.01037521, -0.02172149, 0.0211356, 0.0, -0.19796347, 0.01693607, -0.00569244, 0.0,
            ]),
        ];
        for (smoothing, mean, gradient) in recorded {
            let class_weights = vec![0.5, 2.0, 4.0];
            let loss = SoftmaxCrossEntropy { smoothing, class_weights, ignored: Some(255), per_pixel: true };
            // Eight labels, and the weights of six: ½ + 4 + 2 + 4 + 2 + ½.
            let (found, found_gradient) = mean_loss(Shape::image(3, 2, 2), loss, &z, &labels, 8.0 / 13.0);
            assert!((found - mean).abs() < 1e-6, "{found}, not {mean}");
            for (found, expected) in found_gradient.iter().zip(gradient) {
                let expected: f32 = expected;
                assert!((found - expected).abs() < 1e-6, "{found_gradient:?}");
            }
        }
    }

    #[test]
    fn with_a_label_for_each_pixel_some_of_them_ignored_it_is_that_of_finite_differences() {
        check_loss(
            Shape::image(4, 3, 2),
            SoftmaxCrossEntropy { smoothing: 0.2, ignored: Some(2), per_pixel: true, ..Default::default() },
        );
    }
}
