//! The writer of the metrics log. Each generation's reporting worker writes a part of its own,
//! which continues the parts before it; see [`lockstep_launch::metrics_log`]. The end of the run
//! merges them.
//!
//! A worker may be frozen at any moment and wake up when a later generation writes. It does no
//! harm: its own part does not count any more, and a file that it prepared before is gone.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use lockstep_elastic::Digest;
use lockstep_launch::metrics_log::{self, Counts, Header, LogFile, METRICS_FILE, Part};
use serde::{Deserialize, Serialize};

/// The beginning of a mark's name.
const MARK: &str = ".metrics.jsonl.turn-";
/// The end of the name of a file that a turn prepares before it renames it.
const PREPARED: &str = ".tmp";
/// The bytes that may wait for a full disk.
const MAX_PENDING: usize = 1 << 19;
/// The pending bytes that are written at once.
const ENOUGH: usize = 16 << 10;
/// The bytes that are read at a time, from the end of a file.
const BLOCK: u64 = 64 << 10;
/// The bytes in which the last evaluation is looked for. It only matters to those who watch.
const MAX_SEARCHED: u64 = 16 << 20;

/// The turn to write the metrics log of a job. The newest generation has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    /// The job's uid: the generations of another job are neither older nor newer.
    pub job: &'a str,
    pub attempt: u32,
    pub generation: u64,
}

impl Turn<'_> {
    fn job(&self) -> String {
        format!("{:.16}", Digest::of(self.job.as_bytes()))
    }

    /// Returns the part that this turn writes.
    fn part(&self) -> Part {
        Part { job: self.job(), attempt: self.attempt, generation: self.generation }
    }

    /// Returns the beginning of the names of all marks of the job.
    fn prefix(&self) -> String {
        format!("{MARK}{}-", self.job())
    }

    fn mark(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}{}-{}", self.prefix(), self.attempt, self.generation))
    }

    fn prepared(&self, folder: &Path) -> PathBuf {
        let mut path = self.mark(folder).into_os_string();
        path.push(PREPARED);
        path.into()
    }

    /// Leaves the mark of this turn. It stays, so that a worker that was frozen in an earlier turn
    /// finds it.
    fn begin(&self, folder: &Path) -> io::Result<()> {
        File::create(self.mark(folder)).map(drop)
    }

    /// Returns the attempt and the generation of this job that left a mark or a prepared file.
    fn of(&self, name: &OsStr) -> Option<(u32, u64)> {
        let name = name.to_str()?.strip_prefix(&self.prefix())?;
        let (attempt, generation) = name.strip_suffix(PREPARED).unwrap_or(name).split_once('-')?;
        Some((attempt.parse().ok()?, generation.parse().ok()?))
    }

    /// Fails if a later turn of this job has begun.
    fn check(&self, folder: &Path) -> Result<(), NotWritten> {
        let names = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        let own = (self.attempt, self.generation);
        match names.iter().any(|entry| self.of(&entry.file_name()) > Some(own)) {
            true => Err(NotWritten::Superseded),
            false => Ok(()),
        }
    }

    /// Removes the marks and the prepared files of earlier turns, and what this turn prepared in an
    /// earlier try. The files of a later turn stay. The mark of an earlier turn stays until no
    /// prepared file of a turn before it could still be renamed.
    fn clear(&self, folder: &Path) -> io::Result<()> {
        let (own, own_prepared) = (Some((self.attempt, self.generation)), self.prepared(folder));
        let paths = || Ok::<_, io::Error>(fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?.into_iter());
        let is_prepared = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(PREPARED));
        for prepared in [true, false] {
            for path in paths()?.map(|entry| entry.path()).filter(|path| is_prepared(path) == prepared) {
                let found = path.file_name().and_then(|name| self.of(name));
                if path == own_prepared || (found.is_some() && found < own) {
                    remove(&path)?;
                }
            }
        }
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The part that this worker writes, and whole lines that are not in it yet.
#[derive(Debug)]
pub(crate) struct MetricsLog {
    file: File,
    pending: Vec<u8>,
}

impl MetricsLog {
    /// Begins the part of a turn. It continues the log after `base_step`: later lines come from
    /// work that a restart lost, and count no more. Returns what the log holds up to there. However
    /// long the run is, only a header is written.
    pub(crate) fn continue_after(folder: &Path, turn: Turn<'_>, base_step: u64) -> Result<(Self, Kept), NotWritten> {
        turn.begin(folder)?;
        turn.check(folder)?;
        turn.clear(folder)?;
        Prepared::part(folder, turn, base_step)
            .and_then(|prepared| prepared.take_place(folder, turn))
            .inspect_err(|_| drop(fs::remove_file(turn.prepared(folder))))
    }

    /// Adds one line. It reaches the file with the next [`Self::flush`] or a little later.
    pub(crate) fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.pending, line)?;
        self.pending.push(b'\n');
        if self.pending.len() >= ENOUGH {
            // Bytes that the disk does not take wait; the caller notices once they are too many.
            let _ = self.flush();
        }
        Ok(())
    }

    /// Returns true if no more lines may wait for the disk.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING
    }

    /// Writes the pending lines. Those that the disk does not take stay pending.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            match self.file.write(&self.pending) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.pending.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes the pending lines. They are stored for good once the returned file is synced.
    pub(crate) fn flushed(&mut self) -> io::Result<File> {
        self.flush()?;
        self.file.try_clone()
    }

    /// Merges all parts into one file at the end of a run.
    pub(crate) fn merge(&mut self, folder: &Path, turn: Turn<'_>) -> Result<(), NotWritten> {
        self.flush()?;
        Self::merge_parts(folder, turn).inspect_err(|_| drop(fs::remove_file(turn.prepared(folder))))
    }

    fn merge_parts(folder: &Path, turn: Turn<'_>) -> Result<(), NotWritten> {
        let merged = metrics_log::files(folder, None)?;
        remove(&turn.prepared(folder))?;
        let mut output = BufWriter::new(File::create_new(turn.prepared(folder))?);
        metrics_log::copy(folder, &mut output)?;
        output.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        turn.check(folder)?;
        rename(&turn.prepared(folder), &folder.join(METRICS_FILE))?;
        File::open(folder)?.sync_all()?;
        // The oldest first: a part whose predecessor is gone continues the merged file.
        for LogFile { path, .. } in merged.iter().rev().filter(|file| file.path != folder.join(METRICS_FILE)) {
            remove(path)?;
        }
        Ok(())
    }
}

