//! Everything that a run left behind, as one value. `lockstep plot` and `lockstep report` draw it.

mod changes;
mod checkpoints;
mod folder;
mod job;
mod pod_logs;
mod reports;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::ensure;
use lockstep_launch::Progress;
use serde_json::Value;

pub(crate) use self::{
    changes::{Change, with_costs},
    checkpoints::Checkpoint,
    reports::Reports,
};
use crate::{
    cluster,
    metrics_lines::{Evaluation, Line, Step, parse},
    run::environment::Start,
    target::Target,
};

/// Refuses a log that belongs to none of the targets.
const ONE_LOG: &str = "--log: only for one job in a cluster; a run has its own";

/// The cluster of the jobs, and the folder of a metrics log.
#[derive(clap::Args)]
#[group(id = "histories")]
pub(crate) struct Arguments {
    #[command(flatten)]
    cluster: cluster::Arguments,
    /// Folder with the metrics log of a job in a cluster: its storage, mounted or copied.
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
}

impl Arguments {
    /// Reads the histories of jobs and runs.
    ///
    /// # Errors
    /// One of them cannot be read, or a log is given for anything but one job.
    pub(crate) async fn read(&self, targets: &[String]) -> anyhow::Result<Vec<RunHistory>> {
        ensure!(self.log.is_none() || targets.len() == 1, ONE_LOG);
        let mut histories = Vec::new();
        for target in targets {
            histories.push(self.read_one(target).await?);
        }
        Ok(histories)
    }

    /// Reads the history of a job or a run.
    ///
    /// # Errors
    /// It cannot be read, or a log is given for a run.
    pub(crate) async fn read_one(&self, target: &str) -> anyhow::Result<RunHistory> {
        let Self { cluster, log } = self;
        match Target::of(target) {
            Target::Run(folder) => {
                ensure!(log.is_none(), ONE_LOG);
                RunHistory::of_folder(folder)
            }
            Target::Job(name) => RunHistory::of_job(&cluster.connect().await?, name, log.as_deref()).await,
        }
    }
}

/// The history of a run or of a job in a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunHistory {
    /// The name of the job.
    pub name: String,
    /// The place that it was read from: a folder, or namespace and name.
    pub origin: String,
    /// The state of the run in a few words.
    pub state: String,
    /// The manifest, if it is known.
    pub manifest: Option<Value>,
    pub log: Log,
    /// The changes of the group, oldest first.
    pub changes: Vec<Change>,
    /// The checkpoints that are still there, newest first.
    pub checkpoints: Vec<Checkpoint>,
    /// The starts of the run, with versions and machines.
    pub starts: Vec<Start>,
    /// The newest report of the group.
    pub report: Option<Progress>,
    /// Parts that could not be had, each with the reason.
    pub absent: Vec<String>,
}

/// The metrics log of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// The steps that count, in order.
    pub steps: Vec<Step>,
    /// The evaluations that count, in order.
    pub evaluations: Vec<Evaluation>,
}

impl Log {
    /// Reads the text of a metrics log. Torn lines are left out.
    pub(crate) fn parse(text: &str) -> Self {
        let mut log = Self::default();
        for line in text.lines().filter_map(parse) {
            match line {
                Line::Step(step) => log.steps.push(*step),
                Line::Evaluation(evaluation) => log.evaluations.push(evaluation),
            }
        }
        log
    }

    /// Returns the number of steps from one line to the next: 1 if the log is whole, more if the
    /// worker that sent it has thinned it.
    pub(crate) fn distance(&self) -> u64 {
        let between = self.steps.windows(2).map(|pair| pair[1].step.saturating_sub(pair[0].step));
        between.min().unwrap_or(1)
    }

    /// Returns the seconds of each phase of the reporting worker's time.
    pub(crate) fn phases(&self) -> BTreeMap<&str, f64> {
        let mut phases = BTreeMap::new();
        for (phase, seconds) in self.steps.iter().flat_map(|step| &step.phases) {
            *phases.entry(phase.as_str()).or_default() += seconds;
        }
        phases
    }
}
