//! The reports of a generation's reporting worker: lines of the metrics log, and reports to the
//! coordinator.

use std::{
    collections::VecDeque,
    fs::File,
    time::{Duration, Instant},
};

use lockstep_data::Batches;
use lockstep_elastic::{Assignment, Membership};
use lockstep_launch::{
    BestMark, CheckpointMark, CommunicationReport, DamagedCheckpoint, Progress, ShortGrace, Straggler, Unsaved,
};
use tracing::{info, warn};

use super::{
    log_lines::{self, LogLines},
    metrics_log::{Kept, MetricsLog, NotWritten, Turn},
    phase_clock::{PhaseClock, PhaseNews},
};
use crate::{
    failure::Failure,
    lines::{EvaluationLine, ReportedLine, StepLine},
    storage::Storage,
    storage::retry::{Waits, warned_of},
};

/// The time between two reports to the coordinator.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The greatest number of missing lines that a worker makes up. Lines are written every second or
/// so.
const MOST_UNSEEN: u64 = 100_000;

/// The reporting worker of a generation.
pub(crate) struct Reporter<'a> {
    membership: &'a Membership,
    group: &'a Assignment,
    storage: &'a Storage,
    log: MetricsLog,
    turn: Turn<'a>,
    phases: PhaseNews<'a>,
    /// True if the storage took no lines at the last try.
    lines_wait: bool,
    progress: Progress,
    reported: Option<Instant>,
    lines: LogLines,
    /// The step of the newest checkpoint that this worker knows.
    saved_step: u64,
}

/// The facts with which a generation's reports begin.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    pub total_steps: u64,
    pub batches: &'a Batches,
    /// The step of the checkpoint that this worker read; 0 if there was none.
    pub saved_step: u64,
    /// The newest checkpoint, if it is damaged and the group began with an earlier one.
    pub damaged: Option<&'a DamagedCheckpoint>,
    pub communication: Option<CommunicationReport>,
    /// The newest steps that this worker knows, oldest first.
    pub steps: &'a VecDeque<StepLine>,
    /// The newest evaluations that this worker knows, oldest first.
    pub evaluations: &'a VecDeque<EvaluationLine>,
}

/// The state of the checkpoints of a run, as the reporting worker knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SaveStatus {
    /// The newest checkpoint that this worker committed.
    pub newest: Option<CheckpointMark>,
    /// The best checkpoint, if the job keeps one and this worker knows it.
    pub best: Option<BestMark>,
    /// The step of the newest checkpoint that this worker knows: it committed or read it.
    pub saved_step: u64,
    /// The reason for which nothing was saved since that step, if the newest save failed.
    pub unsaved: Option<Unsaved>,
    /// The grace of this process, if a drain does not fit into it.
    pub short_grace: Option<ShortGrace>,
}

impl<'a> Reporter<'a> {
    /// Continues the metrics log after the group's base, and makes up missing lines.
    pub(crate) fn open(
        membership: &'a Membership,
        group: &'a Assignment,
        storage: &'a Storage,
        start: Start<'_>,
        turn: Turn<'a>,
        phases: &'a PhaseClock,
    ) -> Result<Self, Failure> {
        let base = group.base.step;
        let folder = storage.output();
        let continued = warned_of(folder.display(), || MetricsLog::continue_after(folder, turn, base));
        let (log, mut kept) = continued.map_err(|error| not_written(storage, &error))?;
        let progress = Progress {
            step: base,
            total_steps: start.total_steps,
            epoch: start.batches.epochs_done(base),
            generation: group.generation,
            world_size: group.world,
            accuracy: kept.accuracy.map(|(_, accuracy)| accuracy),
            mean_iou: kept.mean_iou,
            accuracy_step: kept.accuracy.map(|(step, _)| step),
            communication: start.communication,
            damaged_checkpoint: start.damaged.cloned(),
            ..Progress::default()
        };
        // The earlier log ended with its pod, or somebody removed it.
        let lacks = base.saturating_sub(kept.step);
        if (kept.step == 0 && !storage.keeps_metrics()) || lacks > MOST_UNSEEN {
            let first = start.steps.iter().map(|line| line.step).find(|step| *step > kept.step).unwrap_or(base + 1);
            info!(first, base, "the metrics log lacks the steps before");
            kept.step = first - 1;
        }
        let mut reporter = Self {
            membership,
            group,
            storage,
            log,
            turn,
            phases: PhaseNews::begin(phases, Instant::now()),
            lines_wait: false,
            progress,
            reported: None,
            lines: LogLines::begin(Instant::now()),
            saved_step: start.saved_step,
        };
        reporter.make_up(start, kept)?;
        Ok(reporter)
    }

    /// Writes the lines that were lost with the former reporting worker.
    fn make_up(&mut self, start: Start<'_>, kept: Kept) -> Result<(), Failure> {
        for line in missing(kept, self.group.base.step, start.steps, start.evaluations) {
            match line {
                // All ranks did the step, but no surviving worker saw its result.
                Missing::Unseen(step) => {
                    self.write(&StepLine::unseen(step, start.batches.epochs_done(step), self.group.generation))?;
                }
                Missing::Step(line) => self.write(line)?,
                Missing::Evaluation(line) => self.evaluated(line)?,
            }
        }
        // The next reporting worker may be one that never saw these steps.
        self.flush();
        Ok(())
    }

