//! The best checkpoint of a job, which is kept besides the newest ones.

use lockstep_checkpoint::Metric;
use lockstep_launch::{BestMark, BestMetric, CheckpointMark};
use tracing::info;

use super::Saver;
use crate::{lines::Evaluation, step::rank::Rank};

impl Saver<'_> {
    /// Returns the evaluation of the best checkpoint that is stored or under way, if the job keeps
    /// one. Only the reporting worker looks for it.
    pub(crate) fn best(&mut self, step: u64) -> Option<Evaluation> {
        if !self.reports || self.storage.best_by().is_none() {
            return None;
        }
        if self.best.is_none() {
            self.stored_best = self.storage.best_until(step);
            self.best = Some(self.stored_best.as_ref().map(|(evaluation, _)| *evaluation));
        }
        self.best.flatten()
    }

    /// Notes a checkpoint that became whole. Before this worker looked for the best one, it does
    /// not know which is better.
    pub(super) fn note_stored(&mut self, mark: &CheckpointMark, evaluation: Option<Evaluation>) {
        let (Some(metric), Some(found), Some(_)) = (self.storage.best_by(), evaluation, self.best) else { return };
        if self.stored_best.as_ref().is_none_or(|(best, _)| metric.prefers(found, *best)) {
            self.stored_best = Some((found, mark.clone()));
        }
    }

    /// Returns the best checkpoint that is stored, for reports.
    pub(super) fn stored_best(&self) -> Option<BestMark> {
        let ((evaluation, mark), metric) = self.stored_best.as_ref().zip(self.storage.best_by())?;
        let (metric, value) = match metric {
            Metric::Accuracy => (BestMetric::Accuracy, evaluation.accuracy),
            Metric::Loss => (BestMetric::Loss, evaluation.loss),
        };
        let CheckpointMark { step, uri, time, .. } = mark.clone();
        Some(BestMark { step, uri, time, metric, value })
    }

    /// Saves the state after the newest step, which an evaluation found better than all before. An
    /// earlier checkpoint that is not stored yet is given up: all ranks still wait for its parts.
    pub(crate) fn copy_best(&mut self, rank: &mut Rank<'_>, found: Evaluation) {
        if let Some(given_up) = self.copied.take() {
            info!(step = given_up.position.step, "checkpoint given up for a better one");
            self.snapshotter.cancel();
        }
        self.copy(rank);
        self.best = Some(Some(found));
    }
}
