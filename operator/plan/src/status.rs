//! What the status says: progress, conditions, columns, and the events that go with a change.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::{
    ConditionType, Display, JobProgress, LastChange, LastFailure, Phase, Reason, Replacing, TrainingJobStatus, ValidJob,
};
use lockstep_launch::{
    BenchmarkReport, ByteSize, CheckpointMark, CollectivesReport, CollectivesRow, DamagedCheckpoint, GroupChange,
    Progress, ShortGrace, Straggler, Task, Unsaved,
};

use crate::{Observed, PodSeen, Role, Settings, observed::clip, pod_name};

/// Seconds between two writes of progress into the status.
const PROGRESS_SECONDS: i64 = 5;
/// At most one event about checkpoints in this many seconds.
const CHECKPOINT_EVENT_SECONDS: i64 = 60;

/// Names of slow workers that a status holds.
const MAX_STRAGGLERS: usize = 16;
/// Changes of a group that are told at a time, the newest ones.
const MAX_CHANGES: usize = 20;

/// An event: a fixed reason and the number that explains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether somebody should look.
    pub warning: bool,
    /// One of Created, Started, WorkerLost, WorkerReplaced, Restarting, Resizing, Resized,
    /// RolledBack, ImageChanged, CheckpointSaved, CheckpointFailed, SuspensionWaits,
    /// CheckpointDamaged, Straggler, ShortGrace, Suspended, Resumed, Complete, Failed.
    pub reason: &'static str,
    /// For people.
    pub text: String,
}

impl Note {
    pub(crate) fn created(job: &ValidJob) -> Self {
        Self::normal("Created", format!("1 coordinator and {} workers", job.replicas))
    }

    pub(crate) fn started(job: &ValidJob, status: &TrainingJobStatus, now: Timestamp) -> Self {
        let after = status.attempt_time.as_ref().map_or(0, |asked| now.duration_since(asked.0).as_secs());
        let (_, work) = at_work(job);
        let workers = status.membership.as_ref().map_or(job.replicas.get(), |membership| membership.world_size);
        Self::normal("Started", format!("{workers} workers {work}, {after} s after their pods were asked for"))
    }

    pub(crate) fn worker_lost(failure: &LastFailure) -> Self {
        Self::warning("WorkerLost", told(failure))
    }

    pub(crate) fn coordinator_lost(failure: &LastFailure) -> Self {
        let pod = failure.pod.clone().unwrap_or_default();
        let why = told(failure);
        Self::warning("Restarting", format!("pod {pod} is made anew; training goes on meanwhile. {why}"))
    }

    pub(crate) fn worker_replaced(job: &ValidJob, lost: &Replacing, now: Timestamp) -> Self {
        let (pod, seconds) = (pod_name(job, Role::Worker(lost.worker)), now.duration_since(lost.since.0).as_secs());
        Self::normal("WorkerReplaced", format!("{pod} has joined again, {seconds} s after it was lost"))
    }

    pub(crate) fn image_changed(pod: &PodSeen, settings: &Settings) -> Self {
        let before = pod.image.as_ref().map(|image| image.name.as_str()).unwrap_or_default();
        let Settings { trainer_image, trainer_image_pull_policy } = settings;
        let text = format!(
            "pods that could not start with image {before} are made anew with the operator's present one, {trainer_image} \
             ({trainer_image_pull_policy})"
        );
        Self::normal("ImageChanged", text)
    }

    pub(crate) fn resizing(from: u32, to: u32) -> Self {
        Self::normal("Resizing", format!("from {from} to {to} workers; training goes on"))
    }

    /// The group changed: in place, or back to a checkpoint.
    pub(crate) fn regrouped(text: &str, change: &GroupChange) -> Self {
        let text = format!("{text}; agreed on in {:.2} s", change.seconds);
        if change.rollback { Self::warning("RolledBack", text) } else { Self::normal("Resized", text) }
    }