/// The part of a turn before it has its name.
#[derive(Debug)]
struct Prepared {
    file: File,
    kept: Kept,
}

impl Prepared {
    fn part(folder: &Path, turn: Turn<'_>, base_step: u64) -> Result<Self, NotWritten> {
        let files = metrics_log::files(folder, Some(&turn.part()))?;
        let mut file = File::create_new(turn.prepared(folder))?;
        let (kept, last_evaluation) = kept(&files, base_step)?;
        // The writer of the newest file may have been lost before it synced its last lines.
        let newest = &files[0].path;
        match File::open(newest) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && files.len() == 1 => {}
            opened => opened?.sync_all()?,
        }
        let name = newest.file_name().and_then(OsStr::to_str).filter(|name| *name != METRICS_FILE);
        let header = Header { continues: name.map(str::to_owned), last_step: kept.step, last_evaluation };
        let mut line = serde_json::to_vec(&header).map_err(io::Error::from)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_all()?;
        turn.check(folder)?;
        Ok(Self { file, kept })
    }

    fn take_place(self, folder: &Path, turn: Turn<'_>) -> Result<(MetricsLog, Kept), NotWritten> {
        rename(&turn.prepared(folder), &folder.join(turn.part().file_name()))?;
        File::open(folder)?.sync_all()?;
        Ok((MetricsLog { file: self.file, pending: Vec::new() }, self.kept))
    }
}

/// Renames a prepared file. A later turn has begun if it is gone.
fn rename(prepared: &Path, path: &Path) -> Result<(), NotWritten> {
    match fs::rename(prepared, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(NotWritten::Superseded),
        renamed => Ok(renamed?),
    }
}

/// The reason for which a turn does not write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotWritten {
    /// The storage does not take it now.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A worker of a newer generation writes the log.
    #[error("a worker of a newer generation writes it")]
    Superseded,
}

/// The end of the log that a turn continues.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Kept {
    /// The last step that has a line; 0 if there is none.
    pub step: u64,
    /// Step and accuracy of the last evaluation.
    pub accuracy: Option<(u64, f64)>,
    /// The mean intersection over union of that evaluation.
    pub mean_iou: Option<f64>,
}

/// Finds the last step and the last evaluation up to `base_step` in the files of a log, the newest
/// file first. Returns them, and the step up to which evaluations of these files count.
fn kept(files: &[LogFile], base_step: u64) -> io::Result<(Kept, u64)> {
    let (mut kept, mut searched) = (Kept::default(), 0);
    for LogFile { path, counts } in files {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let mut lines = Backwards { file: &file, start: file.metadata()?.len(), bytes: Vec::new() };
        while let Some(line) = lines.before()? {
            match read(&line, *counts).filter(|line| line.step <= base_step) {
                Some(Line { step, evaluation: Some(found) }) => {
                    if kept.accuracy.is_none() {
                        (kept.accuracy, kept.mean_iou) = (Some((step, found.accuracy)), found.mean_iou);
                    }
                }
                Some(Line { step, evaluation: None }) if kept.step == 0 => kept.step = step,
                Some(_) | None => {}
            }
            if kept.step > 0 {
                searched += line.len() as u64;
                match kept.accuracy {
                    Some((step, _)) => return Ok((kept, step)),
                    // The evaluation of the last step would stand behind its line.
                    None if searched > MAX_SEARCHED => return Ok((kept, kept.step - 1)),
                    None => {}
                }
            }
        }
    }
    Ok((kept, kept.accuracy.map_or(0, |(step, _)| step)))
}

/// The lines of a file, the last one first.
struct Backwards<'a> {
    file: &'a File,
    /// The place of `bytes` in the file. Earlier bytes are not read yet; later ones were returned.
    start: u64,
    bytes: Vec<u8>,
}

impl Backwards<'_> {
    /// Returns the line before those that were returned, with its end unless it is torn.
    fn before(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let inner = &self.bytes[..self.bytes.len().saturating_sub(1)];
            if let Some(end_before) = inner.iter().rposition(|byte| *byte == b'\n') {
                return Ok(Some(self.bytes.split_off(end_before + 1)));
            }
            if self.start == 0 {
                let first = std::mem::take(&mut self.bytes);
                return Ok((!first.is_empty()).then_some(first));
            }
            let size = self.start.min(BLOCK);
            let mut block = vec![0; size as usize];
            self.file.read_exact_at(&mut block, self.start - size)?;
            block.append(&mut self.bytes);
            (self.start, self.bytes) = (self.start - size, block);
        }
    }
}

#[derive(Deserialize)]
struct Line {
    step: u64,
    evaluation: Option<Found>,
}

#[derive(Deserialize)]
struct Found {
    accuracy: f64,
    mean_iou: Option<f64>,
}

/// Reads a line that is whole and counts.
fn read(line: &[u8], counts: Counts) -> Option<Line> {
    let text = line.strip_suffix(b"\n").filter(|text| counts.include(text))?;
    serde_json::from_slice(text).ok()
}

#[cfg(test)]
mod tests;
