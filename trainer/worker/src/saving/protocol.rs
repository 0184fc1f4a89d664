//! Checkpoints while training goes on: all ranks copy their parts of the state after the same step, each writes its own behind the
//! training, and the one that reports commits once all are stored.
//!
//! ```text
//! step s            the one that reports asks for a checkpoint in the step's numbers
//! step s + 1        all read that; after it each copies its part, and begins to write it and a note for whoever commits; the step's
//!                   numbers tell whether all hold the same: if not, it is never committed
//! each step then    who still writes says so in the step's numbers, and who could not write
//! step u            in whose numbers nobody writes any more: all read that in step u + 1, and the one that reports commits, or abandons
//! ```
//!
//! By then the journal has a line of step s + 1, which will not be done again. When the group changes, what is not being committed is
//! given up, and mostly that too: the next one that reports clears it away. The next group's is due at once: a part may have been lost with
//! its rank.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use lockstep_checkpoint::{
    BLOCK_VALUES, CheckpointError, CheckpointPart, Committed, Ended, Facts, Layout, Position, Snapshotter, Taken,
};
use lockstep_elastic::{Assignment, Digest, Membership};
use lockstep_launch::{CheckpointMark, ShortGrace, Unsaved};
use lockstep_nn::StateDigest;
use tracing::{info, warn};

use crate::{
    compute::training_state::Trainee,
    failure::Failure,
    grace::short_grace,
    membership::session::Member,
    progress::metrics::{Metrics, Phase},
    progress::report::Reporter,
    saving::block_digests::{of_parts, written_digests},
    step::rank::{Rank, Recipe},
    step::step_sync::checkpoint_flags::Word,
    storage::retry::{Delay, Waits, told_of, until_stored},
    storage::{Storage, spelled},
};

/// Time until the next try where the last one failed and the job's interval is longer.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// One worker's part in saving, whatever group it belongs to.
pub(crate) struct Saver<'a> {
    storage: &'a Storage,
    membership: &'a Membership,
    metrics: &'a Metrics,
    interval: Duration,
    snapshotter: Snapshotter,
    layout: Arc<Layout>,
    /// Of a state of which no block was added yet.
    digest: StateDigest,
    /// Of the present group.
    rank: u32,
    world: NonZeroU32,
    generation: u64,
    reports: bool,
    asked: bool,
    copied: Option<Copied>,
    committing: Option<Committing>,
    /// When the last one ended, well or badly, or this began.
    ended: Instant,
    delay: Delay,
    newest: Option<CheckpointMark>,
    /// Steps that the newest checkpoint holds that this worker knows of: it committed or read it.
    saved_step: u64,
    /// Why this rank could not store its part.
    problem: Option<String>,
    unsaved: Option<Unsaved>,
    grace_seconds: u32,
    short_grace: Option<ShortGrace>,
    /// What the newest evaluation took.
    evaluating: Duration,
    /// Whether that was told once.
    is_warned: bool,
}

/// A checkpoint of which parts are being written.
#[derive(Clone, Copy)]
struct Copied {
    position: Position,
    at: Instant,
    stall: Duration,
    /// Of this rank.
    part: Outcome,
    writing: Duration,
    /// How long some rank has been writing at least, since `at`.
    others: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    Stored,
    Failed,
}

/// A checkpoint of which all parts are stored.
struct Committing {
    copied: Copied,
    time: String,
}

impl<'a> Saver<'a> {
    /// Saves what `trainee` holds each `interval`, as a member of groups as large as `group`.
    pub(crate) fn start(
        storage: &'a Storage,
        member: &'a Member<'_>,
        trainee: &Trainee,
        group: &Assignment,
        interval: Duration,
    ) -> Result<Self, Failure> {
        let replica = &trainee.replica;
        let layout = storage.layout(replica)?;
        let world = NonZeroU32::new(group.world).unwrap_or(NonZeroU32::MIN);
        Ok(Self {
            snapshotter: storage.snapshotter(layout.values().div_ceil(world.get() as usize) + BLOCK_VALUES)?,
            storage,
            membership: &member.membership,
            metrics: member.metrics,
            interval,
            layout: Arc::new(layout),
            digest: replica.begin_digest(),
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
            saved_step: trainee.read_step(),
            problem: None,
            unsaved: None,
            grace_seconds: member.launch.grace_seconds,
            short_grace: None,
            evaluating: Duration::ZERO,
            is_warned: false,
        })
    }