    fn straggler(straggler: &Straggler) -> Self {
        Self::warning("Straggler", format!("{straggler}, 20 times in a row"))
    }

    fn checkpoint_damaged(damaged: &DamagedCheckpoint) -> Self {
        Self::warning("CheckpointDamaged", damaged.to_string())
    }

    fn short_grace(short: &ShortGrace) -> Self {
        Self::warning("ShortGrace", short.to_string())
    }

    fn checkpoint_failed(unsaved: &Unsaved) -> Self {
        Self::warning("CheckpointFailed", unsaved.to_string())
    }

    pub(crate) fn suspension_waits(message: &str) -> Self {
        Self::warning("SuspensionWaits", message.to_owned())
    }

    pub(crate) fn suspended(message: &str) -> Self {
        Self::normal("Suspended", message.to_owned())
    }

    pub(crate) fn suspended_unsaved(message: &str) -> Self {
        Self::warning("Suspended", message.to_owned())
    }

    pub(crate) fn resumed(message: &str) -> Self {
        Self::normal("Resumed", message.to_owned())
    }

    pub(crate) fn complete(message: &str) -> Self {
        Self::normal("Complete", message.to_owned())
    }

    pub(crate) fn failed(reason: Reason, message: &str) -> Self {
        Self::warning("Failed", format!("{reason}: {message}"))
    }

    fn normal(reason: &'static str, text: String) -> Self {
        Self { warning: false, reason, text }
    }

    fn warning(reason: &'static str, text: String) -> Self {
        Self { warning: true, reason, text }
    }
}

/// The event of a restart that `status` has counted.
pub(crate) fn restart_note(status: &TrainingJobStatus, job: &ValidJob) -> Note {
    let beginning = beginning(status);
    let limit = job.failure_policy.backoff_limit;
    let (restarts, failures) = (status.restarts, status.failures);
    Note::warning("Restarting", format!("restart {restarts} from {beginning}; {failures} of {limit} failures used"))
}

/// What new pods begin with. Workers that leave save their state, of which the operator may not
/// have heard yet.
pub(crate) fn beginning(status: &TrainingJobStatus) -> String {
    match &status.last_checkpoint {
        Some(checkpoint) => format!("the newest checkpoint, of step {} or later", checkpoint.step),
        None => "the newest checkpoint, if there is one".to_owned(),
    }
}

/// When steps were reported last.
pub(crate) fn reported_at(status: &TrainingJobStatus) -> Option<Timestamp> {
    Some(status.progress.as_ref()?.last_update_time.as_ref()?.0)
}

/// Takes over what the coordinator reported, unless the last time was too recent for that and `at_once` is not said; then the time to
/// look again.
pub(crate) fn take_progress(
    status: &mut TrainingJobStatus,
    seen: &Observed,
    at_once: bool,
    events: &mut Vec<Note>,
    now: Timestamp,
) -> Option<Timestamp> {
    let reported = seen.group.as_ref()?.progress.as_ref()?;
    let mut next = status.clone();
    next.report(reported, now);
    let unchanged = {
        let mut same_time = next.clone();
        if let (Some(new), Some(old)) = (&mut same_time.progress, &status.progress) {
            new.last_update_time.clone_from(&old.last_update_time);
        }
        same_time == *status
    };
    if unchanged {
        return None;
    }
    let due = reported_at(status).map(|last| last + SignedDuration::from_secs(PROGRESS_SECONDS));
    if let Some(due) = due.filter(|due| *due > now && !at_once) {
        return Some(due);
    }
    events.extend(save_note(status, &next));
    let slow = |status: &TrainingJobStatus| status.progress.as_ref().map_or(Vec::new(), |told| told.stragglers.clone());
    let known: Vec<String> = slow(status).into_iter().map(|known| known.pod).collect();
    events.extend(slow(&next).iter().filter(|slow| !known.contains(&slow.pod)).map(Note::straggler));
    let damaged =
        |status: &TrainingJobStatus| status.progress.as_ref().and_then(|told| told.damaged_checkpoint.clone());
    let known = damaged(status);
    events.extend(
        damaged(&next).filter(|damaged| known.as_ref() != Some(damaged)).as_ref().map(Note::checkpoint_damaged),
    );
    let short = |status: &TrainingJobStatus| status.progress.as_ref().and_then(|told| told.short_grace);
    events.extend(short(&next).filter(|_| short(status).is_none()).as_ref().map(Note::short_grace));
    *status = next;
    None
}

