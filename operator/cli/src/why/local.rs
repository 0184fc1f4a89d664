//! The answer about a run of `lockstep run`, from the files in its folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use jiff::Timestamp;
use lockstep_launch::{AND_MAY_HAVE, Ending, GroupChange, Progress, Task, lines, metrics_log};
use tokio::time::sleep;

use super::{
    facts::{MUCH_DATA, STANDS_STILL},
    finding::Finding,
    words::{ago, count, percent, sentence},
};
use crate::{
    metrics_lines::Step,
    run::{
        environment::{self, Start},
        folder::ReadOnlyFolder,
    },
    run_history::Reports,
    scrape::{self, BETWEEN_SCRAPES, WorkerTime},
    worker_metrics::LocalWorkers,
};

/// A worker that comes later than the first by this share of a step holds the others up.
const LATE: f64 = 0.25;
/// Above this share of the time, waits for sums cost too much.
const MUCH_COMMUNICATION: f64 = 0.25;
/// Words with which a process says that it was asked to stop.
const STOPPED: &str = "stopped on request";
/// The beginning of a refusal, which has the words of a forecast too.
const DOES_NOT_FIT: &str = "spec.model: ";
/// Changes of the group that an answer names.
const CHANGES: usize = 3;

/// Everything that is known of a run.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(rename_all = "camelCase", default))]
pub(super) struct RunFacts {
    /// When these facts were read, in seconds since 1970.
    now: i64,
    folder: String,
    name: String,
    /// True while `lockstep run` is at work.
    at_work: bool,
    /// True if it trains nothing, and measures.
    benchmark: bool,
    /// The time of its newest start, if it is known.
    started: Option<Timestamp>,
    /// The newest step in the metrics log.
    step: Option<Step>,
    /// Changes of the group, oldest first.
    changes: Vec<GroupChange>,
    /// The reports of its newest start.
    reports: Reports,
    /// The last error in each log.
    errors: Vec<(String, String)>,
    workers: Vec<WorkerTime>,
}

/// Reads a run's folder, and the metrics of its workers if they are at work.
///
/// # Errors
/// It is not the folder of a run, or a file in it cannot be read.
pub(super) async fn observe(path: &Path) -> anyhow::Result<RunFacts> {
    let folder = ReadOnlyFolder::open(path)?;
    let at_work = folder.is_at_work();
    let steps: Vec<Step> = metrics_log::read_last(path).with_context(|| format!("read {}", path.display()))?;
    let starts: Vec<Start> = lines::read(&path.join(environment::FILE)).context("read the environment of the run")?;
    let logs = path.join("logs");
    let workers = if at_work { times(&logs).await } else { Vec::new() };
    Ok(RunFacts {
        now: Timestamp::now().as_second(),
        folder: path.display().to_string(),
        name: folder.job.name.clone(),
        at_work,
        benchmark: matches!(folder.job.task, Task::Benchmark { .. }),
        started: starts.last().and_then(|start| start.time.parse().ok()),
        step: steps.last().cloned(),
        changes: folder.history()?,
        reports: Reports::of_newest_start(path, &starts),
        errors: errors(&logs),
        workers,
    })
}

async fn times(logs: &Path) -> Vec<WorkerTime> {
    let mut workers = LocalWorkers::of(logs);
    let before = workers.look().await;
    sleep(BETWEEN_SCRAPES).await;
    scrape::between(&before.found, &workers.look().await.found)
}

fn errors(logs: &Path) -> Vec<(String, String)> {
    let last = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        let log = fs::read_to_string(&path).ok()?;
        let is_error = |line: &&str| line.contains(" ERROR ") || line.contains("panicked at ");
        Some((name, log.lines().rfind(is_error)?.to_owned()))
    };
    files(logs).into_iter().filter_map(last).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Finds what is the matter with a run.
pub(super) fn answer(facts: &RunFacts) -> Vec<Finding> {
    if !facts.at_work {
        return vec![over(facts)];
    }
    if facts.benchmark {
        return vec![measures(facts)];
    }
    let mut found: Vec<Finding> =
        [still(facts), late(facts), data(facts), communication(facts)].into_iter().flatten().collect();
    if found.is_empty() {
        found.push(well(facts));
    }
    found
}

