use std::ops::Range;

use super::{Batch, fill};
use crate::{Samples, Tally};

/// A run of samples in order, in micro-batches of one buffer.
#[derive(Debug)]
pub struct Evaluation<'a> {
    samples: &'a Samples,
    left: Range<u64>,
    micro_batch: usize,
    batch: Batch,
}

impl<'a> Evaluation<'a> {
    /// The samples `run`, at most `micro_batch` at a time.
    ///
    /// # Panics
    /// When `micro_batch` is 0, or later where there are no such samples.
    #[must_use]
    pub fn new(samples: &'a Samples, run: Range<u64>, micro_batch: usize) -> Self {
        assert!(micro_batch > 0, "micro-batches of no samples");
        let batch = Batch {
            images: Vec::new(),
            labels: Vec::new(),
            group_ends: Vec::new(),
            keys: Vec::new(),
            importance: 1.0,
            samples: 0,
            taken: Tally::default(),
            home: None,
        };
        Self { samples, left: run, micro_batch, batch }
    }

    /// The next micro-batch; `None` after the last.
    pub fn next_batch(&mut self) -> Option<&Batch> {
        if self.left.is_empty() {
            return None;
        }
        let last = self.left.end.min(self.left.start + self.micro_batch as u64);
        let ids: Vec<u64> = (self.left.start..last).collect();
        self.batch.taken = fill(self.samples, &ids, None, &mut self.batch.images, &mut self.batch.labels);
        (self.batch.samples, self.left.start) = (ids.len(), last);
        Some(&self.batch)
    }
}
