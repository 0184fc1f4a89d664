//! What one worker of a generation does besides training: journal, and reports to the coordinator.

use std::{
    collections::VecDeque,
    fs::File,
    time::{Duration, Instant},
};

use lockstep_elastic::{Assignment, Membership};
use lockstep_launch::{Progress, Straggler, Unsaved};
use tracing::{info, warn};

use crate::{
    communication::Agreed,
    compute::training_state::Trainee,
    failure::Failure,
    progress::metrics::Metrics,
    progress::metrics_log::{EvaluationLine, Journal, Kept, NotContinued, StepLine, Turn},
    saving::protocol::Saver,
    step::rank::{Rank, Recipe},
    storage::Storage,
    storage::retry::{Waits, told_of},
};

/// Time between two reports to the coordinator.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Steps that a journal may lack and has a line for each all the same: lines are written every second or so.
const MOST_UNSEEN: u64 = 100_000;

/// What one worker does besides training: journal, and reports.
pub(crate) struct Reporter<'a> {
    membership: &'a Membership,
    group: &'a Assignment,
    storage: &'a Storage,
    metrics: &'a Metrics,
    journal: Journal,
    /// For storage that took none when it was tried last.
    lines_wait: bool,
    progress: Progress,
    reported: Option<Instant>,
    /// Steps that the newest checkpoint holds, as far as this worker knows.
    saved_step: u64,
    /// How the group sums, as a checkpoint keeps it.
    communication_record: String,
}

impl<'a> Reporter<'a> {
    /// Goes on where the group begins, in the journal of `storage`.
    pub(crate) fn open(
        membership: &'a Membership,
        group: &'a Assignment,
        storage: &'a Storage,
        metrics: &'a Metrics,
        trainee: &Trainee,
        communication: &Agreed,
        turn: Turn<'_>,
    ) -> Result<Self, Failure> {
        let folder = storage.output();
        let continued = told_of(folder.display(), || Journal::continue_after(folder, turn, group.base.step));
        let (journal, mut kept) = continued.map_err(|error| match error {
            NotContinued::Io(error) => Failure::retry(format!("{}: {error}", folder.display())),
            NotContinued::Superseded => Failure::broken(format!("{}: {error}", folder.display())),
        })?;
        let Recipe { total_steps, steps_per_epoch, .. } = trainee.recipe;
        let progress = Progress {
            step: group.base.step,
            total_steps,
            epoch: group.base.step / steps_per_epoch,
            generation: group.generation,
            world_size: group.world,
            accuracy: kept.accuracy.map(|(_, accuracy)| accuracy),
            accuracy_step: kept.accuracy.map(|(step, _)| step),
            communication: communication.report,
            damaged_checkpoint: trainee.passed_over_for(group.base.step).cloned(),
            ..Progress::default()
        };
        // The journal of the one before ended with its pod, or somebody took it away.
        let lacks = group.base.step.saturating_sub(kept.step);
        if (kept.step == 0 && !storage.keeps_journals()) || lacks > MOST_UNSEEN {
            let first = trainee.remembered_after(kept.step).next().map_or(group.base.step + 1, |line| line.step);
            info!(first, base = group.base.step, "the journal has no lines of the steps before");
            kept.step = first - 1;
        }
        let reported = None;
        let communication_record = communication.record.clone();
        let mut reporter = Self {
            membership,
            group,
            storage,
            metrics,
            journal,
            lines_wait: false,
            progress,
            reported,
            saved_step: trainee.read_step(),
            communication_record,
        };
        reporter.make_up(trainee, kept)?;
        Ok(reporter)
    }

    /// Writes the lines that the worker which reported before took with it.
    fn make_up(&mut self, trainee: &Trainee, kept: Kept) -> Result<(), Failure> {
        let known: Vec<StepLine> = trainee.remembered_after(kept.step).cloned().collect();
        for line in owed(kept, self.group.base.step, &known, trainee.evaluations()) {
            match line {
                // All ranks did the step, but none that is left saw what came of it.
                Owed::Unseen(step) => {
                    self.write(&StepLine::unseen(step, trainee.recipe.steps_per_epoch, self.group.generation))?;
                }
                Owed::Step(line) => self.write(line)?,
                Owed::Evaluation(line) => self.evaluated(line)?,
            }
        }
        // Who comes after this worker may be one that never saw them.
        self.flush();
        Ok(())
    }

