//! The history of a run in a folder of this machine: of a `lockstep run`, or of a job in the
//! mounted claim of a cluster.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use lockstep_launch::{Ending, Progress, lines, metrics_log};

use super::{Log, RunHistory, checkpoints, with_costs};
use crate::run::{
    environment,
    folder::{ENDINGS, MANIFEST, ReadOnlyFolder, metrics_log_of},
    keeper,
};

impl RunHistory {
    /// Reads the folder of a run. A folder of a job in a cluster's claim holds the metrics log
    /// only.
    ///
    /// # Errors
    /// The folder is none of a run, or its files cannot be read.
    pub(crate) fn of_folder(path: &Path) -> anyhow::Result<Self> {
        if path.join(MANIFEST).is_file() {
            return Self::of_run(path);
        }
        let log = Log::parse(&metrics_log_of(path)?);
        if log.steps.is_empty() {
            let shown = path.display();
            bail!("{shown}: not the folder of a run: it has neither {MANIFEST} nor {}", metrics_log::METRICS_FILE);
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let absent =
            format!("This folder has no {MANIFEST}, no causes of changes and no report: only the metrics log.");
        Ok(Self { name, origin: path.display().to_string(), log, absent: vec![absent], ..Self::default() })
    }

    fn of_run(path: &Path) -> anyhow::Result<Self> {
        let folder = ReadOnlyFolder::open(path)?;
        let mut absent = Vec::new();
        let log = Log::parse(&metrics_log_of(path)?);
        if log.steps.is_empty() {
            absent.push("The run has done no step that its metrics log tells of.".to_owned());
        }
        let (checkpoints, missing) = checkpoints::of_folder(path, &folder.job.task);
        absent.extend(missing);
        let report = newest_report(path);
        let starts = lines::read(&path.join(environment::FILE)).context("read the environment of the run")?;
        if starts.is_empty() {
            absent.push("The run kept no environment: an older version of lockstep did it.".to_owned());
        }
        Ok(Self {
            name: folder.job.name.clone(),
            origin: path.display().to_string(),
            state: state(&folder, report.as_ref()).to_owned(),
            changes: with_costs(folder.history()?, &log.steps),
            manifest: Some(folder.value),
            log,
            checkpoints,
            starts,
            report,
            absent,
        })
    }
}

fn state(folder: &ReadOnlyFolder, report: Option<&Progress>) -> &'static str {
    let is_done = report.is_some_and(|report| report.total_steps > 0 && report.step == report.total_steps);
    match (folder.is_at_work(), is_done) {
        (true, _) => "at work",
        (false, true) => "complete",
        (false, false) => "stopped before its last step",
    }
}

/// Returns the furthest report of those that `lockstep run` and the processes left. That of
/// `lockstep run` has the figures of the whole run.
fn newest_report(path: &Path) -> Option<Progress> {
    let text = |path: &Path| fs::read_to_string(path).ok();
    let kept = text(&path.join(keeper::REPORT)).and_then(|text| serde_json::from_str(&text).ok());
    let endings = fs::read_dir(path.join(ENDINGS)).into_iter().flatten().flatten();
    let ended = endings.filter_map(|entry| Ending::from_line(&text(&entry.path())?)?.progress);
    ended.chain(kept).max_by_key(|report| (report.step, report.whole_run.is_some()))
}
