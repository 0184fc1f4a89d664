//! The coordinator's reports: how far the work is, and how the membership changed.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{JobProgress, LastChange, TrainingJobStatus};
use lockstep_launch::{
    BenchmarkReport, BestMark, CheckpointMark, DamagedCheckpoint, GroupChange, Progress, Straggler, Unsaved, WholeRun,
    six_digits,
};

use super::{
    event::JobEvent,
    step::{Actions, Step},
};
use crate::{
    facts::clip,
    judgement::{Situation, reported_at},
};

/// Time between two writes of progress into the status.
const PROGRESS_INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// At most one event about checkpoints is published in this many seconds.
const CHECKPOINT_EVENT_SECONDS: i64 = 60;

/// Names of slow workers that a status holds.
const MAX_STRAGGLERS: usize = 16;
/// Changes of a group that are published at a time; older ones are left out.
const MAX_CHANGES: usize = 20;

/// Takes over the coordinator's report. If the last one was taken over just before and not
/// `at_once`, it looks again later.
pub(crate) fn take_progress(situation: &Situation<'_>, status: TrainingJobStatus, at_once: bool) -> Step {
    let now = situation.now;
    let Some(reported) = situation.seen.group.as_ref().and_then(|group| group.progress.as_ref()) else {
        return status.into();
    };
    let next = with_report(status.clone(), reported, now);
    if is_same_but_for_time(&next, &status) {
        return status.into();
    }
    let due = reported_at(&status).map(|last| last + PROGRESS_INTERVAL);
    if let Some(due) = due.filter(|due| *due > now && !at_once) {
        return Step::from(status).and(Actions::look_again_at(due));
    }
    news(&status, &next).into_iter().fold(Step::from(next), Step::event)
}

fn is_same_but_for_time(next: &TrainingJobStatus, status: &TrainingJobStatus) -> bool {
    let mut same_time = next.clone();
    if let (Some(new), Some(old)) = (&mut same_time.progress, &status.progress) {
        new.last_update_time.clone_from(&old.last_update_time);
    }
    same_time == *status
}

/// The events of a new report. Each is published when its cause appears.
fn news(before: &TrainingJobStatus, next: &TrainingJobStatus) -> Vec<JobEvent> {
    let nothing = JobProgress::default();
    let (old, new) = [before, next].map(|status| status.progress.as_ref().unwrap_or(&nothing)).into();
    let mut events: Vec<JobEvent> = save_event(before, next).into_iter().collect();
    let was_slow = |slow: &Straggler| old.stragglers.iter().any(|known| known.pod == slow.pod);
    events.extend(new.stragglers.iter().filter(|slow| !was_slow(slow)).map(JobEvent::straggler));
    let damaged = new.damaged_checkpoint.as_ref().filter(|damaged| old.damaged_checkpoint.as_ref() != Some(damaged));
    events.extend(damaged.map(JobEvent::checkpoint_damaged));
    let short = new.short_grace.as_ref().filter(|_| old.short_grace.is_none());
    events.extend(short.map(JobEvent::short_grace));
    events
}

/// Takes over the changes of the membership, with an event for each. The very first membership is
/// no change.
pub(crate) fn take_changes(situation: &Situation<'_>, mut status: TrainingJobStatus) -> Step {
    let last = status.membership.as_ref().and_then(|membership| membership.last_change.as_ref());
    let known = last.map(|last| last.generation);
    let changes = situation.seen.group.iter().flat_map(|group| &group.changes);
    let mut new: Vec<_> = changes.filter(|change| Some(change.generation) > known).collect();
    new.sort_by_key(|change| change.generation);
    let is_change = |change: &&&GroupChange| known.is_some() || change.generation > 1;
    status.resizes = status.resizes.saturating_add(new.iter().filter(is_change).count() as u32);
    let mut events = Vec::new();
    for change in &new[new.len().saturating_sub(MAX_CHANGES)..] {
        // The user's image wrote the record, so nothing in it is bounded.
        let text = clip(&change.to_string());
        if known.is_some() || change.generation > 1 {
            events.push(JobEvent::regrouped(&text, change));
        }
        let membership = status.membership.get_or_insert_default();
        membership.generation = membership.generation.max(change.generation);
        membership.world_size = change.workers;
        membership.last_change =
            Some(LastChange { generation: change.generation, text, seconds: six_digits(change.seconds) });
    }
    events.into_iter().fold(Step::from(status), Step::event)
}

/// The event of saves that begin to fail, or that training begins to wait for. Otherwise the event
/// of a checkpoint, if there is one.
fn save_event(before: &TrainingJobStatus, next: &TrainingJobStatus) -> Option<JobEvent> {
    let unsaved = |status: &TrainingJobStatus| status.progress.as_ref().and_then(|progress| progress.unsaved.clone());
    match (unsaved(before), unsaved(next)) {
        (before, Some(next)) => {
            let is_new = before.is_none_or(|before| next.waits && !before.waits);
            is_new.then(|| JobEvent::checkpoint_failed(&next))
        }
        (Some(_), None) => checkpoint_event(None, next),
        (None, None) => checkpoint_event(before.last_checkpoint.as_ref(), next),
    }
}

/// The event of a new checkpoint, unless `last` falls into the same minute.
pub(crate) fn checkpoint_event(last: Option<&CheckpointMark>, status: &TrainingJobStatus) -> Option<JobEvent> {
    let minute = |mark: &CheckpointMark| {
        mark.time.parse::<Timestamp>().ok().map(|time| time.as_second() / CHECKPOINT_EVENT_SECONDS)
    };
    let is_new = |mark: &CheckpointMark| last.is_none_or(|last| last.step != mark.step && minute(last) != minute(mark));
    let mark = status.last_checkpoint.as_ref().filter(|mark| is_new(mark))?;
    Some(JobEvent::checkpoint_saved(mark.step, &mark.uri))
}

