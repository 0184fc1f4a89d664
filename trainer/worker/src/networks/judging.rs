//! Held-out samples, judged: the losses of a network, its right answers, and for masks how each
//! class overlaps.

use std::ops::Range;

use lockstep_data::{Evaluation as EvaluationLoader, Samples};
use lockstep_elastic::{Activity, ActivityMonitor};
use lockstep_nn::{Cpu, Replica};

use super::gradients::with_samples;
use crate::trainee::{Evaluated, Overlap};

/// Judges the samples `run` of `held_out`.
pub(super) fn judge(
    replica: &mut Replica<Cpu>,
    held_out: &Samples,
    run: Range<u64>,
    micro_batch: usize,
    work: &ActivityMonitor,
) -> Evaluated {
    let classes = if held_out.has_masks() { held_out.classes() } else { 0 };
    let mut found = Evaluated { overlaps: vec![Overlap::default(); classes], ..Evaluated::default() };
    let weight_of = |label: &u32| match held_out.ignored() {
        Some(ignored) if ignored == *label => None,
        Some(_) | None => Some(held_out.class_weights().get(*label as usize).map_or(1.0, |weight| f64::from(*weight))),
    };
    let mut predictions = Vec::new();
    let mut loader = EvaluationLoader::new(held_out, run, micro_batch);
    while let Some(batch) = work.during(Activity::Storing, || loader.next_batch()) {
        let labels_of_one = batch.labels.len() / batch.len();
        let judged = with_samples(batch, |samples| {
            if classes == 0 {
                return replica.evaluate_batch(samples);
            }
            replica.evaluate_and_predict(samples, &mut predictions)
        });
        // A sample's loss is the mean over its labels.
        found.loss += judged.loss_sum * labels_of_one as f64;
        found.correct += judged.correct;
        for weight in batch.labels.iter().filter_map(weight_of) {
            found.answers += 1;
            found.weight += weight;
        }
        if classes > 0 {
            add_overlaps(&predictions, &batch.labels, labels_of_one, &mut found.overlaps);
        }
    }
    found
}

/// Adds the pixels of samples to the overlaps of their classes. `predictions` are sample × class ×
/// pixel; a label that is no class does not count.
fn add_overlaps(predictions: &[f32], labels: &[u32], pixels: usize, overlaps: &mut [Overlap]) {
    let classes = overlaps.len();
    for (scores, labels) in predictions.chunks(classes * pixels).zip(labels.chunks(pixels)) {
        for (pixel, label) in labels.iter().map(|label| *label as usize).enumerate() {
            if label >= classes {
                continue;
            }
            let score = |class: usize| scores[class * pixels + pixel];
            let answer = (1..classes).fold(0, |best, class| if score(class) > score(best) { class } else { best });
            overlaps[label].either += 1;
            if answer == label {
                overlaps[label].both += 1;
            } else {
                overlaps[answer].either += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_that_do_not_count_are_in_no_overlap() {
        // Answers of four pixels: 0, 1, 1, 0.
        let scores = [2.0, 0.0, 0.0, 3.0, 1.0, 1.0, 5.0, 0.0];
        let mut overlaps = [Overlap::default(); 2];
        add_overlaps(&scores, &[0, 1, 0, 255], 4, &mut overlaps);
        assert_eq!(overlaps, [Overlap { both: 1, either: 2 }, Overlap { both: 1, either: 2 }]);
    }
}
