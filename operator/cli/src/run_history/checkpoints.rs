//! The checkpoints of a run that are still there, as the trainer beside this program lists them.

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};
use lockstep_launch::Task;
use serde::Deserialize;

use crate::{metrics_lines::Figures, run::find_trainer};

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Checkpoint {
    pub step: u64,
    #[serde(default)]
    pub epoch: u64,
    /// Time at which it became whole, RFC 3339.
    #[serde(default)]
    pub time: String,
    pub evaluation: Option<Figures>,
    #[serde(default)]
    pub best: bool,
    /// Bytes of all its files, if they are known.
    pub bytes: Option<u64>,
    /// The reason for which it cannot be used.
    pub unusable: Option<String>,
}

/// Returns the checkpoints, newest first, and the reason if they cannot be listed.
pub(super) fn of_folder(path: &Path, task: &Task) -> (Vec<Checkpoint>, Option<String>) {
    let Task::Train(workload) = task else { return (Vec::new(), None) };
    if workload.checkpoint.objects().is_some() {
        let uri = &workload.checkpoint.uri;
        let absent = format!("Checkpoints are in {uri} and are not listed: see `lockstep checkpoints list`.");
        return (Vec::new(), Some(absent));
    }
    match list(path) {
        Ok(listed) => (listed, None),
        Err(error) => (Vec::new(), Some(format!("Checkpoints are not listed: {error:#}."))),
    }
}

fn list(path: &Path) -> anyhow::Result<Vec<Checkpoint>> {
    let trainer = find_trainer(None)?;
    let listed = Command::new(&trainer).args(["checkpoints", "list", "--json"]).arg(path).output();
    let listed = listed.with_context(|| format!("start {}", trainer.display()))?;
    ensure!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr).trim());
    serde_json::from_slice(&listed.stdout).context("read the list of checkpoints")
}
