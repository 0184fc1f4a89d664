//! What rank 0 does besides training: journal, reports to the coordinator, checkpoints.

use std::time::{Duration, Instant};

use lockstep_checkpoint::Position;
use lockstep_elastic::{Group, Membership};
use lockstep_launch::Progress;
use tracing::warn;

use crate::{
    communication::Agreed,
    failure::Failure,
    journal::{Evaluation, EvaluationLine, Journal, StepLine},
    metrics::{Metrics, Phase},
    storage::Storage,
    training::{Done, Rank, Recipe},
};

/// Time between two reports to the coordinator.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// What rank 0 does besides training: journal, reports, checkpoints.
pub(crate) struct Reporter<'a> {
    membership: &'a Membership,
    group: &'a Group,
    storage: &'a Storage,
    metrics: &'a Metrics,
    journal: Journal,
    progress: Progress,
    reported: Option<Instant>,
    saved: Instant,
    /// How the group sums.
    communication: &'a Agreed,
    interval: Duration,
}

impl<'a> Reporter<'a> {
    /// Goes on where the group begins; a checkpoint is due each `interval`.
    pub(crate) fn open(
        membership: &'a Membership,
        group: &'a Group,
        storage: &'a Storage,
        metrics: &'a Metrics,
        recipe: &Recipe,
        communication: &'a Agreed,
        interval: Duration,
    ) -> Result<Self, Failure> {
        let folder = storage.path();
        let (journal, accuracy) = Journal::continue_after(folder, group.base_step)
            .map_err(|error| Failure::retry(format!("{}: {error}", folder.display())))?;
        let progress = Progress {
            step: group.base_step,
            total_steps: recipe.total_steps,
            epoch: group.base_step / recipe.steps_per_epoch,
            generation: group.generation,
            world_size: group.world,
            accuracy: accuracy.map(|(_, accuracy)| accuracy),
            accuracy_step: accuracy.map(|(step, _)| step),
            communication: communication.report,
            ..Progress::default()
        };
        let (reported, saved) = (None, Instant::now());
        Ok(Self { membership, group, storage, metrics, journal, progress, reported, saved, communication, interval })
    }

    fn write(&mut self, line: &impl serde::Serialize) -> Result<(), Failure> {
        self.journal.write(line).map_err(|error| Failure::retry(format!("metrics.jsonl: {error}")))
    }

    /// What it told last.
    pub(crate) fn progress(self) -> Progress {
        self.progress
    }

    /// Takes down a step.
    pub(crate) fn step(&mut self, rank: &Rank, done: &Done) -> Result<(), Failure> {
        let progress = rank.progress(done);
        let world_size = progress.world_size;
        self.progress = Progress {
            accuracy: self.progress.accuracy,
            accuracy_step: self.progress.accuracy_step,
            last_checkpoint: self.progress.last_checkpoint.take(),
            communication: self.progress.communication,
            generation: self.group.generation,
            ..progress
        };
        self.write(&StepLine {
            step: done.step,
            epoch: done.epoch,
            generation: self.group.generation,
            world_size,
            loss: done.loss,
            learning_rate: rank.recipe().rate,
            samples_per_second: done.samples as f64 / done.seconds,
            step_seconds: done.seconds,
        })?;
        self.report(false)
    }

    /// Takes down an evaluation of the state after `step` steps.
    pub(crate) fn evaluated(&mut self, step: u64, epoch: u64, found: Evaluation) -> Result<(), Failure> {
        self.write(&EvaluationLine { step, epoch, evaluation: found })?;
        self.progress.accuracy = Some(found.accuracy);
        self.progress.accuracy_step = Some(step);
        self.progress.epoch = epoch;
        self.report(true)
    }

    /// Tells the coordinator, unless it was told just before and this is no news.
    pub(crate) fn report(&mut self, news: bool) -> Result<(), Failure> {
        if !news && self.reported.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return Ok(());
        }
        self.reported = Some(Instant::now());
        self.progress.time = Some(jiff::Timestamp::now().to_string());
        self.metrics.report(&self.progress);
        self.membership.progress(self.progress.step, serde_json::to_vec(&self.progress).map_err(Failure::fatal)?);
        if let Err(error) = self.journal.flush() {
            warn!(%error, "metrics.jsonl not written; its lines wait");
        }
        Ok(())
    }

    /// Whether it is time for a checkpoint.
    pub(crate) fn checkpoint_due(&self) -> bool {
        self.saved.elapsed() >= self.interval
    }

    /// Saves the state after the steps that are done, once their lines are stored.
    pub(crate) fn save(&mut self, rank: &mut Rank) -> Result<(), Failure> {
        let begun = Instant::now();
        self.saved = begun;
        self.journal.store().map_err(|error| Failure::retry(format!("metrics.jsonl: {error}")))?;
        let Recipe { steps_per_epoch, global_batch, seed, .. } = *rank.recipe();
        let step = rank.step();
        let position = Position {
            step,
            epoch: step / steps_per_epoch,
            cursor: step % steps_per_epoch * global_batch,
            seed,
            generation: self.group.generation,
        };
        let saved = self.storage.save(rank.replica_mut(), position, &self.communication.record);
        self.saved = Instant::now();
        rank.rest();
        let seconds = begun.elapsed().as_secs_f64();
        self.metrics.spent(Phase::Checkpoint, seconds);
        let (mark, manifest) = saved?;
        self.metrics.checkpoint_duration.observe(seconds);
        self.membership.checkpoint(mark.step, manifest);
        self.progress.last_checkpoint = Some(mark);
        Ok(())
    }
}
