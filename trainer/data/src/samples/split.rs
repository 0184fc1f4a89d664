//! Samples that are held out for evaluation.

use std::sync::{Arc, OnceLock};

use super::{Content, Dataset, Labels, Samples};

impl Samples {
    /// The first samples and the last `held_out`. Pictures are split by class when they are listed.
    pub(crate) fn split(mut self, held_out: usize) -> Dataset {
        let kept = self.len() - held_out;
        let content = match &mut self.content {
            Content::Memory(pixels) => Content::Memory(pixels.split_off(kept * self.shape.bytes())),
            Content::Values(values) => Content::Values(values.split_off(kept * self.shape.bytes())),
            Content::Random { seed, first } => Content::Random { seed: *seed, first: *first + kept as u64 },
            Content::Pictures(pictures) => unreachable!("{pictures:?} are split already"),
        };
        let labels = match &mut self.labels {
            Labels::Samples(labels) => Labels::Samples(labels.split_off(kept)),
            Labels::Pixels(masks) => Labels::Pixels(masks.split_off(kept)),
        };
        let evaluation = Self {
            labels,
            content,
            class_names: Arc::clone(&self.class_names),
            normalise: self.normalise.clone(),
            augment: self.augment.clone(),
            class_weights: Arc::clone(&self.class_weights),
            weights: OnceLock::new(),
            ..self
        };
        Dataset { train: self, evaluation }
    }
}
