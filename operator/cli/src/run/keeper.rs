//! Files that `lockstep run` keeps for readers of the run, beside those of its processes: the
//! newest report, and TensorBoard's events.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use lockstep_launch::Progress;

use super::{
    folder::{RunFolder, temporary},
    tensorboard::EventFile,
};
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
    /// Files that could not be kept.
    failed: BTreeSet<&'static str>,
}

impl Keeper {
    pub(super) fn open(folder: &RunFolder) -> Self {
        Self { report: folder.path().join(REPORT), events: None, kept: None, failed: BTreeSet::new() }
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

    /// Keeps what is new. The failure of a file is shown once: the training does not need it.
    pub(super) fn keep(&mut self, report: Option<&Progress>, display: &Display) {
        let text = report.and_then(|report| serde_json::to_vec(report).ok());
        let reported = text.map_or(Ok(()), |text| replace(&self.report, &text));
        let followed = self.events.as_mut().map_or(Ok(()), EventFile::follow);
        for (file, kept) in [(REPORT, reported), ("TensorBoard's event file", followed)] {
            if let Err(error) = kept
                && self.failed.insert(file)
            {
                display.note(&format!("warning: {file} is not kept: {error}"));
            }
        }
    }
}

/// Replaces a file in one instant, so that nobody reads half of it. It does not wait for the disk:
/// a lost report is no harm.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(report: PathBuf) -> Keeper {
        Keeper { report, events: None, kept: None, failed: BTreeSet::new() }
    }

    #[test]
    fn whoever_reads_the_report_meanwhile_reads_a_whole_one() {
        let run = tempfile::tempdir().expect("a folder");
        let (report, reader) = (run.path().join(REPORT), run.path().join("reader"));
        let mut keeper = keeper(report.clone());
        let step = |step: u64| Progress { step, ..Progress::default() };
        let read = |path: &Path| serde_json::from_slice::<Progress>(&fs::read(path).expect("there")).expect("whole");
        keeper.keep(Some(&step(1)), &Display::on_stderr());
        // This name stays with the file that a reader has opened.
        fs::hard_link(&report, &reader).expect("linked");
        keeper.keep(Some(&step(2)), &Display::on_stderr());
        assert_eq!((read(&reader).step, read(&report).step), (1, 2));
        assert!(keeper.failed.is_empty());
    }

    #[test]
    fn the_failure_of_one_file_hides_none_of_another() {
        let mut keeper = keeper(PathBuf::from("/nowhere").join(REPORT));
        keeper.keep(Some(&Progress::default()), &Display::on_stderr());
        assert_eq!(keeper.failed, BTreeSet::from([REPORT]));
    }
}