/// Describes a run that is over.
fn over(facts: &RunFacts) -> Finding {
    if facts.reports.is_complete() {
        return complete(facts);
    }
    let is_failure = |ending: &Ending| {
        let message = &ending.message;
        !message.is_empty() && !message.starts_with(STOPPED) && !is_forecast(message)
    };
    let failures: Vec<&(String, Ending)> =
        facts.reports.endings.iter().filter(|(_, ending)| is_failure(ending)).collect();
    match failures.split_first() {
        Some((first, others)) => failed(facts, first, others),
        None => interrupted(facts),
    }
}

/// True for the forecast that a worker leaves before its first step, in case memory runs out.
fn is_forecast(message: &str) -> bool {
    message.contains(AND_MAY_HAVE) && !message.starts_with(DOES_NOT_FIT)
}

/// Describes a run that reached its end.
fn complete(facts: &RunFacts) -> Finding {
    let RunFacts { folder, name, .. } = facts;
    let finding = Finding::new(format!("{name} is complete.")).seen_all(reached(facts));
    match facts.benchmark {
        true => finding.next(format!("cat {folder}/progress.json"), "its last report, with the table"),
        false => finding.next(format!("lockstep eval {folder}"), "how good the model is").next_if(Some(history(facts))),
    }
}

/// Describes a run that ended before its last step, and not by a failure of its own.
fn interrupted(facts: &RunFacts) -> Finding {
    let RunFacts { name, reports, errors, .. } = facts;
    let stopped = reports.endings.iter().any(|(_, ending)| ending.message.starts_with(STOPPED));
    let matter = match stopped {
        true => format!("{name} was stopped before its end, by a signal such as Ctrl-C."),
        false => format!("{name} is not at work and did not end: its processes were killed."),
    };
    let forecast = reports.endings.iter().find(|(_, ending)| is_forecast(&ending.message));
    let forecast = forecast.map(|(process, ending)| {
        format!("{process} was killed before its first step. If memory ran out: {}", sentence(&ending.message))
    });
    let said = errors.iter().map(|(log, line)| format!("logs/{log}: {}", line.trim()));
    Finding::new(matter)
        .seen_all(reached(facts))
        .seen_all(forecast)
        .seen_all(changes(facts))
        .seen_all(said)
        .next_if(Some(again(facts)))
        .next_if(Some(history(facts)))
}

/// Describes a run that failed: the process that ended first, and the others.
fn failed(facts: &RunFacts, (first, ending): &(String, Ending), others: &[&(String, Ending)]) -> Finding {
    let RunFacts { folder, name, .. } = facts;
    let others: Vec<String> = others
        .iter()
        .filter(|(_, other)| other.message != ending.message)
        .map(|(process, other)| format!("{process} then said: {}", sentence(&other.message)))
        .collect();
    let process = first.strip_prefix(&format!("{name}-")).unwrap_or(first);
    let (command, purpose) = again(facts);
    Finding::new(format!("{name} failed: {first} ended first."))
        .seen(format!("It said: {}", sentence(&ending.message)))
        .seen_all(others)
        .seen_all(reached(facts))
        .seen_all(changes(facts))
        .next(format!("tail -n 50 {folder}/logs/{process}.log"), "its last lines")
        .next(command, format!("once that is mended: {purpose}"))
}

/// Says how far a run came.
fn reached(facts: &RunFacts) -> Option<String> {
    if facts.benchmark {
        return facts.reports.furthest().map(|report| format!("It measured {}.", rows(report)));
    }
    facts.step.as_ref().map(|last| format!("Its last step was {}{}.", last.step, workers(last, ", with ")))
}

fn rows(report: &Progress) -> String {
    let workers = count(report.world_size, "worker");
    format!("{} of {} rows with {workers}", report.step, report.total_steps)
}

/// Returns the number of workers in a step behind some words, if it is known.
fn workers(step: &Step, words: &str) -> String {
    if step.world_size == 0 { String::new() } else { words.to_owned() + &count(step.world_size, "worker") }
}

/// Returns the command that goes on with a run.
fn again(facts: &RunFacts) -> (String, String) {
    let folder = &facts.folder;
    let command = format!("lockstep run {folder}/manifest.yaml");
    match facts.benchmark {
        true => (command, "measure again, from the first row".to_owned()),
        false => (format!("{command} --output {folder}"), "go on from its newest checkpoint".to_owned()),
    }
}

fn history(facts: &RunFacts) -> (String, String) {
    (format!("lockstep history {}", facts.folder), "the changes of its group, with causes and costs".to_owned())
}

