//! Random samples of any shape, to measure a model's speed without a data set. They lie nowhere:
//! each is drawn when it is wanted, and its bits depend on the seed and its number alone. There is
//! nothing to learn from them.

use crate::{Dataset, Normalise, Permutation, Samples, Shape, held_out::held_out};

/// Mean and standard deviation of a uniform byte, as shares of its greatest value.
const UNIFORM: (f32, f32) = (0.5, 0.288_675_14);
/// Stands where a permutation takes its epoch, so that the order of the classes is no epoch's
/// order.
const CLASS_ORDER: u64 = u64::MAX;

/// `samples` samples, as many of each class as the number allows, the last `⌊samples ·
/// evaluation_fraction⌋` of them held out.
///
/// # Panics
/// When there are no classes or more than [`crate::MAX_CLASSES`], or `evaluation_fraction` is not
/// in 0 to 1.
#[must_use]
pub fn draw(shape: Shape, classes: usize, samples: usize, seed: u64, evaluation_fraction: f64) -> Dataset {
    assert!((0.0..=1.0).contains(&evaluation_fraction), "evaluation fraction {evaluation_fraction}");
    let order = Permutation::new(seed, CLASS_ORDER, samples as u64);
    let labels = (0..samples as u64).map(|index| (order.at(index) % classes as u64) as u32).collect();
    let moments = Normalise { mean: vec![UNIFORM.0; shape.channels], std: vec![UNIFORM.1; shape.channels] };
    let all = Samples::random(shape, classes, labels, seed).normalised(moments);
    all.split(held_out(samples, evaluation_fraction))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evaluation;

    #[test]
    fn values_have_mean_0_and_variance_1_and_classes_are_equally_frequent() {
        let Dataset { train, evaluation } = draw(Shape { channels: 3, height: 16, width: 16 }, 1000, 5000, 1, 0.2);
        assert_eq!((train.len(), evaluation.len(), train.classes()), (4000, 1000, 1000));
        let mut loader = Evaluation::new(&train, 0..64, 64);
        let batch = loader.next_batch().expect("samples");
        let count = batch.images.len() as f32;
        let mean = batch.images.iter().sum::<f32>() / count;
        let variance = batch.images.iter().map(|value| value * value).sum::<f32>() / count;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "mean {mean}, variance {variance}");
        let mut counts = vec![0; 1000];
        train.labels().iter().chain(evaluation.labels()).for_each(|label| counts[*label as usize] += 1);
        assert!(counts.iter().all(|count| *count == 5));
    }
}
