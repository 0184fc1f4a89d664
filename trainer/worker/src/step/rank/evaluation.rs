//! The evaluation of the state by all ranks, and the agreement whether it is the best so far.

use std::time::Instant;

use lockstep_checkpoint::Metric;

use super::Rank;
use crate::{failure::Failure, lines::Evaluation, progress::phase_clock::Phase, trainee::Evaluated};

/// Numbers behind the sums that tell of the best checkpoint: one if there is one, its loss and its
/// accuracy.
const KNOWN: usize = 3;

/// An evaluation on which all ranks agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AgreedEvaluation {
    pub found: Evaluation,
    /// True if the job keeps its best checkpoint, and no earlier one is as good.
    pub is_best: bool,
}

impl Rank<'_> {
    /// Evaluates the state on the held-out samples, each rank on its share. `None` if none are held
    /// out. `best_by` is the metric by which the job keeps its best checkpoint, if it does; `known`
    /// is the evaluation of that, which the reporting worker knows. It travels with the sum.
    pub(crate) fn evaluate(
        &mut self,
        best_by: Option<Metric>,
        known: Option<Evaluation>,
    ) -> Result<Option<AgreedEvaluation>, Failure> {
        self.session.metrics.phases.end_period(Phase::Other, Instant::now());
        let mut parts = Vec::new();
        for part in self.seat.parts(self.state.held_out()) {
            parts.push(self.state.evaluate(part, self.session.work()).slots());
        }
        if parts.is_empty() {
            parts.push(self.state.evaluate(0..0, self.session.work()).slots());
        }
        let mut sums = added_in_pairs(parts);
        let own = known.map_or([0.0; KNOWN], |known| [1.0, known.loss as f32, known.accuracy as f32]);
        sums.extend(own);
        self.sum(&mut sums)?;
        self.session.metrics.phases.end_period(Phase::Evaluation, Instant::now());
        self.rest();
        let (judged, agreed) = sums.split_at(sums.len() - KNOWN);
        let known = (agreed[0] > 0.0).then(|| {
            let [loss, accuracy] = [agreed[1], agreed[2]].map(f64::from);
            Evaluation { loss, accuracy, mean_iou: None }
        });
        let found = Evaluated::of_sums(judged).means();
        let agreed = |found| AgreedEvaluation { found, is_best: best_by.is_some_and(|by| is_better(by, found, known)) };
        Ok(found.map(agreed))
    }
}

/// Returns true if a new state is better than the best that is known. Known values were rounded to
/// `f32` on their way.
fn is_better(metric: Metric, found: Evaluation, known: Option<Evaluation>) -> bool {
    let rounded = |value: f64| f64::from(value as f32);
    let found = Evaluation { loss: rounded(found.loss), accuracy: rounded(found.accuracy), ..found };
    found.is_finite() && known.is_none_or(|known| metric.prefers(found, known))
}

/// Adds 2ᵏ parts as a binary tree over them does.
fn added_in_pairs(mut parts: Vec<Vec<f32>>) -> Vec<f32> {
    while parts.len() > 1 {
        let add = |pair: &[Vec<f32>]| match pair {
            [one, other] => one.iter().zip(other).map(|(one, other)| one + other).collect(),
            alone => alone.concat(),
        };
        parts = parts.chunks(2).map(add).collect();
    }
    parts.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_as_good_as_the_best_is_no_better() {
        let found = Evaluation { loss: 0.1, accuracy: 1.0 / 3.0, mean_iou: None };
        let known = Evaluation { loss: f64::from(0.1_f32), accuracy: f64::from((1.0_f64 / 3.0) as f32), ..found };
        assert!(!is_better(Metric::Accuracy, found, Some(known)) && !is_better(Metric::Loss, found, Some(known)));
        let better = Evaluation { loss: 0.2, accuracy: 0.5, ..found };
        assert!(is_better(Metric::Accuracy, better, Some(known)) && !is_better(Metric::Loss, better, Some(known)));
        assert!(is_better(Metric::Loss, better, None));
        assert!(!is_better(Metric::Loss, Evaluation { loss: f64::NAN, ..better }, None));
    }
}
