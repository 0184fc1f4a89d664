use serde::{Deserialize, Serialize};

/// Facts about a model that a checkpoint holds for those who use it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The description of the model, in the trainer's own spelling. A load returns it unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The evaluation of exactly this state, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Evaluation>,
    /// The metric by which the job keeps its best checkpoint besides the newest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_by: Option<Metric>,
}

/// The result of judging a state by the held-out samples. All values are finite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The mean loss, in nats.
    pub loss: f64,
    /// The share of right answers, 0 to 1: one for each sample, or for each of its pixels.
    pub accuracy: f64,
    /// The mean over the classes of intersection over union, where each pixel has a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_iou: Option<f64>,
}

impl Evaluation {
    /// True if a manifest can hold the values.
    #[must_use]
    pub fn is_finite(self) -> bool {
        self.loss.is_finite() && self.accuracy.is_finite() && self.mean_iou.is_none_or(f64::is_finite)
    }
}

/// A metric that says which of two states is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// The greatest accuracy.
    Accuracy,
    /// The least loss.
    Loss,
}

impl Metric {
    /// The name that a manifest uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Loss => "loss",
        }
    }

    /// The values of an evaluation, of which the greatest is the best. The other metric decides
    /// between equals.
    fn worth(self, Evaluation { loss, accuracy, .. }: Evaluation) -> [f64; 2] {
        match self {
            Self::Accuracy => [accuracy, -loss],
            Self::Loss => [-loss, accuracy],
        }
    }

    /// True if the first evaluation is better than the second.
    #[must_use]
    pub fn prefers(self, one: Evaluation, other: Evaluation) -> bool {
        self.worth(one) > self.worth(other)
    }

    /// The best of several states by their evaluations; the first of equals.
    pub fn best<T>(self, states: impl IntoIterator<Item = (T, Option<Evaluation>)>) -> Option<T> {
        let evaluated = states.into_iter().filter_map(|(state, evaluation)| Some((state, evaluation?)));
        let better =
            |best: (T, Evaluation), next: (T, Evaluation)| if self.prefers(next.1, best.1) { next } else { best };
        evaluated.reduce(better).map(|(state, _)| state)
    }
}

impl About {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORSE: Evaluation = Evaluation { loss: 0.5, accuracy: 0.8, mean_iou: None };
    const SURER: Evaluation = Evaluation { loss: 0.2, accuracy: 0.8, mean_iou: None };
    const RIGHTER: Evaluation = Evaluation { loss: 0.6, accuracy: 0.9, mean_iou: None };

    #[test]
    fn the_other_metric_decides_between_equals() {
        let states = [(1, Some(WORSE)), (2, Some(SURER)), (3, None), (4, Some(SURER))];
        assert_eq!(Metric::Accuracy.best(states), Some(2));
        assert!(Metric::Accuracy.prefers(SURER, WORSE) && !Metric::Accuracy.prefers(SURER, SURER));
    }

    #[test]
    fn each_metric_has_its_own_best_state() {
        let states = [(1, Some(SURER)), (2, Some(RIGHTER))];
        assert_eq!((Metric::Loss.best(states), Metric::Accuracy.best(states)), (Some(1), Some(2)));
        assert_eq!(Metric::Loss.best([(1, None)]), None);
    }
}