    /// Whether the state that the group began with was evaluated.
    pub(crate) fn has_evaluated(&self, step: u64) -> bool {
        self.progress.accuracy_step == Some(step)
    }

    fn write(&mut self, line: &impl serde::Serialize) -> Result<(), Failure> {
        self.journal.write(line).map_err(|error| Failure::retry(format!("metrics.jsonl: {error}")))
    }

    /// What it told last.
    pub(crate) fn progress(self) -> Progress {
        self.progress
    }

    /// Takes down a step.
    pub(crate) fn step(&mut self, rank: &Rank<'_>, line: &StepLine) -> Result<(), Failure> {
        self.progress = Progress {
            accuracy: self.progress.accuracy,
            accuracy_step: self.progress.accuracy_step,
            last_checkpoint: self.progress.last_checkpoint.take(),
            damaged_checkpoint: self.progress.damaged_checkpoint.take(),
            short_grace: self.progress.short_grace,
            unsaved: self.progress.unsaved.take(),
            communication: self.progress.communication,
            generation: self.group.generation,
            stragglers: rank.stragglers().into_iter().filter_map(|(rank, times)| self.straggler(rank, times)).collect(),
            ..rank.progress(line)
        };
        self.write(line)?;
        self.report(false)
    }

    fn straggler(&self, rank: usize, times: f64) -> Option<Straggler> {
        let pod = self.group.pods.get(rank)?.clone();
        // More digits would differ in each report.
        Some(Straggler { pod, times: (times * 10.0).round() / 10.0 })
    }

    /// Takes down an evaluation.
    pub(crate) fn evaluated(&mut self, line: &EvaluationLine) -> Result<(), Failure> {
        self.write(line)?;
        self.progress.accuracy = Some(line.evaluation.accuracy);
        self.progress.accuracy_step = Some(line.step);
        self.progress.epoch = line.epoch;
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
        self.flush();
        Ok(())
    }

    /// Writes the lines that were taken down, which stay where the disk does not take them.
    fn flush(&mut self) {
        let flushed = self.journal.flush();
        if let Err(error) = &flushed
            && !self.lines_wait
        {
            warn!(%error, "metrics.jsonl not written; its lines wait");
        }
        self.lines_wait = flushed.is_err();
    }

    /// Writes the lines that wait for the disk, where no more may wait.
    pub(crate) fn make_room(&mut self) -> Result<(), Failure> {
        if !self.journal.is_full() {
            return Ok(());
        }
        let Self { journal, storage, .. } = self;
        told_of(storage.output().display(), || journal.flush())
            .map_err(|error| Failure::retry(format!("metrics.jsonl: {error}")))
    }

    /// Takes over the newest checkpoint, what it tells of a drain, and whether saves fail. The next
    /// step reports at once where saves begin to fail, or succeed again. A damaged checkpoint before
    /// the newest one is no news any more.
    pub(crate) fn take_checkpoint(&mut self, saver: &Saver<'_>) {
        if self.progress.last_checkpoint.as_ref() != saver.newest() {
            self.progress.last_checkpoint = saver.newest().cloned();
            self.progress.short_grace = saver.short_grace();
        }
        self.saved_step = saver.saved_step();
        if self.progress.unsaved.as_ref() != saver.unsaved() {
            self.progress.unsaved = saver.unsaved().cloned();
            self.reported = None;
        }
        let newest = saver.newest().map(|mark| mark.step);
        self.progress.damaged_checkpoint.take_if(|damaged| newest >= Some(damaged.step));
    }

    /// The journal with the lines of all steps that were taken down; they are stored once it is synced.
    pub(crate) fn flushed_journal(&mut self) -> Result<File, Failure> {
        let Self { journal, storage, .. } = self;
        told_of(storage.output().display(), || journal.flushed())
            .map_err(|error| Failure::retry(format!("metrics.jsonl: {error}")))
    }

