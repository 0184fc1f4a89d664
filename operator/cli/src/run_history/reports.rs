//! The reports that `lockstep run` and its processes left in the folder of a run.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use jiff::Timestamp;
use lockstep_launch::{Ending, Progress};

use crate::run::{environment::Start, folder::ENDINGS, keeper};

/// The reports of some starts of a run.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(crate) struct Reports {
    /// The last words of each process, by its name, in the order in which they were written.
    pub endings: Vec<(String, Ending)>,
    /// The report that `lockstep run` kept.
    pub kept: Option<Progress>,
    /// The reason if that report cannot be read.
    pub unreadable: Option<String>,
}

impl Reports {
    /// Reads the reports of all starts.
    pub(crate) fn of_all_starts(run: &Path) -> Self {
        Self::since(run, SystemTime::UNIX_EPOCH)
    }

    /// Reads the reports of the newest start. An earlier one may have left those of workers that
    /// this one does not have.
    pub(crate) fn of_newest_start(run: &Path, starts: &[Start]) -> Self {
        let newest = starts.last().and_then(|start| start.time.parse::<Timestamp>().ok());
        Self::since(run, newest.map_or(SystemTime::UNIX_EPOCH, SystemTime::from))
    }

    fn since(run: &Path, start: SystemTime) -> Self {
        let (kept, unreadable) = match kept(&run.join(keeper::REPORT), start) {
            Ok(kept) => (kept, None),
            Err(error) => (None, Some(format!("The report {} cannot be read: {error}.", keeper::REPORT))),
        };
        Self { endings: endings(&run.join(ENDINGS), start), kept, unreadable }
    }

    /// Returns the furthest report. That of `lockstep run` has the figures of the whole run.
    pub(crate) fn furthest(&self) -> Option<&Progress> {
        let ended = self.endings.iter().filter_map(|(_, ending)| ending.progress.as_ref());
        ended.chain(&self.kept).max_by_key(|report| (report.step, report.whole_run.is_some()))
    }

    /// True if the run reached its end: its last step, or the last row of a benchmark.
    pub(crate) fn is_complete(&self) -> bool {
        let is_last = |report: &Progress| report.total_steps > 0 && report.step == report.total_steps;
        let mut endings = self.endings.iter().map(|(_, ending)| ending);
        let said_nothing = endings.clone().all(|ending| ending.message.is_empty());
        // A worker that ended badly may have been on its way back when the others were done.
        endings.any(|ending| {
            ending.message.is_empty() && (ending.model_uri.is_some() || ending.progress.as_ref().is_some_and(is_last))
        }) || (said_nothing && self.kept.as_ref().is_some_and(is_last))
    }
}

fn kept(path: &Path, start: SystemTime) -> io::Result<Option<Progress>> {
    match fs::metadata(path).and_then(|file| file.modified()) {
        Ok(written) if written >= start => Ok(Some(serde_json::from_slice(&fs::read(path)?)?)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn endings(folder: &Path, start: SystemTime) -> Vec<(String, Ending)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let read = |path: PathBuf| {
        let name = path.file_stem()?.to_str()?.to_owned();
        let ending = Ending::from_line(&fs::read_to_string(&path).ok()?)?;
        Some((path.metadata().ok()?.modified().ok()?, name, ending))
    };
    let mut found: Vec<_> = files.filter_map(read).filter(|(written, ..)| *written >= start).collect();
    found.sort_by(|(one, one_name, _), (other, other_name, _)| (one, one_name).cmp(&(other, other_name)));
    found.into_iter().map(|(_, name, ending)| (name, ending)).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;

    fn report(step: u64, total_steps: u64) -> Progress {
        Progress { step, total_steps, ..Progress::default() }
    }

    fn said(message: &str) -> (String, Ending) {
        ("lenet-worker-1".to_owned(), Ending { message: message.to_owned(), ..Ending::default() })
    }

    fn done(progress: Progress) -> (String, Ending) {
        ("lenet-coordinator".to_owned(), Ending { progress: Some(progress), ..Ending::default() })
    }

    #[test]
    fn a_run_is_complete_after_its_last_step_only() {
        for (situation, endings, kept, complete) in [
            ("it left nothing", vec![], None, false),
            ("killed on the way", vec![], Some(report(3, 4)), false),
            ("a benchmark after its last row", vec![done(report(4, 4))], Some(report(4, 4)), true),
            ("killed after its end", vec![], Some(report(4, 4)), true),
            ("the model could not be stored", vec![said("disk full")], Some(report(4, 4)), false),
            ("a worker was on its way back", vec![said("crashed"), done(report(4, 4))], None, true),
        ] {
            let reports = Reports { endings, kept, unreadable: None };
            assert_eq!(reports.is_complete(), complete, "{situation}");
        }
    }

    #[test]
    fn the_reports_of_an_earlier_start_are_not_those_of_the_newest() {
        let run = tempfile::tempdir().expect("a folder");
        fs::create_dir(run.path().join(ENDINGS)).expect("made");
        let start = Timestamp::from_second(1_795_867_200).expect("a time");
        let write = |name: &str, text: String, seconds: u64| {
            let path = run.path().join(name);
            fs::write(&path, text).expect("written");
            let written = SystemTime::from(start) + Duration::from_secs(seconds) - Duration::from_secs(60);
            File::options().append(true).open(path).and_then(|file| file.set_modified(written)).expect("dated");
        };
        write("endings/lenet-worker-3.json", said("stopped on request").1.to_line(), 0);
        write("endings/lenet-coordinator.json", done(report(680, 1360)).1.to_line(), 100);
        write(keeper::REPORT, serde_json::to_string(&report(680, 680)).expect("JSON"), 0);
        let start = Start { time: start.to_string(), ..Start::default() };
        let newest = Reports::of_newest_start(run.path(), &[Start::default(), start]);
        let names: Vec<_> = newest.endings.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, newest.kept.is_some(), newest.is_complete()), (vec!["lenet-coordinator"], false, false));
        let all = Reports::of_all_starts(run.path());
        assert_eq!((all.endings.len(), all.kept.is_some()), (2, true));
    }

    #[test]
    fn a_torn_report_is_named() {
        let run = tempfile::tempdir().expect("a folder");
        fs::write(run.path().join(keeper::REPORT), "").expect("written");
        let reports = Reports::of_all_starts(run.path());
        assert!(reports.unreadable.is_some_and(|reason| reason.contains(keeper::REPORT)));
    }
}