/// Takes over how the membership changed, and tells of each change. The first one of all is no change.
pub(crate) fn take_changes(status: &mut TrainingJobStatus, seen: &Observed, events: &mut Vec<Note>) {
    let last = status.membership.as_ref().and_then(|membership| membership.last_change.as_ref());
    let known = last.map(|last| last.generation);
    let changes = seen.group.iter().flat_map(|group| &group.changes);
    let mut news: Vec<_> = changes.filter(|change| Some(change.generation) > known).collect();
    news.sort_by_key(|change| change.generation);
    // The record is written by the user's image.
    for change in &news[news.len().saturating_sub(MAX_CHANGES)..] {
        let text = clip(&change.to_string());
        if known.is_some() || change.generation > 1 {
            events.push(Note::regrouped(&text, change));
        }
        let membership = status.membership.get_or_insert_default();
        membership.generation = membership.generation.max(change.generation);
        membership.world_size = change.workers;
        membership.last_change = Some(LastChange { generation: change.generation, text, seconds: change.seconds });
    }
}

/// The event of saves that begin to fail, or for which training begins to wait, or that succeed
/// again; else that of a checkpoint, if it is worth telling of.
fn save_note(before: &TrainingJobStatus, next: &TrainingJobStatus) -> Option<Note> {
    let unsaved = |status: &TrainingJobStatus| status.progress.as_ref().and_then(|told| told.unsaved.clone());
    match (unsaved(before), unsaved(next)) {
        (before, Some(next)) => {
            let is_news = before.is_none_or(|before| next.waits && !before.waits);
            is_news.then(|| Note::checkpoint_failed(&next))
        }
        (Some(_), None) => checkpoint_note(None, next),
        (None, None) => checkpoint_note(before.last_checkpoint.as_ref(), next),
    }
}

/// The event of a checkpoint that is worth telling of.
pub(crate) fn checkpoint_note(last: Option<&CheckpointMark>, status: &TrainingJobStatus) -> Option<Note> {
    let mark = status.last_checkpoint.as_ref().filter(|mark| is_news(last, mark))?;
    Some(Note::normal("CheckpointSaved", format!("step {} in {}", mark.step, mark.uri)))
}

/// Whether a checkpoint falls into another minute than the last one that was told of.
fn is_news(last: Option<&CheckpointMark>, mark: &CheckpointMark) -> bool {
    let minute = |mark: &CheckpointMark| {
        mark.time.parse::<Timestamp>().ok().map(|time| time.as_second() / CHECKPOINT_EVENT_SECONDS)
    };
    last.is_none_or(|last| last.step != mark.step && minute(last) != minute(mark))
}

/// What the operator adds to the status type.
pub(crate) trait Report {
    /// Takes over a report.
    fn report(&mut self, progress: &Progress, now: Timestamp);
    /// The result of a complete job in one line.
    fn result(&self) -> String;
    /// Writes the columns of `kubectl get`.
    fn show(&mut self, job: &ValidJob);
    /// How far the job is, and how much of that is saved where that is less.
    fn shown(&self, progress: &JobProgress) -> String;
}