    /// Gives up what the group before this one has not stored. Where another one reports, this rank's checkpoints are not the newest
    /// for long.
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
    }

    /// The newest checkpoint that this worker committed.
    pub(crate) fn newest(&self) -> Option<&CheckpointMark> {
        self.newest.as_ref()
    }

    /// Steps that the newest checkpoint holds that this worker knows of.
    pub(crate) const fn saved_step(&self) -> u64 {
        self.saved_step
    }

    /// Why nothing has been saved since that step, if the newest save failed.
    pub(crate) const fn unsaved(&self) -> Option<&Unsaved> {
        self.unsaved.as_ref()
    }

    fn fails(&mut self, reason: &str) {
        if self.reports {
            self.unsaved = Some(Unsaved::new(self.saved_step, reason, false));
        }
    }

    /// An evaluation took so long.
    pub(crate) const fn evaluated(&mut self, took: Duration) {
        self.evaluating = took;
    }

    /// The time that this process has to end, where a drain does not fit into it by what the newest checkpoint took.
    pub(crate) const fn short_grace(&self) -> Option<ShortGrace> {
        self.short_grace
    }

    /// What this rank tells in the numbers of the next step; only the one that `reports` asks.
    pub(crate) fn word(&mut self, reports: bool) -> Word {
        for ended in self.snapshotter.ended() {
            if let Err(error) = self.note(ended) {
                warn!(%error, "checkpoint not saved; training goes on");
            }
        }
        self.tell_of_delay();
        let idle = !self.asked && self.copied.is_none() && self.committing.is_none();
        let asks = reports && idle && self.ended.elapsed() >= self.pause();
        self.asked |= asks;
        let part = self.copied.as_ref().map(|copied| copied.part);
        Word { asks, writes: part == Some(Outcome::Unknown), failed: part == Some(Outcome::Failed) }
    }

    /// Time between two checkpoints.
    fn pause(&self) -> Duration {
        if self.unsaved.is_some() { self.interval.min(TRY_AGAIN) } else { self.interval }
    }

    /// Storage that neither takes what is written nor fails holds all later checkpoints up.
    fn tell_of_delay(&mut self) {
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

    /// Takes down what all ranks told in the numbers of `step`. The one that reports has written its line.
    pub(crate) fn hear(&mut self, step: u64, told: Word, reporter: Option<&mut Reporter<'_>>) {
        if let Some(copied) = self.copied.as_mut().filter(|copied| step > copied.position.step && told.writes) {
            copied.others = copied.at.elapsed();
        }
        let Some(copied) = self.copied.take_if(|copied| step > copied.position.step && !told.writes) else { return };
        let Some(reporter) = reporter else { return };
        self.ended = Instant::now();
        let (position, committed) = (
            copied.position,
            match told.failed {
                true => Err(self.part_failure()),
                false => self.commit(copied, reporter),
            },
        );
        if let Err(error) = committed {
            self.snapshotter.abandon(position);
            self.metrics.checkpoint_failures.inc();
            self.fails(&error.to_string());
            warn!(%error, step = position.step, "checkpoint not saved; training goes on");
        }
    }

    /// Why not all parts are stored: this rank's reason where it failed, since others mostly fail
    /// for the same.
    fn part_failure(&self) -> Failure {
        Failure::retry(self.problem.as_deref().unwrap_or("another worker could not write its part; its log says why"))
    }

    /// Copies this rank's part of the state after the steps that are done, and begins to write it.
    pub(crate) fn copy(&mut self, rank: &mut Rank<'_>) {
        let mut copied = self.take(rank);
        rank.rest();
        self.metrics.spent(Phase::Checkpoint, copied.stall.as_secs_f64());
        copied.stall += rank.checking();
        self.metrics.checkpoint_stall.observe(copied.stall.as_secs_f64());
        self.copied = Some(copied);
    }

    /// Saves the state after the last step, all ranks their parts, however long the storage takes none of it: with the processes the steps
    /// since the last checkpoint would be lost. When this returns the parts are stored, and at the one that reports the checkpoint is
    /// whole.
    pub(crate) fn save(&mut self, rank: &mut Rank<'_>, reporter: Option<&mut Reporter<'_>>) -> Result<(), Failure> {
        let begun = Instant::now();
        self.snapshotter.cancel();
        let mut given_up = self.copied.take().map(|copied| copied.position);
        for ended in self.finish() {
            if let Err(error) = self.note(ended) {
                warn!(%error, "checkpoint not saved");
            }
        }
        let membership = self.membership;
        let mut reporter = reporter;
        if let Some(reporter) = &mut reporter {
            reporter.take_checkpoint(self);
        }
        until_stored(membership, &mut reporter, |_| self.store_part(rank, &mut given_up))?;
        if let (Some(copied), Some(reporter)) = (self.copied.take(), reporter) {
            self.store_manifest(copied, reporter)?;
            self.metrics.spent(Phase::Checkpoint, begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Stores this rank's part of the state unless it is stored, and hears whether all ranks' are. Where not, there may be room for it once
    /// what was written of the one that was `given_up` is gone: no rank writes that any more.
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

    /// Makes a checkpoint of the parts that all ranks have stored. Where the storage does not take it the parts are gone with it: all store
    /// theirs in the next generation, once there is room.
    fn store_manifest(&mut self, copied: Copied, reporter: &mut Reporter<'_>) -> Result<(), Failure> {
        let begun = self.commit(copied, reporter);
        let stored = begun.and_then(|()| self.finish().into_iter().try_for_each(|ended| self.note(ended)));
        stored.map_err(|failure| match failure {
            Failure::Retry(reason) => {
                reporter.waits(&reason);
                Failure::broken(reason)
            }
            other => other,
        })
    }

    /// Waits for what is being written.
    fn finish(&mut self) -> Vec<Ended> {
        told_of(self.storage.uri(), || self.snapshotter.finish())
    }

    fn take(&mut self, rank: &mut Rank<'_>) -> Copied {
        let at = Instant::now();
        (self.asked, self.problem) = (false, None);
        let Recipe { steps_per_epoch, global_batch, seed, .. } = *rank.recipe();
        let step = rank.step();
        let position = Position {
            step,
            epoch: step / steps_per_epoch,
            cursor: step % steps_per_epoch * global_batch,
            seed,
            generation: self.generation,
        };
        let part =
            CheckpointPart { position, layout: Arc::clone(&self.layout), writer: self.rank, writers: self.world };
        let replica = &mut rank.trainee.replica;
        let taken = self.snapshotter.take(&part, written_digests, |piece, place| {
            replica.copy_tensor(piece.name, piece.values, place);
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
        Copied { position, at, stall: at.elapsed(), part, writing: Duration::ZERO, others: Duration::ZERO }
    }

    /// Begins to write the manifest, once the lines of the steps that it holds are stored.
    fn commit(&mut self, copied: Copied, reporter: &mut Reporter<'_>) -> Result<(), Failure> {
        let journal = reporter.flushed_journal()?;
        let (position, time) = (copied.position, jiff::Timestamp::now().to_string());
        let facts = Facts {
            identity: self.storage.identity().clone(),
            position,
            state_digest: String::new(),
            time: time.clone(),
            communication: Some(reporter.communication_record().to_owned()),
        };
        let (digest, path) = (self.digest.clone(), self.storage.output().to_owned());
        self.snapshotter.commit(position, &self.layout, self.world, move |parts| {
            journal.sync_data().map_err(|source| CheckpointError::Storage {
                attempt: "syncing the journal in",
                path: path.clone(),
                source,
            })?;
            let problem = "a part's note has no digests".to_owned();
            let digest = of_parts(digest, parts).ok_or(CheckpointError::Parts { path, problem })?;
            Ok(Facts { state_digest: spelled(digest), ..facts })
        });
        self.committing = Some(Committing { copied, time });
        Ok(())
    }

    /// Takes down what has ended, and tells others of a checkpoint.
    fn note(&mut self, ended: Ended) -> Result<(), Failure> {
        match ended {
            Ended::Part { position, took, result } => {
                // Another one was begun by a group that is no more.
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
                        self.look_at_grace(others.max(stall + writing) + took);
                        self.tell(committed, committing);
                    }
                    (Err(CheckpointError::Cancelled { .. }), _) | (Ok(_), None) => {}
                    // The one that reports now has cleared its parts away.
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

    /// Whether a process that is asked to end has time for another checkpoint that takes as long.
    fn look_at_grace(&mut self, saving: Duration) {
        let step = self.membership.work().sample().step.unwrap_or_default();
        self.short_grace = short_grace(step, self.evaluating, saving, self.grace_seconds);
        if let Some(short) = self.short_grace.filter(|_| !self.is_warned) {
            self.is_warned = true;
            warn!("{short}");
        }
    }

    fn tell(&mut self, committed: Committed, committing: Committing) {
        let Committed { saved, pruned } = committed;
        let Committing { copied: Copied { at, stall, .. }, time } = committing;
        let seconds = at.elapsed().as_secs_f64();
        self.metrics.checkpoint_save.observe(seconds);
        let stall_ms = stall.as_secs_f64() * 1e3;
        info!(step = saved.step, bytes = saved.bytes, seconds, stall_ms, "checkpoint saved");
        if let Err(error) = pruned {
            warn!(%error, "not all old checkpoints were removed");
        }
        self.membership.checkpoint(saved.step, Digest::from_bytes(saved.manifest_digest));
        (self.saved_step, self.unsaved) = (saved.step, None);
        // One that an older group had begun may end once another rank reports.
        self.newest = self.reports.then(|| self.storage.mark(&saved, time));
    }
}
