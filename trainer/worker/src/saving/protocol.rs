//! Checkpoints while training goes on. All ranks copy their parts of the state after the same step.
//! Each writes its part behind the training. The reporting worker commits once all parts are
//! stored.
//!
//! ```text
//! step s            the reporting worker asks for a checkpoint in the step's numbers
//! step s + 1        all ranks read that; after the step each copies its part, and begins to write
//!                   it with a note of its digests; the step's numbers show if all states are
//!                   equal: if not, the checkpoint is never committed
//! each later step   the numbers tell if a rank still writes, and if a rank could not write
//! step u            no rank writes any more; all read that in step u + 1, and the reporting worker
//!                   commits or abandons the checkpoint
//! ```
//!
//! By then the metrics log has a line of step s + 1, so that step will not be done again. A change
//! of the group gives up parts that are being written, and mostly a commit as well. The next
//! reporting worker removes what is left. The new group begins a checkpoint at once: a part may be
//! lost with its rank.

mod best;
mod warnings;

use std::{
    fs::File,
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_checkpoint::{
    About, BLOCK_VALUES, CheckpointError, CheckpointPart, Committed, Ended, Facts, Layout, Position, Snapshotter, Taken,
};
use lockstep_data::Step;
use lockstep_elastic::{Assignment, Digest, Membership};
use lockstep_launch::{CheckpointMark, ShortGrace, Unsaved};
use lockstep_nn::StateDigest;
use tracing::{info, warn};

use super::block_digests::{of_parts, written_digests};
use crate::{
    compute::{recipe::Recipe, training_state::TrainingState},
    failure::Failure,
    lines::Evaluation,
    membership::session::Session,
    progress::{metrics::Metrics, phase_clock::Phase, report::SaveStatus},
    step::{rank::Rank, step_sync::checkpoint_flags::CheckpointFlags},
    storage::{
        Storage,
        retry::{Delay, Waits, until_stored, warned_of},
        spelled,
    },
};

/// The time until the next try after a failure, if the job's interval is longer.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// One worker's part in saving, whatever group the worker belongs to.
pub(crate) struct Saver<'a> {
    storage: &'a Storage,
    membership: &'a Membership,
    metrics: &'a Metrics,
    interval: Duration,
    snapshotter: Snapshotter,
    layout: Arc<Layout>,
    /// The digest of a state to which no block was added yet.
    digest: StateDigest,
    /// This worker's rank in the present group.
    rank: u32,
    world: NonZeroU32,
    generation: u64,
    reports: bool,
    asked: bool,
    copied: Option<Copied>,
    committing: Option<Committing>,
    /// The time at which the last save ended, well or badly, or at which this worker began.
    ended: Instant,
    delay: Delay,
    newest: Option<CheckpointMark>,
    /// The step of the newest checkpoint that this worker committed or read.
    saved_step: u64,
    /// The reason for which this rank could not store its part.
    problem: Option<String>,
    unsaved: Option<Unsaved>,
    grace_seconds: u32,
    short_grace: Option<ShortGrace>,
    /// The description of the model, for those who use a checkpoint.
    description: Option<String>,
    /// The evaluation of the best checkpoint, if this worker knows of one. `None` until it looked.
    best: Option<Option<Evaluation>>,
    /// The best checkpoint that is stored, as far as this worker knows.
    stored_best: Option<(Evaluation, CheckpointMark)>,
    /// The time that the newest evaluation took.
    evaluating: Duration,
    /// True once a short grace was logged.
    has_warned: bool,
}

/// A checkpoint whose parts are being written.
#[derive(Clone, Copy)]
struct Copied {
    position: Position,
    at: Instant,
    stall: Duration,
    /// The evaluation of the copied state, if there was one.
    evaluation: Option<Evaluation>,
    /// The outcome of this rank's part.
    part: Outcome,
    writing: Duration,
    /// The time since `at` during which some rank was known to write.
    others: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    Stored,
    Failed,
}

/// A checkpoint whose parts are all stored, and whose manifest is being written.
struct Committing {
    copied: Copied,
    time: String,
}

/// A checkpoint on which no rank writes any more. The reporting worker commits or abandons it.
pub(crate) struct Settled {
    copied: Copied,
    failed: bool,
}

/// The facts that a manifest needs from outside. It is written after the lines of its steps.
pub(crate) struct Logged {
    /// The metrics log with these lines.
    pub log: File,
    /// How the group sums, as a checkpoint keeps it.
    pub communication: Option<String>,
}