/// Writes a report into the status. The user's image wrote the report, so every text is cut and
/// every figure is checked.
pub(crate) fn with_report(mut status: TrainingJobStatus, reported: &Progress, now: Timestamp) -> TrainingJobStatus {
    // A report may leave out figures that are not new, as the last one does. Those of the steps of
    // another group do not hold any more.
    let last = status.progress.take().unwrap_or_default();
    let group = if last.generation == reported.generation { last.clone() } else { JobProgress::default() };
    let has_saved = reported.last_checkpoint.is_some();
    let reported = &reported.clone().after(status.last_checkpoint.as_ref(), last.unsaved.as_ref());
    if let Some(found) = reported.benchmark.as_deref().filter(|found| is_bounded(found)) {
        status.benchmark = Some(Box::new(found.clone()));
    }
    // The group may have changed since the report.
    let membership = status.membership.get_or_insert_default();
    if reported.generation >= membership.generation {
        (membership.generation, membership.world_size) = (reported.generation, reported.world_size);
    }
    let load_balance = figure(reported.load_balance).or(group.load_balance);
    let communication_efficiency = figure(reported.communication_efficiency).or(group.communication_efficiency);
    status.progress = Some(JobProgress {
        step: reported.step,
        generation: reported.generation,
        total_steps: reported.total_steps,
        epoch: reported.epoch,
        percent: reported.percent(),
        estimated_remaining_seconds: reported.estimated_remaining_seconds.and_then(whole_seconds),
        loss: figure(reported.loss).or(last.loss),
        evaluation_loss: figure(reported.evaluation_loss).or(last.evaluation_loss),
        accuracy: figure(reported.accuracy).or(last.accuracy),
        accuracy_step: reported.accuracy_step.or(last.accuracy_step),
        mean_iou: figure(reported.mean_iou).or(last.mean_iou),
        learning_rate: figure(reported.learning_rate).or(last.learning_rate),
        loss_scale: figure(reported.loss_scale).or(last.loss_scale),
        gradient_norm: figure(reported.gradient_norm).or(last.gradient_norm),
        gradient_noise_scale: figure(reported.gradient_noise_scale).or(group.gradient_noise_scale),
        samples_per_second: figure(reported.samples_per_second).or(group.samples_per_second),
        alone_samples_per_second: figure(reported.alone_samples_per_second).or(last.alone_samples_per_second),
        model_flops_per_second: figure(reported.model_flops_per_second).or(group.model_flops_per_second),
        bus_bandwidth_bytes_per_second: figure(reported.bus_bandwidth_bytes_per_second)
            .or(group.bus_bandwidth_bytes_per_second),
        load_balance,
        communication_efficiency,
        parallel_efficiency: load_balance
            .zip(communication_efficiency)
            .map(|(balance, other)| six_digits(balance * other)),
        scaling_efficiency: figure(reported.scaling_efficiency).or(group.scaling_efficiency),
        scaling_baseline: reported.scaling_baseline.or(group.scaling_baseline),
        whole_run: reported.whole_run.as_ref().and_then(whole_run).or(last.whole_run),
        stragglers: stragglers(reported),
        communication: reported.communication.or(last.communication),
        damaged_checkpoint: reported.damaged_checkpoint.as_ref().map(|damaged| DamagedCheckpoint {
            step: damaged.step,
            uri: clip(&damaged.uri),
            reason: clip(&damaged.reason),
        }),
        unsaved: reported.unsaved.as_ref().map(|unsaved| Unsaved { reason: clip(&unsaved.reason), ..unsaved.clone() }),
        // A worker that has saved nothing yet does not know.
        short_grace: match has_saved {
            true => reported.short_grace.filter(|short| short.drain_seconds.is_finite()),
            false => last.short_grace,
        },
        last_update_time: Some(Time(now)),
    });
    if reported.last_checkpoint.is_some() {
        status.last_checkpoint.clone_from(&reported.last_checkpoint);
    }
    if let Some(best) = reported.best_checkpoint.as_ref().filter(|best| best.value.is_finite()) {
        let (uri, time) = (clip(&best.uri), clip(&best.time));
        status.best_checkpoint = Some(BestMark { uri, time, ..best.clone() });
    }
    status
}

fn stragglers(reported: &Progress) -> Vec<Straggler> {
    let stragglers = reported.stragglers.iter().filter(|slow| slow.times.is_finite()).take(MAX_STRAGGLERS);
    stragglers.map(|slow| Straggler { pod: clip(&slow.pod), times: six_digits(slow.times) }).collect()
}

/// True if the job's schema accepts the report.
fn is_bounded(found: &BenchmarkReport) -> bool {
    let BenchmarkReport::Collectives(report) = found;
    report.is_bounded()
}

fn whole_run(reported: &WholeRun) -> Option<WholeRun> {
    let WholeRun { seconds, samples_per_second, goodput_samples_per_second, goodput_ratio, lost_seconds } = *reported;
    Some(WholeRun {
        seconds: figure(Some(seconds))?,
        samples_per_second: figure(Some(samples_per_second))?,
        goodput_samples_per_second: figure(Some(goodput_samples_per_second))?,
        goodput_ratio: figure(Some(goodput_ratio))?,
        lost_seconds: figure(Some(lost_seconds))?,
    })
}

/// Returns a reported figure as the status has it; none if it is infinite or not a number.
fn figure(reported: Option<f64>) -> Option<f64> {
    reported.filter(|figure| figure.is_finite()).map(six_digits)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie within a year")]
fn whole_seconds(seconds: f64) -> Option<u64> {
    (0.0..=31_536_000.0).contains(&seconds).then(|| seconds.round() as u64)
}
