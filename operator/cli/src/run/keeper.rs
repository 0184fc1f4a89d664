//! Files that `lockstep run` keeps for readers of the run, beside those of its processes: the
//! newest report, and TensorBoard's events.

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use lockstep_launch::Progress;

use super::{folder::RunFolder, tensorboard::EventFile};
use crate::display::Display;

/// Name of the file in a run's folder with the newest report.
pub(crate) const REPORT: &str = "progress.json";
/// The least time between two writes.
const INTERVAL: Duration = Duration::from_secs(2);

/// Keeps the news of a run.
pub(super) struct Keeper {
    report: PathBuf,
    events: Option<EventFile>,
    kept: Option<Instant>,
    has_failed: bool,
}

impl Keeper {
    pub(super) fn open(folder: &RunFolder) -> Self {
        Self { report: folder.path().join(REPORT), events: None, kept: None, has_failed: false }
    }

    /// Keeps events for TensorBoard too.
    pub(super) fn with_events(folder: &RunFolder, now: Timestamp) -> io::Result<Self> {
        Ok(Self { events: Some(EventFile::create(folder.path(), now)?), ..Self::open(folder) })
    }

    /// Keeps what is new, unless it did so just before.
    pub(super) fn tick(&mut self, report: Option<&Progress>, now: Instant, display: &Display) {
        if self.kept.is_none_or(|kept| now.duration_since(kept) >= INTERVAL) {
            self.kept = Some(now);
            self.keep(report, display);
        }
    }

    /// Keeps what is new. A failure is shown once: the training does not need these files.
    pub(super) fn keep(&mut self, report: Option<&Progress>, display: &Display) {
        // A report that is torn by a kill counts as none.
        let text = report.and_then(|report| serde_json::to_vec(report).ok());
        let reported = text.map_or(Ok(()), |text| fs::write(&self.report, text));
        let followed = self.events.as_mut().map_or(Ok(()), EventFile::follow);
        for (file, kept) in [(REPORT, reported), ("TensorBoard's event file", followed)] {
            if let Err(error) = kept
                && !self.has_failed
            {
                self.has_failed = true;
                display.note(&format!("warning: {file} is not kept: {error}"));
            }
        }
    }
}