    /// Returns true if the state of `step`, with which the group began, was evaluated.
    pub(crate) fn has_evaluated(&self, step: u64) -> bool {
        self.progress.accuracy_step == Some(step)
    }

    fn write(&mut self, line: &impl serde::Serialize) -> Result<(), Failure> {
        self.log.write(line).map_err(not_logged)
    }

    /// Returns the newest report.
    pub(crate) fn progress(self) -> Progress {
        self.progress
    }

    /// Writes the line of a step, and reports it. `figures` are those of the newest steps;
    /// `stragglers` are slow ranks, with how many times longer than most they take.
    pub(crate) fn step(
        &mut self,
        line: &StepLine,
        figures: Progress,
        stragglers: Vec<(usize, f64)>,
    ) -> Result<(), Failure> {
        let phases = self.phases.take(line.step == figures.total_steps, Instant::now());
        let reported = ReportedLine::new(line, &figures, phases);
        self.log.write(&reported).map_err(not_logged)?;
        self.lines.step(line, &figures, Instant::now());
        self.progress = Progress {
            evaluation_loss: self.progress.evaluation_loss,
            accuracy: self.progress.accuracy,
            mean_iou: self.progress.mean_iou,
            accuracy_step: self.progress.accuracy_step,
            last_checkpoint: self.progress.last_checkpoint.take(),
            best_checkpoint: self.progress.best_checkpoint.take(),
            damaged_checkpoint: self.progress.damaged_checkpoint.take(),
            short_grace: self.progress.short_grace,
            unsaved: self.progress.unsaved.take(),
            communication: self.progress.communication,
            generation: self.group.generation,
            stragglers: stragglers.into_iter().filter_map(|(rank, times)| self.straggler(rank, times)).collect(),
            ..figures
        };
        self.report()
    }

    fn straggler(&self, rank: usize, times: f64) -> Option<Straggler> {
        let pod = self.group.pods.get(rank)?.clone();
        // With more digits every report would differ.
        Some(Straggler { pod, times: (times * 10.0).round() / 10.0 })
    }

    /// Writes the line of an evaluation, and reports it at once.
    pub(crate) fn evaluated(&mut self, line: &EvaluationLine) -> Result<(), Failure> {
        self.write(line)?;
        log_lines::evaluation(line.step, &line.evaluation);
        self.progress.evaluation_loss = Some(line.evaluation.loss);
        self.progress.accuracy = Some(line.evaluation.accuracy);
        self.progress.mean_iou = line.evaluation.mean_iou;
        self.progress.accuracy_step = Some(line.step);
        self.progress.epoch = line.epoch;
        self.report_now()
    }

    /// Reports to the coordinator, unless the last report was just before.
    fn report(&mut self) -> Result<(), Failure> {
        if self.reported.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return Ok(());
        }
        self.report_now()
    }

    /// Reports to the coordinator.
    pub(crate) fn report_now(&mut self) -> Result<(), Failure> {
        self.reported = Some(Instant::now());
        self.progress.time = Some(jiff::Timestamp::now().to_string());
        self.membership.progress(self.progress.step, serde_json::to_vec(&self.progress).map_err(Failure::fatal)?);
        self.flush();
        Ok(())
    }

    /// Writes the pending lines. Those that the disk does not take stay pending.
    fn flush(&mut self) {
        let flushed = self.log.flush();
        if let Err(error) = &flushed
            && !self.lines_wait
        {
            warn!(%error, "metrics.jsonl not written; its lines wait");
        }
        self.lines_wait = flushed.is_err();
    }

    /// Writes the pending lines if no more may wait.
    pub(crate) fn make_room(&mut self) -> Result<(), Failure> {
        if !self.log.is_full() {
            return Ok(());
        }
        let Self { log, storage, .. } = self;
        warned_of(storage.output().display(), || log.flush()).map_err(not_logged)
    }

    /// Takes over the state of the checkpoints. The next step reports at once if saves begin to
    /// fail, or to succeed again. A damaged checkpoint is forgotten once a newer one is whole.
    pub(crate) fn take_saves(&mut self, status: &SaveStatus) {
        let SaveStatus { newest, best, saved_step, unsaved, short_grace } = status;
        if self.progress.best_checkpoint != *best {
            self.progress.best_checkpoint.clone_from(best);
        }
        if self.progress.last_checkpoint != *newest {
            self.progress.last_checkpoint.clone_from(newest);
            self.progress.short_grace = *short_grace;
        }
        self.saved_step = *saved_step;
        if self.progress.unsaved != *unsaved {
            self.progress.unsaved.clone_from(unsaved);
            self.reported = None;
        }
        let newest = newest.as_ref().map(|mark| mark.step);
        self.progress.damaged_checkpoint.take_if(|damaged| newest >= Some(damaged.step));
    }

    /// Returns the file with the lines of all steps so far. They are stored once it is synced.
    pub(crate) fn flushed_log(&mut self) -> Result<File, Failure> {
        let Self { log, storage, .. } = self;
        warned_of(storage.output().display(), || log.flushed()).map_err(not_logged)
    }

    /// Merges the parts of the metrics log, at the end of the run.
    pub(crate) fn merge_log(&mut self) -> Result<(), Failure> {
        let Self { log, storage, turn, .. } = self;
        let folder = storage.output();
        warned_of(folder.display(), || log.merge(folder, *turn)).map_err(|error| not_written(storage, &error))
    }

    /// Reports that the group sums in another way from the next step on.
    pub(crate) fn retuned(&mut self, communication: Option<CommunicationReport>) {
        self.progress.communication = communication;
    }
}

