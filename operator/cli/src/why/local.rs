//! The answer about a run of `lockstep run`, from the files in its folder.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use lockstep_launch::{Ending, GroupChange, metrics_log};
use serde::Deserialize;
use tokio::time::sleep;

use super::{
    finding::Finding,
    words::{ago, percent, sentence},
};
use crate::{
    run::folder::ReadOnlyFolder,
    scrape::{self, WorkerTime},
    worker_metrics,
};

/// Time between two looks at the workers' metrics.
const BETWEEN_SCRAPES: Duration = Duration::from_secs(2);
/// A run without a step for this long stands still.
const STANDS_STILL: SignedDuration = SignedDuration::from_secs(60);
/// A worker that comes later than the first by this share of a step holds the others up.
const LATE: f64 = 0.25;
/// Above this share of the time, a kind of wait costs too much.
const MUCH: f64 = 0.25;
/// Words with which a process says that it was asked to stop.
const STOPPED: &str = "stopped on request";
/// Changes of the group that an answer names.
const CHANGES: usize = 3;

/// Everything that is known of a run.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Deserialize), serde(rename_all = "camelCase", default))]
pub(super) struct RunFacts {
    /// When these facts were read, in seconds since 1970.
    now: i64,
    folder: String,
    name: String,
    /// True while `lockstep run` is at work.
    at_work: bool,
    /// The newest step in the metrics log.
    step: Option<LastStep>,
    /// Changes of the group, oldest first.
    changes: Vec<GroupChange>,
    /// The last words of each process, by its name, in the order in which they were written.
    endings: Vec<(String, Ending)>,
    /// The last error in each log.
    errors: Vec<(String, String)>,
    /// True if the model was written.
    model: bool,
    workers: Vec<WorkerTime>,
}

/// A line of the metrics log.
#[derive(Clone, Debug, Deserialize)]
struct LastStep {
    step: u64,
    world_size: u32,
    #[serde(default)]
    samples_per_second: Option<f64>,
    time: Timestamp,
}

/// Reads a run's folder, and the metrics of its workers if they are at work.
///
/// # Errors
/// It is not the folder of a run, or a file in it cannot be read.
pub(super) async fn observe(path: &Path) -> anyhow::Result<RunFacts> {
    let folder = ReadOnlyFolder::open(path)?;
    let at_work = folder.is_at_work();
    let steps: Vec<LastStep> = metrics_log::read_last(path).with_context(|| format!("read {}", path.display()))?;
    let logs = path.join("logs");
    let workers = if at_work { times(&logs).await } else { Vec::new() };
    Ok(RunFacts {
        now: Timestamp::now().as_second(),
        folder: path.display().to_string(),
        name: folder.job.name.clone(),
        at_work,
        step: steps.last().cloned(),
        changes: folder.history()?,
        endings: endings(&path.join("endings")),
        errors: errors(&logs),
        model: path.join("model.safetensors").exists(),
        workers,
    })
}

async fn times(logs: &Path) -> Vec<WorkerTime> {
    let before = worker_metrics::of_run(logs).await;
    sleep(BETWEEN_SCRAPES).await;
    scrape::between(&before.found, &worker_metrics::of_run(logs).await.found)
}

fn endings(folder: &Path) -> Vec<(String, Ending)> {
    let mut found: Vec<(SystemTime, String, Ending)> = files(folder)
        .into_iter()
        .filter_map(|path| {
            let name = path.file_stem()?.to_str()?.to_owned();
            let ending = Ending::from_line(&fs::read_to_string(&path).ok()?)?;
            Some((path.metadata().ok()?.modified().ok()?, name, ending))
        })
        .collect();
    found.sort_by_key(|(time, ..)| *time);
    found.into_iter().map(|(_, name, ending)| (name, ending)).collect()
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
    if facts.at_work {
        let mut found: Vec<Finding> =
            [still(facts), late(facts), data(facts), communication(facts)].into_iter().flatten().collect();
        if found.is_empty() {
            found.push(well(facts));
        }
        return found;
    }
    vec![over(facts)]
}