/// The save after the last step of a group.
pub(crate) struct LastSave {
    /// The earlier checkpoint that was given up for this one.
    given_up: Option<Position>,
}

impl<'a> Saver<'a> {
    /// Starts to save `state` each `interval`, as a member of groups as large as `group`.
    pub(crate) fn start(
        storage: &'a Storage,
        session: &'a Session<'_>,
        state: &TrainingState,
        group: &Assignment,
        interval: Duration,
    ) -> Result<Self, Failure> {
        let layout = state.layout(storage)?;
        let world = NonZeroU32::new(group.world).unwrap_or(NonZeroU32::MIN);
        Ok(Self {
            snapshotter: storage.snapshotter(layout.values().div_ceil(world.get() as usize) + BLOCK_VALUES)?,
            storage,
            membership: &session.membership,
            metrics: session.metrics,
            interval,
            layout: Arc::new(layout),
            digest: state.begin_digest(),
            rank: group.rank,
            world,
            generation: group.generation,
            reports: group.reports(),
            asked: false,
            copied: None,
            committing: None,
            ended: Instant::now(),
            delay: Delay::default(),
            newest: None,
            saved_step: state.read_step(),
            problem: None,
            unsaved: None,
            grace_seconds: session.launch.grace_seconds,
            short_grace: None,
            description: state.description(),
            best: None,
            stored_best: None,
            evaluating: Duration::ZERO,
            has_warned: false,
        })
    }

    /// Enters a group, and gives up what the group before has not stored. If another worker
    /// reports, this worker's newest checkpoint will soon be an older one.
    pub(crate) fn enter(&mut self, group: &Assignment) {
        self.snapshotter.cancel();
        self.rank = group.rank;
        self.world = NonZeroU32::new(group.world).unwrap_or(NonZeroU32::MIN);
        self.generation = group.generation;
        self.reports = group.reports();
        (self.asked, self.copied) = (false, None);
        self.newest.take_if(|_| !self.reports);
        self.unsaved.take_if(|_| !self.reports);
        self.problem = None;
        // A checkpoint that was under way may be lost with the group.
        self.best = None;
    }

    /// Returns the state of the checkpoints, for reports.
    pub(crate) fn status(&self) -> SaveStatus {
        SaveStatus {
            newest: self.newest.clone(),
            best: self.stored_best(),
            saved_step: self.saved_step,
            unsaved: self.unsaved.clone(),
            short_grace: self.short_grace,
        }
    }

    fn fails(&mut self, reason: &str) {
        // The checkpoint that failed may have been the best one.
        self.best = None;
        if self.reports {
            self.unsaved = Some(Unsaved::new(self.saved_step, reason, false));
        }
    }

    /// Notes how long an evaluation took.
    pub(crate) const fn evaluated(&mut self, took: Duration) {
        self.evaluating = took;
    }

    /// Returns the flags of this rank for the next step's numbers. Only the reporting worker asks
    /// for checkpoints.
    pub(crate) fn flags(&mut self) -> CheckpointFlags {
        for ended in self.snapshotter.ended() {
            if let Err(error) = self.note(ended) {
                warn!(%error, "checkpoint not saved; training goes on");
            }
        }
        self.warn_of_delay();
        let idle = !self.asked && self.copied.is_none() && self.committing.is_none();
        let asks = self.reports && idle && self.ended.elapsed() >= self.pause();
        self.asked |= asks;
        let part = self.copied.as_ref().map(|copied| copied.part);
        CheckpointFlags { asks, writes: part == Some(Outcome::Unknown), failed: part == Some(Outcome::Failed) }
    }

    /// Returns the time between two checkpoints.
    fn pause(&self) -> Duration {
        if self.unsaved.is_some() { self.interval.min(TRY_AGAIN) } else { self.interval }
    }

    /// Notes the flags of all ranks in the numbers of `step`. Returns the checkpoint that the
    /// reporting worker must now commit.
    pub(crate) fn hear(&mut self, step: u64, flags: CheckpointFlags) -> Option<Settled> {
        if let Some(copied) = self.copied.as_mut().filter(|copied| step > copied.position.step && flags.writes) {
            copied.others = copied.at.elapsed();
        }
        let copied = self.copied.take_if(|copied| step > copied.position.step && !flags.writes)?;
        if !self.reports {
            return None;
        }
        self.ended = Instant::now();
        Some(Settled { copied, failed: flags.failed })
    }

