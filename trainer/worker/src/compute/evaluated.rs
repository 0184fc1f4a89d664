//! The result of an evaluation, as numbers that ranks add, and what follows from their sums.

use std::iter;

use crate::{
    lines::Evaluation,
    trainee::{Evaluated, Overlap},
};

/// Bits of a count that go into one slot: the slots of 4,096 ranks are added without rounding.
const BITS: usize = 12;
/// Slots of a count, which is below 2⁴⁸.
const DIGITS: usize = 4;

impl Evaluated {
    /// Returns one rank's values. Ranks with as many classes have as many.
    pub(crate) fn slots(&self) -> Vec<f32> {
        let Self { loss, weight, correct, answers, overlaps } = self;
        let overlaps = overlaps.iter().flat_map(|Overlap { both, either }| [*both, *either]);
        let counts = [*correct, *answers].into_iter().chain(overlaps);
        [*loss as f32, *weight as f32].into_iter().chain(counts.flat_map(digits)).collect()
    }

    /// Reads the values of all ranks from their added slots.
    pub(crate) fn of_sums(slots: &[f32]) -> Self {
        let (sums, digits) = slots.split_at(2);
        let counts: Vec<u64> = digits.chunks(DIGITS).map(count).collect();
        let (all, overlaps) = counts.split_at(2);
        Self {
            loss: sums[0].into(),
            weight: sums[1].into(),
            correct: all[0],
            answers: all[1],
            overlaps: overlaps
                .as_chunks()
                .0
                .iter()
                .map(|[both, either]| Overlap { both: *both, either: *either })
                .collect(),
        }
    }

    /// Returns the means. `None` if nothing was judged.
    pub(crate) fn means(&self) -> Option<Evaluation> {
        let Self { loss, weight, correct, answers, overlaps } = self;
        (*answers > 0).then(|| Evaluation {
            loss: if *weight > 0.0 { loss / weight } else { 0.0 },
            accuracy: *correct as f64 / *answers as f64,
            mean_iou: mean_iou(overlaps),
        })
    }
}

/// The mean over the classes of the pixels that have a class and are taken for it, divided by those
/// of which one is true. A class that occurs in neither is left out.
fn mean_iou(overlaps: &[Overlap]) -> Option<f64> {
    let known = overlaps.iter().filter(|overlap| overlap.either > 0);
    let shares: Vec<f64> = known.map(|Overlap { both, either }| *both as f64 / *either as f64).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

fn digits(count: u64) -> [f32; DIGITS] {
    std::array::from_fn(|digit| (count >> (BITS * digit) & ((1 << BITS) - 1)) as f32)
}

fn count(digits: &[f32]) -> u64 {
    let shifts = iter::successors(Some(0), |shift| Some(shift + BITS));
    digits.iter().zip(shifts).map(|(digit, shift)| (*digit as u64) << shift).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(both: u64, either: u64) -> Overlap {
        Overlap { both, either }
    }

    #[test]
    fn counts_of_many_ranks_add_up_beyond_what_a_float_holds() {
        let one = Evaluated {
            loss: 1.5,
            weight: 2.0,
            correct: 16_777_217,
            answers: (1 << 36) - 1,
            overlaps: vec![overlap(3, 7_654_321), overlap(0, 1)],
        };
        let mut sums = vec![0.0; one.slots().len()];
        for _ in 0..1000 {
            sums.iter_mut().zip(one.slots()).for_each(|(sum, slot)| *sum += slot);
        }
        let all = Evaluated::of_sums(&sums);
        assert_eq!((all.correct, all.answers), (16_777_217_000, ((1 << 36) - 1) * 1000));
        assert_eq!(all.overlaps, [overlap(3000, 7_654_321_000), overlap(0, 1000)]);
        assert_eq!((all.loss, all.weight), (1500.0, 2000.0));
    }

    #[test]
    fn classes_that_occur_nowhere_do_not_lower_the_mean() {
        let overlaps = vec![overlap(3, 4), overlap(0, 0), overlap(1, 4)];
        let found = Evaluated { loss: 3.0, weight: 6.0, correct: 9, answers: 10, overlaps };
        assert_eq!(found.means(), Some(Evaluation { loss: 0.5, accuracy: 0.9, mean_iou: Some(0.5) }));
        assert_eq!(Evaluated::default().means(), None);
    }
}
