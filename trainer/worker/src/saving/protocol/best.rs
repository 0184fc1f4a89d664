//! The best checkpoint of a job, which is kept besides the newest ones.

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
        *self.best.get_or_insert_with(|| self.storage.best_until(step))
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