impl Report for TrainingJobStatus {
    fn report(&mut self, reported: &Progress, now: Timestamp) {
        // A report may leave out what it has no new figure for, as the last one does.
        let last = self.progress.take().unwrap_or_default();
        let has_saved = reported.last_checkpoint.is_some();
        let reported = &reported.clone().after(self.last_checkpoint.as_ref(), last.unsaved.as_ref());
        if let Some(found) = reported.benchmark.as_deref().filter(|found| is_bounded(found)) {
            self.benchmark = Some(Box::new(found.clone()));
        }
        let finite = |figure: Option<f64>| figure.filter(|figure| figure.is_finite());
        // The group may have changed since it was reported.
        let membership = self.membership.get_or_insert_default();
        if reported.generation >= membership.generation {
            (membership.generation, membership.world_size) = (reported.generation, reported.world_size);
        }
        self.progress = Some(JobProgress {
            step: reported.step,
            total_steps: reported.total_steps,
            epoch: reported.epoch,
            percent: reported.percent(),
            estimated_remaining_seconds: reported.estimated_remaining_seconds.and_then(whole_seconds),
            loss: finite(reported.loss).or(last.loss),
            accuracy: finite(reported.accuracy).or(last.accuracy),
            samples_per_second: finite(reported.samples_per_second).or(last.samples_per_second),
            scaling_efficiency: finite(reported.scaling_efficiency).or(last.scaling_efficiency),
            stragglers: reported
                .stragglers
                .iter()
                .filter(|slow| slow.times.is_finite())
                .take(MAX_STRAGGLERS)
                .map(|slow| Straggler { pod: clip(&slow.pod), times: slow.times })
                .collect(),
            communication: reported.communication.or(last.communication),
            damaged_checkpoint: reported.damaged_checkpoint.as_ref().map(|damaged| DamagedCheckpoint {
                step: damaged.step,
                uri: clip(&damaged.uri),
                reason: clip(&damaged.reason),
            }),
            unsaved: reported
                .unsaved
                .as_ref()
                .map(|unsaved| Unsaved { reason: clip(&unsaved.reason), ..unsaved.clone() }),
            // A worker that has saved nothing yet does not know.
            short_grace: match has_saved {
                true => reported.short_grace.filter(|short| short.drain_seconds.is_finite()),
                false => last.short_grace,
            },
            last_update_time: Some(Time(now)),
        });
        if reported.last_checkpoint.is_some() {
            self.last_checkpoint.clone_from(&reported.last_checkpoint);
        }
    }

    fn result(&self) -> String {
        if let Some(found) = &self.benchmark {
            return best_of(found);
        }
        let steps = self.progress.as_ref().map(|progress| format!("{} steps", progress.step));
        let accuracy = self.progress.as_ref().and_then(|progress| progress.accuracy);
        let accuracy = accuracy.map(|accuracy| format!("accuracy {:.2}%", accuracy * 100.0));
        let model = self.model_uri.as_ref().map(|uri| format!("model in {uri}"));
        let known: Vec<String> = [steps, accuracy, model].into_iter().flatten().collect();
        if known.is_empty() { "the last step is done".to_owned() } else { known.join(", ") }
    }

    fn shown(&self, progress: &JobProgress) -> String {
        let holds = |wanted: ConditionType| {
            self.conditions.iter().any(|known| known.type_ == wanted.to_string() && known.status == "True")
        };
        let saved = self.last_checkpoint.as_ref().map_or(0, |mark| mark.step);
        let saved = Progress { step: saved, total_steps: progress.total_steps, ..Progress::default() }.percent();
        let percent = progress.percent;
        match (self.phase, holds(ConditionType::CheckpointsFailing)) {
            (Some(Phase::Suspended), _) if saved < percent && self.benchmark.is_none() => format!("{saved}%"),
            (_, true) => format!("{percent}%, {saved}% saved"),
            (_, false) => format!("{percent}%"),
        }
    }

