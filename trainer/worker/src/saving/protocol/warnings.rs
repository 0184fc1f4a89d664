//! Warnings of storage that is too slow.

use std::time::Duration;

use tracing::warn;

use super::{Outcome, Saver};
use crate::grace::short_grace;

impl Saver<'_> {
    /// Warns of storage that neither takes a checkpoint nor fails: it holds up all later ones.
    pub(super) fn warn_of_delay(&mut self) {
        let writing = self.copied.as_ref().filter(|copied| copied.part == Outcome::Unknown);
        let under_way = writing.or(self.committing.as_ref().map(|committing| &committing.copied));
        let lasts = under_way.map(|copied| copied.at.elapsed());
        if let (Some(copied), true) = (under_way, self.delay.is_due(lasts)) {
            let (step, seconds) = (copied.position.step, copied.at.elapsed().as_secs());
            warn!(
                step,
                seconds,
                uri = self.storage.uri(),
                "the storage has not taken a checkpoint yet; no other is begun before it has"
            );
            self.fails(&format!(
                "{}: the checkpoint of step {step} is being written for {seconds} s; check the storage",
                self.storage.uri()
            ));
        }
    }

    /// Checks that a process that is asked to end has time for another checkpoint that takes
    /// `saving`.
    pub(super) fn check_grace(&mut self, saving: Duration) {
        let step = self.membership.work().sample().step.unwrap_or_default();
        self.short_grace = short_grace(step, self.evaluating, saving, self.grace_seconds);
        if let Some(short) = self.short_grace.filter(|_| !self.has_warned) {
            self.has_warned = true;
            warn!("{short}");
        }
    }
}
