//! Which classes a model takes for which.

use serde::Serialize;

use super::replica::ranked;

/// Counts of answers, by the true class and the predicted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Confusion {
    classes: usize,
    /// Row by row: the true class; column by column: the predicted one.
    counts: Vec<u64>,
    /// Answers with the true class among the five likeliest.
    among_five: u64,
}

/// The figures of one class. Each is `None` where it would divide by zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct ClassFigures {
    /// Samples of the class.
    pub samples: u64,
    /// The share of all answers that are right about this class: that a sample is of it, or is not.
    pub accuracy: Option<f64>,
    /// The share of the answers with this class that are right.
    pub precision: Option<f64>,
    /// The share of the samples of this class that are found.
    pub recall: Option<f64>,
}

/// How often one class was taken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub truth: usize,
    pub predicted: usize,
    pub count: u64,
}

impl Confusion {
    pub(super) fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0; classes * classes], among_five: 0 }
    }

    /// Counts an answer. Labels that are no class, such as those of pixels that do not count, are
    /// left out.
    pub(super) fn add(&mut self, label: u32, logits: &[f32]) {
        let truth = label as usize;
        if truth >= self.classes {
            return;
        }
        let ranked = ranked(logits);
        self.counts[truth * self.classes + ranked[0]] += 1;
        self.among_five += u64::from(ranked.iter().take(5).any(|class| *class == truth));
    }

    pub(super) fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn right(&self) -> u64 {
        (0..self.classes).map(|class| self.of(class, class)).sum()
    }

    /// The share of answers with the true class among the five likeliest.
    pub(super) fn top_five(&self) -> Option<f64> {
        share(self.among_five, self.samples())
    }

    pub(super) fn accuracy(&self) -> Option<f64> {
        share(self.right(), self.samples())
    }

    pub(super) const fn classes(&self) -> usize {
        self.classes
    }

    /// The samples of class `truth` that were taken for `predicted`.
    pub(super) fn of(&self, truth: usize, predicted: usize) -> u64 {
        self.counts[truth * self.classes + predicted]
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &[u64]> {
        self.counts.chunks(self.classes)
    }

    pub(super) fn figures(&self, class: usize) -> ClassFigures {
        let all = self.samples();
        let right = self.of(class, class);
        let samples = (0..self.classes).map(|predicted| self.of(class, predicted)).sum();
        let predicted = (0..self.classes).map(|truth| self.of(truth, class)).sum();
        let wrong = (samples - right) + (predicted - right);
        ClassFigures {
            samples,
            accuracy: share(all - wrong, all),
            precision: share(right, predicted),
            recall: share(right, samples),
        }
    }

    /// The mean over the classes that occur: the answers that are right, divided by those of which
    /// the class is true or predicted.
    pub(super) fn mean_iou(&self) -> Option<f64> {
        let of = |class: usize| {
            let sums = (0..self.classes).map(|other| self.of(class, other) + self.of(other, class));
            share(self.of(class, class), sums.sum::<u64>() - self.of(class, class))
        };
        let shares: Vec<f64> = (0..self.classes).filter_map(of).collect();
        (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    }

    /// Mistakes, the most frequent first; of equals in the order of the classes.
    pub(super) fn mistakes(&self) -> Vec<Mistake> {
        let all = (0..self.classes).flat_map(|truth| (0..self.classes).map(move |predicted| (truth, predicted)));
        let wrong = all.filter(|(truth, predicted)| truth != predicted);
        let counted = wrong.map(|(truth, predicted)| Mistake { truth, predicted, count: self.of(truth, predicted) });
        let mut mistakes: Vec<_> = counted.filter(|mistake| mistake.count > 0).collect();
        mistakes.sort_by_key(|mistake| std::cmp::Reverse(mistake.count));
        mistakes
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six samples of three classes: cats are found, a dog is taken for a cat, no fox is there.
    fn confusion() -> Confusion {
        let mut confusion = Confusion::new(3);
        let answers = [(0, 0), (0, 0), (1, 1), (1, 0), (1, 1), (1, 1)];
        for (truth, predicted) in answers {
            let logits: Vec<f32> = (0..3).map(|class| if class == predicted { 1.0 } else { 0.0 }).collect();
            confusion.add(truth, &logits);
        }
        confusion
    }

    #[test]
    fn each_class_has_its_accuracy_precision_and_recall() {
        let confusion = confusion();
        assert_eq!((confusion.samples(), confusion.right(), confusion.accuracy()), (6, 5, Some(5.0 / 6.0)));
        let [cat, dog, fox] = [0, 1, 2].map(|class| confusion.figures(class));
        assert_eq!((cat.precision, cat.recall, cat.accuracy), (Some(2.0 / 3.0), Some(1.0), Some(5.0 / 6.0)));
        assert_eq!((dog.samples, dog.precision, dog.recall), (4, Some(1.0), Some(0.75)));
        assert_eq!(confusion.mean_iou(), Some((2.0 / 3.0 + 0.75) / 2.0));
        assert_eq!(fox, ClassFigures { samples: 0, accuracy: Some(1.0), precision: None, recall: None });
    }

    #[test]
    fn mistakes_are_in_the_order_of_their_number() {
        assert_eq!(confusion().mistakes(), [Mistake { truth: 1, predicted: 0, count: 1 }]);
    }

    #[test]
    fn the_true_class_counts_among_the_five_likeliest() {
        let mut confusion = Confusion::new(10);
        let logits: Vec<f32> = (0..10).map(|class| -(class as f32)).collect();
        for label in [0, 4, 5, 9, 255] {
            confusion.add(label, &logits);
        }
        assert_eq!((confusion.samples(), confusion.right(), confusion.top_five()), (4, 1, Some(0.5)));
    }
}