    /// Begins to commit a checkpoint if all its parts are stored. Otherwise abandons it; training
    /// goes on.
    pub(crate) fn commit_or_abandon(&mut self, settled: Settled, logged: impl FnOnce() -> Result<Logged, Failure>) {
        let Settled { copied, failed } = settled;
        let begun = match failed {
            true => Err(self.part_failure()),
            false => logged().map(|logged| self.commit(copied, logged)),
        };
        if let Err(error) = begun {
            let position = copied.position;
            self.snapshotter.abandon(position);
            self.metrics.checkpoint_failures.inc();
            self.fails(&error.to_string());
            warn!(%error, step = position.step, "checkpoint not saved; training goes on");
        }
    }

    /// Returns the failure of a checkpoint that lacks parts. It gives this rank's reason if its own
    /// part failed: the parts of other ranks mostly fail for the same.
    fn part_failure(&self) -> Failure {
        Failure::retry(self.problem.as_deref().unwrap_or("another worker could not write its part; its log says why"))
    }

    /// Copies this rank's part of the state after the newest step, and begins to write it.
    pub(crate) fn copy(&mut self, rank: &mut Rank<'_>) {
        let mut copied = self.take(rank);
        rank.rest();
        self.metrics.phases.spend(Phase::Checkpoint, copied.stall);
        copied.stall += rank.checking();
        self.metrics.checkpoint_stall.observe(copied.stall.as_secs_f64());
        self.copied = Some(copied);
    }

    /// Begins the save after the last step. An earlier checkpoint that is not stored yet is given
    /// up.
    pub(crate) fn begin_last(&mut self) -> LastSave {
        self.snapshotter.cancel();
        let given_up = self.copied.take().map(|copied| copied.position);
        for ended in self.finish() {
            if let Err(error) = self.note(ended) {
                warn!(%error, "checkpoint not saved");
            }
        }
        LastSave { given_up }
    }

    /// Stores the parts of all ranks after the last step. It tries until the storage takes them:
    /// the steps since the last checkpoint would be lost with the processes.
    pub(crate) fn store_parts(
        &mut self,
        rank: &mut Rank<'_>,
        save: &mut LastSave,
        teller: &mut impl Waits,
    ) -> Result<(), Failure> {
        until_stored(self.membership, teller, |_| self.store_part(rank, &mut save.given_up))
    }

    /// Stores this rank's part unless it is stored, and learns if all ranks' parts are. If not, the
    /// parts of the given-up checkpoint may take the room: no rank writes them any more, so they
    /// are removed.
    fn store_part(&mut self, rank: &mut Rank<'_>, given_up: &mut Option<Position>) -> Result<(), Failure> {
        let is_stored = |copied: &Copied| copied.part == Outcome::Stored;
        let mut own = Ok(());
        if !self.copied.as_ref().is_some_and(is_stored) {
            self.copied = Some(self.take(rank));
            own = self.finish().into_iter().try_for_each(|ended| self.note(ended));
        }
        let mut failed = [f32::from(u8::from(!self.copied.as_ref().is_some_and(is_stored)))];
        let told = rank.sum(&mut failed);
        if told.is_ok()
            && failed != [0.0]
            && self.reports
            && let Some(position) = given_up.take()
        {
            self.snapshotter.abandon(position);
        }
        own?;
        told?;
        match failed == [0.0] {
            true => Ok(()),
            false => Err(self.part_failure()),
        }
    }

    /// Makes a checkpoint of the parts that all ranks have stored after the last step.
    ///
    /// # Errors
    /// The storage does not take the manifest. The parts are lost with it, and all ranks store
    /// theirs again in the next generation.
    pub(crate) fn store_manifest(&mut self, logged: Logged) -> Result<(), Failure> {
        if let Some(copied) = self.copied.take() {
            self.commit(copied, logged);
            self.finish().into_iter().try_for_each(|ended| self.note(ended))?;
        }
        Ok(())
    }

    /// Waits until nothing is being written.
    fn finish(&mut self) -> Vec<Ended> {
        warned_of(self.storage.uri(), || self.snapshotter.finish())
    }