/// Describes a benchmark at work.
fn measures(facts: &RunFacts) -> Finding {
    let name = &facts.name;
    let matter = match facts.reports.furthest() {
        None => format!("{name} is starting: it has measured nothing yet."),
        Some(report) => format!("{name} measures, and nothing is wrong: {}.", rows(report)),
    };
    Finding::new(matter)
        .seen_all(changes(facts))
        .next(format!("lockstep logs {} --follow", facts.folder), "what its processes say")
}

/// The newest changes of the group that were losses.
fn changes(facts: &RunFacts) -> Vec<String> {
    let losses: Vec<&GroupChange> =
        facts.changes.iter().filter(|change| !change.lost.is_empty() || change.broken.is_some()).collect();
    let newest = &losses[losses.len().saturating_sub(CHANGES)..];
    newest
        .iter()
        .map(|change| format!("Generation {} at step {}: {}.", change.generation, change.step, change))
        .collect()
}

/// Finds a group without a step for long.
fn still(facts: &RunFacts) -> Option<Finding> {
    let last = facts.step.as_ref()?;
    let now = Timestamp::from_second(facts.now).ok()?;
    // A run that goes on has its newest step from long ago.
    let since = facts.started.map_or(last.time, |started| started.max(last.time));
    (now.duration_since(since) > STANDS_STILL).then(|| {
        Finding::new(format!("{} stands still: no step for {}, at step {}.", facts.name, ago(since, now), last.step))
            .seen_all(changes(facts))
            .next(format!("lockstep logs {} --tail 20", facts.folder), "what its processes say")
    })
}

/// Finds a worker for which the others wait.
fn late(facts: &RunFacts) -> Option<Finding> {
    let latest =
        facts.workers.iter().max_by(|one, other| one.lag_ms.unwrap_or(0.0).total_cmp(&other.lag_ms.unwrap_or(0.0)))?;
    let (lag, step) = (latest.lag_ms?, latest.step_ms?);
    (lag > LATE * step).then(|| {
        Finding::new(format!("{} is slow: it waits for {} in every step.", facts.name, latest.worker))
            .seen(format!("It comes {lag:.1} ms after the first worker, in steps of {step:.1} ms."))
            .seen("On one machine, another program on its cores is the usual cause.")
            .next(top(facts), "each worker's time in a step")
            .next("uptime", "whether the machine has more to do than cores")
    })
}

/// Finds waits for samples.
fn data(facts: &RunFacts) -> Option<Finding> {
    let worst = facts
        .workers
        .iter()
        .max_by(|one, other| one.data.total_cmp(&other.data))
        .filter(|worst| worst.data >= MUCH_DATA)?;
    let matter =
        format!("{} is slow: {} waits for data {} of its time.", facts.name, worst.worker, percent(worst.data));
    Some(
        Finding::new(matter)
            .seen("The disk, the network or the decoding does not keep up.")
            .next(top(facts), "each worker's share of waits for data"),
    )
}

/// Finds sums that computation does not hide.
fn communication(facts: &RunFacts) -> Option<Finding> {
    let worst = facts.workers.iter().max_by(|one, other| one.communication.total_cmp(&other.communication))?;
    (worst.communication > MUCH_COMMUNICATION).then(|| {
        let share = percent(worst.communication);
        Finding::new(format!("{} is slow: {} waits for sums {share} of its time.", facts.name, worst.worker))
            .seen("A small model or a small batch has too little to compute between two sums.")
            .next(top(facts), "each worker's share")
            .next("lockstep bench", "what this machine's links can do")
    })
}

/// Says that all is well.
fn well(facts: &RunFacts) -> Finding {
    let RunFacts { name, folder, started, .. } = facts;
    let logs = format!("lockstep logs {folder} --follow");
    let Some(last) = &facts.step else {
        return Finding::new(format!("{name} is starting: it has done no step yet."))
            .next(logs, "what its processes say");
    };
    if started.is_some_and(|started| last.time < started) {
        return Finding::new(format!("{name} is starting again: it has done no step since step {}.", last.step))
            .next(logs, "what its processes say");
    }
    let speed = Some(last.samples_per_second).filter(|speed| *speed > 0.0);
    let speed = speed.map(|speed| format!(" at {speed:.0} samples/s")).unwrap_or_default();
    let workers = workers(last, " with ");
    Finding::new(format!("{name} trains, and nothing is wrong: step {}{workers}{speed}.", last.step))
        .seen_all(changes(facts))
        .next(top(facts), "each worker's time in a step")
}

fn top(facts: &RunFacts) -> String {
    format!("lockstep top {}", facts.folder)
}
