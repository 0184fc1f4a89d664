//! The folder of another `lockstep run`, which is at work or has ended. This process does not hold
//! its lock.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use lockstep_api::ValidJob;
use lockstep_launch::{AgreedPlan, GroupChange, PLANS_FILE, lines, metrics_log};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{EARLIER_MANIFEST, HISTORY, MANIFEST, lock::Lock};
use crate::manifest;

/// The folder of another `lockstep run`, which is at work or has ended.
#[derive(Debug)]
pub(crate) struct ReadOnlyFolder {
    path: PathBuf,
    /// The job of the run.
    pub(crate) job: ValidJob,
    /// The manifest of the run.
    pub(crate) value: Value,
}

impl ReadOnlyFolder {
    /// Opens the folder of a run.
    ///
    /// # Errors
    /// `path` is not the folder of a run.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let manifest_path = path.join(MANIFEST);
        let text = fs::read_to_string(&manifest_path).with_context(|| {
            let path = path.display();
            format!(
                "{path}: not the folder of a run, which `lockstep run` prints at its start: {MANIFEST} cannot be read"
            )
        })?;
        let value = lockstep_api::manifest::parse(&text).with_context(|| manifest_path.display().to_string())?;
        let job = ValidJob::from_value(value.clone()).map_err(|fields| manifest::refused(&manifest_path, &fields))?;
        Ok(Self { path: path.to_owned(), job, value })
    }

    /// Returns true if a `lockstep run` is at work in the folder.
    pub(crate) fn is_at_work(&self) -> bool {
        Lock::is_held(&self.path)
    }

    /// Returns the run's first manifest, if the run continued with another one.
    pub(crate) fn earlier_manifest(&self) -> anyhow::Result<Option<PathBuf>> {
        let first = self.path.join(EARLIER_MANIFEST);
        Ok(first.try_exists().with_context(|| format!("look for {}", first.display()))?.then_some(first))
    }

    /// Reads every change of the group, oldest first, without a torn last line.
    pub(crate) fn history(&self) -> anyhow::Result<Vec<GroupChange>> {
        self.lines(HISTORY)
    }

    /// Reads every agreed plan. A torn line is left out: its writer was killed before the step.
    pub(crate) fn plans(&self) -> anyhow::Result<Vec<AgreedPlan>> {
        self.lines(PLANS_FILE)
    }

    fn lines<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Vec<T>> {
        let path = self.path.join(name);
        lines::read(&path).with_context(|| format!("read {}", path.display()))
    }
}

/// Reads the metrics log of a run; empty if it is missing.
pub(crate) fn metrics_log_of(run: &Path) -> anyhow::Result<String> {
    match metrics_log::read(run) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("read the metrics log in {}", run.display())),
    }
}
