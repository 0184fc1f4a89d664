//! The history of a run in a folder of this machine: of a `lockstep run`, or of a job in the
//! mounted claim of a cluster.

use std::path::Path;

use anyhow::{Context, bail};
use lockstep_launch::{lines, metrics_log};

use super::{Log, Reports, RunHistory, checkpoints, with_costs};
use crate::run::{
    environment::{self, Start},
    folder::{MANIFEST, ReadOnlyFolder, metrics_log_of},
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
            let (shown, file) = (path.display(), metrics_log::METRICS_FILE);
            if metrics_log::files(path, None).is_ok_and(|files| files.iter().any(|file| file.path.is_file())) {
                bail!("{shown}: it has no {MANIFEST}, and its {file} tells of no step yet");
            }
            bail!("{shown}: not the folder of a run: it has neither {MANIFEST} nor {file}");
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
        let reports = Reports::of_all_starts(path);
        absent.extend(reports.unreadable.clone());
        let starts: Vec<Start> =
            lines::read(&path.join(environment::FILE)).context("read the environment of the run")?;
        if starts.is_empty() {
            absent.push("The run kept no environment: an older version of lockstep did it.".to_owned());
        }
        Ok(Self {
            name: folder.job.name.clone(),
            origin: path.display().to_string(),
            state: state(folder.is_at_work(), &Reports::of_newest_start(path, &starts)).to_owned(),
            changes: with_costs(folder.history()?, &log.steps),
            manifest: Some(folder.value),
            log,
            checkpoints,
            starts,
            report: reports.furthest().cloned(),
            absent,
        })
    }
}

fn state(is_at_work: bool, reports: &Reports) -> &'static str {
    match (is_at_work, reports.is_complete()) {
        (true, _) => "at work",
        (false, true) => "complete",
        (false, false) => "stopped before its last step",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_without_a_step_says_what_it_lacks() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = || RunHistory::of_folder(folder.path()).expect_err("no step").to_string();
        assert!(error().contains("neither"), "{}", error());
        fs::write(folder.path().join(metrics_log::METRICS_FILE), "").expect("written");
        assert!(error().ends_with("metrics.jsonl tells of no step yet"), "{}", error());
    }
}