fn not_logged(error: std::io::Error) -> Failure {
    Failure::retry(format!("metrics.jsonl: {error}"))
}

fn not_written(storage: &Storage, error: &NotWritten) -> Failure {
    let problem = format!("{}: {error}", storage.output().display());
    match error {
        NotWritten::Io(_) => Failure::retry(problem),
        NotWritten::Superseded => Failure::broken(problem),
    }
}

/// The reporting worker before its metrics log is open.
pub(crate) struct Opening<'a> {
    pub membership: &'a Membership,
    pub group: &'a Assignment,
    pub start: Start<'a>,
}

impl Waits for Opening<'_> {
    fn waits(&mut self, reason: &str) {
        let Assignment { generation, world, base, .. } = self.group;
        let Start { total_steps, batches, saved_step, .. } = self.start;
        let progress = Progress {
            step: base.step,
            total_steps,
            epoch: batches.epochs_done(base.step),
            generation: *generation,
            world_size: *world,
            unsaved: Some(Unsaved::new(saved_step, reason, true)),
            ..Progress::default()
        };
        // Numbers and text always become JSON.
        self.membership.progress(base.step, serde_json::to_vec(&progress).unwrap_or_default());
    }
}

impl Waits for Reporter<'_> {
    fn waits(&mut self, reason: &str) {
        self.progress.unsaved = Some(Unsaved::new(self.saved_step, reason, true));
        if let Err(error) = self.report_now() {
            warn!(%error, "the group does not know that this worker waits for the storage");
        }
    }
}

/// A line that is not in the metrics log.
enum Missing<'a> {
    Unseen(u64),
    Step(&'a StepLine),
    Evaluation(&'a EvaluationLine),
}

/// Returns the lines up to step `base` that the log lacks behind those that it `kept`, in order.
/// The evaluation of the last kept step may be among them. `known` is in the order of steps.
fn missing<'a>(
    kept: Kept,
    base: u64,
    known: &'a VecDeque<StepLine>,
    evaluated: &'a VecDeque<EvaluationLine>,
) -> Vec<Missing<'a>> {
    let has_evaluated = |step| kept.accuracy.is_some_and(|(evaluated, _)| step <= evaluated);
    let evaluation = |step| evaluated.iter().find(|line| line.step == step && !has_evaluated(step));
    let mut missing: Vec<_> = evaluation(kept.step).map(Missing::Evaluation).into_iter().collect();
    for step in kept.step + 1..=base {
        let place = known.binary_search_by_key(&step, |line| line.step);
        missing.push(place.map_or(Missing::Unseen(step), |place| Missing::Step(&known[place])));
        missing.extend(evaluation(step).map(Missing::Evaluation));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Evaluation;

    #[test]
    fn missing_lines_are_made_up_in_order_and_none_twice() {
        let known: VecDeque<_> = [7, 8, 10].map(|step| StepLine::unseen(step, 4, 1)).into_iter().collect();
        let evaluation = Evaluation { loss: 1.0, accuracy: 0.5, mean_iou: None };
        let evaluated: VecDeque<_> =
            [4, 8, 12].map(|step| EvaluationLine { step, epoch: step / 4, evaluation }).into_iter().collect();
        let lines = |kept, base| {
            let name = |line: &Missing<'_>| match line {
                Missing::Unseen(step) => format!("unseen {step}"),
                Missing::Step(line) => format!("step {}", line.step),
                Missing::Evaluation(line) => format!("evaluation {}", line.step),
            };
            missing(kept, base, &known, &evaluated).iter().map(name).collect::<Vec<_>>()
        };
        let kept =
            |step, evaluated: Option<u64>| Kept { step, accuracy: evaluated.map(|step| (step, 0.5)), mean_iou: None };
        assert_eq!(lines(kept(6, Some(4)), 10), ["step 7", "step 8", "evaluation 8", "unseen 9", "step 10"]);
        assert_eq!(lines(kept(8, Some(4)), 8), ["evaluation 8"], "the disk had room for the step only");
        assert_eq!(lines(kept(8, Some(8)), 9), ["unseen 9"]);
        assert_eq!(lines(kept(4, None), 4), ["evaluation 4"]);
    }
}