/// Describes a run that is over.
fn over(facts: &RunFacts) -> Finding {
    let RunFacts { folder, name, endings, errors, model, .. } = facts;
    let failures: Vec<&(String, Ending)> = endings
        .iter()
        .filter(|(_, ending)| !ending.message.is_empty() && !ending.message.starts_with(STOPPED))
        .collect();
    let at =
        facts.step.as_ref().map(|last| format!("Its last step was {}, with {} workers.", last.step, last.world_size));
    let history = (format!("lockstep history {folder}"), "the changes of its group, with causes and costs".to_owned());
    let is_complete = *model || endings.iter().any(|(_, ending)| ending.model_uri.is_some());
    if failures.is_empty() && is_complete {
        return Finding::new(format!("{name} is complete."))
            .seen_all(at)
            .next(format!("lockstep eval {folder}"), "how good the model is")
            .next_if(Some(history));
    }
    let again = (format!("lockstep run {folder}/manifest.yaml --output {folder}"), "go on from its newest checkpoint");
    let again = (again.0, again.1.to_owned());
    let Some((first, ending)) = failures.first() else {
        let stopped = endings.iter().any(|(_, ending)| ending.message.starts_with(STOPPED));
        let matter = match stopped {
            true => format!("{name} was stopped before its end, by a signal such as Ctrl-C."),
            false => format!("{name} is not at work and did not end: its processes were killed."),
        };
        let said = errors.iter().map(|(log, line)| format!("logs/{log}: {}", line.trim()));
        return Finding::new(matter)
            .seen_all(at)
            .seen_all(changes(facts))
            .seen_all(said)
            .next_if(Some(again))
            .next_if(Some(history));
    };
    let others: Vec<String> = failures
        .iter()
        .skip(1)
        .filter(|(_, other)| other.message != ending.message)
        .map(|(process, other)| format!("{process} then said: {}", sentence(&other.message)))
        .collect();
    let process = first.strip_prefix(&format!("{name}-")).unwrap_or(first);
    Finding::new(format!("{name} failed: {first} ended first."))
        .seen(format!("It said: {}", sentence(&ending.message)))
        .seen_all(others)
        .seen_all(at)
        .seen_all(changes(facts))
        .next(format!("tail -n 50 {folder}/logs/{process}.log"), "its last lines")
        .next_if(Some((again.0, format!("once that is mended: {}", again.1))))
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
    (now.duration_since(last.time) > STANDS_STILL).then(|| {
        Finding::new(format!(
            "{} stands still: no step for {}, at step {}.",
            facts.name,
            ago(last.time, now),
            last.step
        ))
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
    let worst =
        facts.workers.iter().max_by(|one, other| one.data.total_cmp(&other.data)).filter(|worst| worst.data > MUCH)?;
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
    (worst.communication > MUCH).then(|| {
        let share = percent(worst.communication);
        Finding::new(format!("{} is slow: {} waits for sums {share} of its time.", facts.name, worst.worker))
            .seen("A small model or a small batch has too little to compute between two sums.")
            .next(top(facts), "each worker's share")
            .next("lockstep bench", "what this machine's links can do")
    })
}

/// Says that all is well.
fn well(facts: &RunFacts) -> Finding {
    let RunFacts { name, folder, .. } = facts;
    let Some(last) = &facts.step else {
        return Finding::new(format!("{name} is starting: it has done no step yet."))
            .next(format!("lockstep logs {folder} --follow"), "what its processes say");
    };
    let speed = last.samples_per_second.map(|speed| format!(" at {speed:.0} samples/s")).unwrap_or_default();
    let steps =
        format!("{name} trains, and nothing is wrong: step {} with {} workers{speed}.", last.step, last.world_size);
    Finding::new(steps).seen_all(changes(facts)).next(top(facts), "each worker's time in a step")
}

fn top(facts: &RunFacts) -> String {
    format!("lockstep top {}", facts.folder)
}