    fn show(&mut self, job: &ValidJob) {
        let finished = self.phase.is_some_and(Phase::is_finished);
        let progress = self.progress.as_ref();
        self.display = Some(Display {
            workers: workers_shown(self, job),
            progress: progress.map(|progress| self.shown(progress)),
            samples_per_second: progress
                .and_then(|progress| progress.samples_per_second)
                .map(|rate| format!("{rate:.0}")),
            efficiency: progress
                .and_then(|progress| progress.scaling_efficiency)
                .map(|efficiency| format!("{:.0}%", efficiency * 100.0)),
            loss: progress.and_then(|progress| progress.loss).map(|loss| format!("{loss:.4}")),
            remaining: progress
                .filter(|_| !finished)
                .and_then(|progress| progress.estimated_remaining_seconds)
                .map(duration),
        });
    }
}

/// How many workers have joined. When a job is over none is left: then the workers that saw its end
/// are shown, and nothing where it failed.
fn workers_shown(status: &TrainingJobStatus, job: &ValidJob) -> String {
    let replicas = job.replicas.get();
    let last_group = status.membership.as_ref().map(|membership| membership.world_size);
    match status.phase {
        Some(Phase::Complete) => {
            let finished = last_group.filter(|world| (1..=replicas).contains(world)).unwrap_or(replicas);
            format!("{finished}/{replicas}")
        }
        Some(Phase::Failed) => "-".to_owned(),
        Some(Phase::Pending | Phase::Starting | Phase::Running | Phase::Restarting | Phase::Suspended) | None => {
            format!("{}/{replicas}", status.ready_replicas)
        }
    }
}

/// Reason and verb of workers that do what the job is for.
pub(crate) fn at_work(job: &ValidJob) -> (Reason, &'static str) {
    match job.task {
        Task::Train(_) => (Reason::Training, "train"),
        Task::Benchmark { .. } => (Reason::Measuring, "measure"),
    }
}

/// A report that the job's schema takes; a pod may run anybody's image.
fn is_bounded(found: &BenchmarkReport) -> bool {
    let BenchmarkReport::Collectives(report) = found;
    report.is_bounded()
}

fn best_of(found: &BenchmarkReport) -> String {
    let BenchmarkReport::Collectives(report) = found;
    let CollectivesReport { workers, .. } = report;
    match report.best() {
        Some(CollectivesRow { bytes, algorithm, bus_gigabytes_per_second, .. }) => format!(
            "best bus bandwidth {bus_gigabytes_per_second:.3} GB/s: {algorithm}, {} over {workers} workers",
            ByteSize::bytes(*bytes)
        ),
        None => "nothing was measured".to_owned(),
    }
}

/// Sets a condition; its transition time moves only when its status does.
pub(crate) fn set_condition(
    status: &mut TrainingJobStatus,
    type_: ConditionType,
    holds: bool,
    reason: Reason,
    message: &str,
    now: Timestamp,
) {
    let text = if holds { "True" } else { "False" };
    let earlier = status.conditions.iter().find(|condition| condition.type_ == type_.to_string());
    let since =
        earlier.filter(|condition| condition.status == text).map(|condition| condition.last_transition_time.clone());
    let condition = Condition {
        last_transition_time: since.unwrap_or(Time(now)),
        message: message.to_owned(),
        observed_generation: status.observed_generation,
        reason: reason.to_string(),
        status: text.to_owned(),
        type_: type_.to_string(),
    };
    match status.conditions.iter_mut().find(|other| other.type_ == condition.type_) {
        Some(other) => *other = condition,
        None => status.conditions.push(condition),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie within a year")]
fn whole_seconds(seconds: f64) -> Option<u64> {
    (0.0..=31_536_000.0).contains(&seconds).then(|| seconds.round() as u64)
}

fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}

/// A failure in one line.
pub(crate) fn told(failure: &LastFailure) -> String {
    let LastFailure { pod, node, exit_code, reason, message, log: _, time: _ } = failure;
    let pod = pod.as_deref().unwrap_or("a pod");
    let node = node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let reason = reason.as_deref().unwrap_or("lost");
    let code = exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("{pod}{node}: {reason}{code}{message}")
}