    fn take(&mut self, rank: &mut Rank<'_>) -> Copied {
        let at = Instant::now();
        (self.asked, self.problem) = (false, None);
        let Recipe { batches, seed, .. } = rank.recipe();
        let step = rank.step();
        let Step { epoch, cursor, .. } = batches.step(step);
        let position = Position { step, epoch, cursor, seed: *seed, generation: self.generation };
        let part =
            CheckpointPart { position, layout: Arc::clone(&self.layout), writer: self.rank, writers: self.world };
        let taken = self.snapshotter.take(&part, written_digests, |piece, values| {
            rank.state.copy_tensor(piece.name, piece.values, values);
        });
        let part = match taken {
            Taken::Begun => Outcome::Unknown,
            Taken::Busy => {
                warn!(step, "a part of a checkpoint cannot be copied: those of earlier ones are still being written");
                self.problem =
                    Some("the parts of earlier checkpoints are still being written; check the storage".into());
                Outcome::Failed
            }
        };
        let evaluation = rank.state.evaluation_of(step);
        Copied { position, at, stall: at.elapsed(), evaluation, part, writing: Duration::ZERO, others: Duration::ZERO }
    }

    /// Begins to write the manifest, after the lines of the steps that the checkpoint holds are
    /// stored.
    fn commit(&mut self, copied: Copied, logged: Logged) {
        let Logged { log, communication } = logged;
        let (position, time) = (copied.position, jiff::Timestamp::now().to_string());
        let facts = Facts {
            identity: self.storage.identity().clone(),
            position,
            state_digest: String::new(),
            time: time.clone(),
            communication,
            about: About {
                description: self.description.clone(),
                evaluation: copied.evaluation,
                best_by: self.storage.best_by(),
            },
        };
        let (digest, path) = (self.digest.clone(), self.storage.output().to_owned());
        self.snapshotter.commit(position, &self.layout, self.world, move |parts| {
            log.sync_data().map_err(|source| CheckpointError::Storage {
                action: "syncing the metrics log in",
                path: path.clone(),
                source,
            })?;
            let problem = "a part's note has no digests".to_owned();
            let digest = of_parts(digest, parts).ok_or(CheckpointError::Parts { path, problem })?;
            Ok(Facts { state_digest: spelled(digest), ..facts })
        });
        self.committing = Some(Committing { copied, time });
    }

    /// Notes an ended write. Reports a checkpoint that is whole.
    fn note(&mut self, ended: Ended) -> Result<(), Failure> {
        match ended {
            Ended::Part { position, took, result } => {
                // An earlier group may have begun another part.
                let Some(copied) = self.copied.as_mut().filter(|copied| copied.position == position) else {
                    return Ok(());
                };
                copied.writing = took;
                copied.part = if result.is_ok() { Outcome::Stored } else { Outcome::Failed };
                let stored = result.map_err(|error| self.storage.refused(&error));
                self.problem = stored.as_ref().err().map(ToString::to_string);
                stored
            }
            Ended::Commit { position: _, took, result } => {
                let committing = self.committing.take();
                match (result, committing) {
                    (Ok(committed), Some(committing)) => {
                        self.ended = Instant::now();
                        let Copied { stall, writing, others, .. } = committing.copied;
                        self.check_grace(others.max(stall + writing) + took);
                        self.announce(committed, committing);
                    }
                    (Err(CheckpointError::Cancelled { .. }), _) | (Ok(_), None) => {}
                    // The present reporting worker has removed its parts.
                    (Err(error), Some(Committing { copied, .. })) if copied.position.generation < self.generation => {
                        info!(%error, step = copied.position.step, "checkpoint given up with its group");
                    }
                    (Err(error), _) => {
                        self.ended = Instant::now();
                        self.metrics.checkpoint_failures.inc();
                        let refused = self.storage.refused(&error);
                        self.fails(&refused.to_string());
                        return Err(refused);
                    }
                }
                Ok(())
            }
            Ended::Abandonment { position, result } => {
                if let Err(error) = result {
                    warn!(%error, step = position.step, "parts of a checkpoint were left behind");
                }
                Ok(())
            }
        }
    }

    fn announce(&mut self, committed: Committed, committing: Committing) {
        let Committed { saved, pruned } = committed;
        let Committing { copied: Copied { at, stall, evaluation, .. }, time } = committing;
        let seconds = at.elapsed().as_secs_f64();
        self.metrics.checkpoint_save.observe(seconds);
        let stall_ms = stall.as_secs_f64() * 1e3;
        info!(step = saved.step, bytes = saved.bytes, seconds, stall_ms, "checkpoint saved");
        if let Err(error) = pruned {
            warn!(%error, "not all old checkpoints were removed");
        }
        self.membership.checkpoint(saved.step, Digest::from_bytes(saved.manifest_digest));
        (self.saved_step, self.unsaved) = (saved.step, None);
        // A commit that an older group began may end while another worker reports.
        self.newest = self.reports.then(|| self.storage.mark(&saved, time));
        if let Some(mark) = self.newest.clone() {
            self.note_stored(&mark, evaluation);
        }
    }
}