    /// How the group sums, as a checkpoint keeps it.
    pub(crate) fn communication_record(&self) -> &str {
        &self.communication_record
    }

    /// The group sums in this way from the next step on.
    pub(crate) fn sums_by(&mut self, agreed: &Agreed) {
        self.progress.communication = agreed.report;
        self.communication_record.clone_from(&agreed.record);
    }
}

/// The worker that is to report, before its journal is open.
pub(crate) struct Beginning<'a> {
    pub membership: &'a Membership,
    pub group: &'a Assignment,
    pub trainee: &'a Trainee,
}

impl Waits for Beginning<'_> {
    fn waits(&mut self, reason: &str) {
        let Assignment { generation, world, base, .. } = self.group;
        let Recipe { total_steps, steps_per_epoch, .. } = self.trainee.recipe;
        let progress = Progress {
            step: base.step,
            total_steps,
            epoch: base.step / steps_per_epoch,
            generation: *generation,
            world_size: *world,
            unsaved: Some(Unsaved::new(self.trainee.read_step(), reason, true)),
            ..Progress::default()
        };
        // Numbers and text: no reason to fail.
        self.membership.progress(base.step, serde_json::to_vec(&progress).unwrap_or_default());
    }
}

impl Waits for Reporter<'_> {
    fn waits(&mut self, reason: &str) {
        self.progress.unsaved = Some(Unsaved::new(self.saved_step, reason, true));
        if let Err(error) = self.report(true) {
            warn!(%error, "the group does not know that this worker waits for the storage");
        }
    }
}

/// A line that is not in the journal.
enum Owed<'a> {
    Unseen(u64),
    Step(&'a StepLine),
    Evaluation(&'a EvaluationLine),
}

/// What is missing of the steps up to `base` behind the lines that are `kept`, in order; the evaluation of the last step among these may
/// be, too. `known` is in order of steps.
fn owed<'a>(kept: Kept, base: u64, known: &'a [StepLine], evaluated: &'a VecDeque<EvaluationLine>) -> Vec<Owed<'a>> {
    let has_evaluated = |step| kept.accuracy.is_some_and(|(evaluated, _)| step <= evaluated);
    let evaluation = |step| evaluated.iter().find(|line| line.step == step && !has_evaluated(step));
    let mut owed: Vec<_> = evaluation(kept.step).map(Owed::Evaluation).into_iter().collect();
    for step in kept.step + 1..=base {
        let place = known.binary_search_by_key(&step, |line| line.step);
        owed.push(place.map_or(Owed::Unseen(step), |place| Owed::Step(&known[place])));
        owed.extend(evaluation(step).map(Owed::Evaluation));
    }
    owed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::metrics_log::Evaluation;

    #[test]
    fn lines_that_the_journal_lacks_are_made_up_in_order_and_none_twice() {
        let known = [7, 8, 10].map(|step| StepLine { step, ..StepLine::unseen(step, 4, 1) });
        let evaluation = Evaluation { loss: 1.0, accuracy: 0.5 };
        let evaluated: VecDeque<_> =
            [4, 8, 12].map(|step| EvaluationLine { step, epoch: step / 4, evaluation }).into_iter().collect();
        let lines = |kept, base| {
            let name = |line: &Owed<'_>| match line {
                Owed::Unseen(step) => format!("unseen {step}"),
                Owed::Step(line) => format!("step {}", line.step),
                Owed::Evaluation(line) => format!("evaluation {}", line.step),
            };
            owed(kept, base, &known, &evaluated).iter().map(name).collect::<Vec<_>>()
        };
        let kept = |step, evaluated: Option<u64>| Kept { step, accuracy: evaluated.map(|step| (step, 0.5)) };
        assert_eq!(lines(kept(6, Some(4)), 10), ["step 7", "step 8", "evaluation 8", "unseen 9", "step 10"]);
        assert_eq!(lines(kept(8, Some(4)), 8), ["evaluation 8"], "the disk had room for the step only");
        assert_eq!(lines(kept(8, Some(8)), 9), ["unseen 9"]);
        assert_eq!(lines(kept(4, None), 4), ["evaluation 4"]);
    }
}
