//! The folder of a run that somebody else's `lockstep run` is at work in, or was.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use lockstep_api::ValidJob;
use lockstep_launch::{AgreedPlan, GroupChange, METRICS_FILE, PLANS_FILE, lines};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{EARLIER_MANIFEST, HISTORY, MANIFEST, WANTED, lock::Lock, replace};
use crate::manifest;

/// The folder of a run that somebody else's `lockstep run` is at work in, or was.
#[derive(Debug)]
pub(crate) struct ReadOnlyFolder {
    path: PathBuf,
    /// The job as it was run.
    pub(crate) job: ValidJob,
    /// Its manifest.
    pub(crate) value: Value,
}

impl ReadOnlyFolder {
    /// # Errors
    /// `path` is no run's folder.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let manifest_path = path.join(MANIFEST);
        let text = fs::read_to_string(&manifest_path).with_context(|| {
            let path = path.display();
            format!("{path}: no run's folder, which `lockstep run` tells at its start: {MANIFEST} cannot be read")
        })?;
        let value = lockstep_api::manifest::parse(&text).with_context(|| manifest_path.display().to_string())?;
        let job = ValidJob::from_value(value.clone()).map_err(|fields| manifest::refused(&manifest_path, &fields))?;
        Ok(Self { path: path.to_owned(), job, value })
    }

    /// Whether a `lockstep run` is at work there.
    pub(crate) fn is_at_work(&self) -> bool {
        Lock::is_held(&self.path)
    }

    /// Asks the `lockstep run` at work there for so many workers.
    pub(crate) fn want_workers(&self, workers: u32) -> anyhow::Result<()> {
        replace(&self.path.join(WANTED), &workers.to_string())
    }

    /// A manifest by which the run was begun, if it went on by another one.
    pub(crate) fn earlier_manifest(&self) -> anyhow::Result<Option<PathBuf>> {
        let first = self.path.join(EARLIER_MANIFEST);
        Ok(first.try_exists().with_context(|| format!("look for {}", first.display()))?.then_some(first))
    }

    /// Every change of the group, oldest first; a last line that is torn is left out.
    pub(crate) fn history(&self) -> anyhow::Result<Vec<GroupChange>> {
        self.lines(HISTORY)
    }

    /// Every membership that trained; a line that is torn, before whose step its writer was killed, is left out.
    pub(crate) fn plans(&self) -> anyhow::Result<Vec<AgreedPlan>> {
        self.lines(PLANS_FILE)
    }

    fn lines<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Vec<T>> {
        let path = self.path.join(name);
        lines::read(&path).with_context(|| format!("read {}", path.display()))
    }
}

/// What a run has written of its steps; nothing where somebody took that away.
pub(crate) fn metrics_log_of(run: &Path) -> anyhow::Result<String> {
    let path = run.join(METRICS_FILE);
    match fs::read(&path) {
        // Lines that a power failure has spoiled tell nothing; the others do.
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}
