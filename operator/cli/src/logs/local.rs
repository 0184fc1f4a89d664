//! The logs of a local run, from its folder.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::time::sleep;

use super::{
    Wanted, last,
    line::{LogLine, Process, merged},
    paint::Paint,
    show,
};
use crate::{display::eprint_line, run::folder::ReadOnlyFolder};

/// Time between two looks for new lines.
const POLL: Duration = Duration::from_millis(200);

/// Reads the wanted lines of each process.
///
/// # Errors
/// It is not the folder of a run, it has no logs of the chosen processes, or a log cannot be read.
pub(super) fn read(run: &Path, wanted: &Wanted) -> anyhow::Result<Vec<Vec<LogLine>>> {
    ReadOnlyFolder::open(run)?;
    let logs = files(run)?;
    if logs.is_empty() {
        bail!("{}: there are no logs in it", run.display());
    }
    if let Some(none) = wanted.unmatched(logs.iter().map(|(process, _)| *process)) {
        bail!(none);
    }
    let logs = logs.into_iter().filter(|(process, _)| wanted.selects(*process));
    logs.map(|(process, path)| {
        let log = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(lines(process, &String::from_utf8_lossy(&log), wanted))
    })
    .collect()
}

/// Prints the wanted lines, and new ones until the run is over.
///
/// # Errors
/// As for [`read`], except that chosen processes may still come while the run is at work.
pub(super) async fn follow(run: &Path, wanted: &Wanted, paint: &Paint) -> anyhow::Result<()> {
    let folder = ReadOnlyFolder::open(run)?;
    let mut offsets: BTreeMap<PathBuf, u64> = BTreeMap::new();
    let mut is_first = true;
    loop {
        let is_at_work = folder.is_at_work();
        let found = files(run)?;
        if is_first && let Some(none) = wanted.unmatched(found.iter().map(|(process, _)| *process)) {
            match is_at_work {
                true => eprint_line(&format!("note: {none}")),
                false => bail!(none),
            }
        }
        let mut logs = Vec::new();
        for (process, path) in found.into_iter().filter(|(process, _)| wanted.selects(*process)) {
            let offset = offsets.entry(path.clone()).or_default();
            let fresh = whole_lines(&path, offset).with_context(|| format!("read {}", path.display()))?;
            let fresh = lines(process, &fresh, wanted);
            logs.push(last(&fresh, wanted.tail.filter(|_| is_first)).to_vec());
        }
        show(paint, &merged(logs))?;
        if !is_at_work {
            return Ok(());
        }
        is_first = false;
        sleep(POLL).await;
    }
}

/// Reads the whole lines after `offset`, and moves it to their end.
fn whole_lines(path: &Path, offset: &mut u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    // Another run in the same folder begins a log anew.
    if file.metadata()?.len() < *offset {
        *offset = 0;
    }
    file.seek(SeekFrom::Start(*offset))?;
    let mut fresh = Vec::new();
    file.read_to_end(&mut fresh)?;
    let whole = fresh.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    fresh.truncate(whole);
    *offset += whole as u64;
    Ok(String::from_utf8_lossy(&fresh).into_owned())
}

fn lines(process: Process, log: &str, wanted: &Wanted) -> Vec<LogLine> {
    let all = super::line::with_times(log.lines().map(|line| LogLine::read(process, None, line)).collect());
    all.into_iter().filter(|line| wanted.includes(line)).collect()
}

/// Returns the log of each process.
fn files(run: &Path) -> anyhow::Result<Vec<(Process, PathBuf)>> {
    let folder = run.join("logs");
    let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    let mut found: Vec<(Process, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".log")?;
            let process = match name.strip_prefix("worker-") {
                Some(number) => Process::Worker(number.parse().ok()?),
                None if name == "coordinator" => Process::Coordinator,
                None => return None,
            };
            Some((process, path))
        })
        .collect();
    found.sort();
    Ok(found)
}
