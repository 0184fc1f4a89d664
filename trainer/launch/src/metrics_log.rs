//! The metrics log of a run: `metrics.jsonl`, and a part for each generation until the end of the
//! run merges them.
//!
//! A part begins with a [`Header`]: the name of the part that it continues, and the last step and
//! the last evaluation that its writer found in the log. Later steps of earlier parts do not count:
//! a restart took them back, or a worker wrote them that had lost its group. So a change of the
//! group writes one header, however long the run is, and a worker that was cut off can spoil
//! nothing.
//!
//! ```text
//! metrics.jsonl                 steps 1 to 40, merged at the end of an earlier run
//! metrics.jsonl.part-…-0-1      {"continues": null,     "last_step": 40}   steps 41, 42, 43, 44
//! metrics.jsonl.part-…-0-2      {"continues": "…-0-1",  "last_step": 42}   steps 43, 44, 45
//! the log                       steps 1 to 42, then 43, 44 and 45 of generation 2
//! ```

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The file that a finished run leaves: a line of JSON for each step and each evaluation.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// The path at which a worker serves the log of its run.
pub const PATH: &str = "/metrics.jsonl";
/// A served log has at most twice as many steps, and as many evaluations.
pub const SERVED: usize = 2000;
const PART: &str = "metrics.jsonl.part-";
/// A reader starts over if the end of the run merges the parts meanwhile. It gives up after this
/// many attempts.
const MAX_ATTEMPTS: usize = 10;
/// The bytes at the end of a file that [`read_last`] reads: some hundred lines.
const LAST_BYTES: u64 = 64 << 10;

/// The generation that wrote a part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// A name of the job, which tells its parts from those of another job in the same folder.
    pub job: String,
    /// The attempt of the job.
    pub attempt: u32,
    /// The generation.
    pub generation: u64,
}

impl Part {
    /// Returns the name of the part's file.
    #[must_use]
    pub fn file_name(&self) -> String {
        let Self { job, attempt, generation } = self;
        format!("{PART}{job}-{attempt}-{generation}")
    }

    /// Returns the part that has a file of this name.
    #[must_use]
    pub fn of_file(name: &OsStr) -> Option<Self> {
        let mut fields = name.to_str()?.strip_prefix(PART)?.split('-');
        let (job, attempt, generation) = (fields.next()?, fields.next()?, fields.next()?);
        let part = Self { job: job.to_owned(), attempt: attempt.parse().ok()?, generation: generation.parse().ok()? };
        fields.next().is_none().then_some(part)
    }
}

/// The first line of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The name of the part's predecessor. `None`, and a name whose file is gone, stand for
    /// [`METRICS_FILE`].
    pub continues: Option<String>,
    /// The last step before the part's first; 0 if there is none.
    pub last_step: u64,
    /// The step of the last evaluation before the part's first; 0 if there is none.
    pub last_evaluation: u64,
}

/// One file of the log.
#[derive(Clone, Debug)]
pub struct LogFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The lines of the file that count.
    pub counts: Counts,
}

/// The lines of a file that count: later files take later steps back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    last_step: u64,
    last_evaluation: u64,
}

impl Counts {
    /// All lines of a file count.
    pub const ALL: Self = Self { last_step: u64::MAX, last_evaluation: u64::MAX };

    /// Returns true if a line counts. A line that is torn does not.
    #[must_use]
    pub fn include(&self, line: &[u8]) -> bool {
        match serde_json::from_slice::<Line>(line) {
            Ok(Line { last_step: Some(_), .. }) | Err(_) => false,
            Ok(Line { step: Some(step), evaluation: Some(_), .. }) => step <= self.last_evaluation,
            Ok(Line { step: Some(step), evaluation: None, .. }) => step <= self.last_step,
            Ok(Line { step: None, .. }) => true,
        }
    }
}

/// The fields of a line that tell what it is.
#[derive(Deserialize)]
struct Line {
    step: Option<u64>,
    evaluation: Option<serde::de::IgnoredAny>,
    /// Only a header has it.
    last_step: Option<u64>,
}

/// Returns the files of the log in `folder`, the newest first. [`METRICS_FILE`] is always the last,
/// whether or not it exists. `without` is left out.
///
/// # Errors
/// Any error of the storage. It is `NotFound` if a file was merged meanwhile.
pub fn files(folder: &Path, without: Option<&Part>) -> io::Result<Vec<LogFile>> {
    let parts = parts(folder)?.into_iter().filter(|(part, _)| Some(part) != without).collect();
    let mut next = newest(folder, parts)?;
    let (mut files, mut counts) = (Vec::new(), Counts::ALL);
    while let Some(name) = next.take() {
        let path = folder.join(&name);
        let header = match header(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !files.is_empty() => break,
            header => header?,
        };
        files.push(LogFile { path, counts });
        counts.last_step = counts.last_step.min(header.last_step);
        counts.last_evaluation = counts.last_evaluation.min(header.last_evaluation);
        next = header.continues;
    }
    files.push(LogFile { path: folder.join(METRICS_FILE), counts });
    Ok(files)
}

/// Returns the whole log of a run, also of one that is running or was killed. Each step has one
/// line.
///
/// # Errors
/// Any error of the storage, and `NotFound` if the run has no log.
pub fn read(folder: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    consistently(|| {
        text.clear();
        copy(folder, &mut text)
    })?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the values of the newest lines: of some hundred, or of all if there are fewer. Empty if
/// the run has no log.
///
/// # Errors
/// Any error of the storage.
pub fn read_last<T: DeserializeOwned>(folder: &Path) -> io::Result<Vec<T>> {
    let found = consistently(|| {
        for LogFile { path, counts } in files(folder, None)? {
            let bytes = end_of(&path)?;
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| counts.include(line));
            let values: Vec<T> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
            if !values.is_empty() {
                return Ok(values);
            }
        }
        Ok(Vec::new())
    });
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        found => found,
    }
}

/// Returns at most `2 · most` lines of the log in order, at even distances: each line as long as
/// there are fewer, then each second one, each fourth one and so on. Evaluations count by
/// themselves, and there may be as many of them again. Memory does not grow with the run.
///
/// # Errors
/// Any error of the storage, and `NotFound` if the run has no log.
pub fn thinned(folder: &Path, most: usize) -> io::Result<String> {
    let (steps, evaluations) = consistently(|| {
        let (mut steps, mut evaluations) = (Thinned::new(most), Thinned::new(most));
        each_line(folder, |line| {
            match serde_json::from_slice(line) {
                Ok(Line { step: Some(step), evaluation: Some(_), .. }) => evaluations.add(step, line),
                Ok(Line { step: Some(step), evaluation: None, .. }) => steps.add(step, line),
                // Nobody draws it.
                Ok(Line { step: None, .. }) | Err(_) => {}
            }
            Ok(())
        })?;
        Ok((steps, evaluations))
    })?;
    let mut lines: Vec<(u64, Vec<u8>)> = steps.kept.into_iter().chain(evaluations.kept).collect();
    lines.sort_by_key(|(step, _)| *step);
    let lines: Vec<u8> = lines.into_iter().flat_map(|(_, line)| [line, vec![b'\n']]).flatten().collect();
    Ok(String::from_utf8_lossy(&lines).into_owned())
}

/// Lines at even distances.
struct Thinned {
    most: usize,
    seen: usize,
    /// Each line of this distance is kept.
    distance: usize,
    /// The lines with their steps.
    kept: Vec<(u64, Vec<u8>)>,
}

impl Thinned {
    fn new(most: usize) -> Self {
        Self { most, seen: 0, distance: 1, kept: Vec::new() }
    }

    fn add(&mut self, step: u64, line: &[u8]) {
        if self.seen.is_multiple_of(self.distance) {
            self.kept.push((step, line.to_owned()));
        }
        self.seen += 1;
        if self.kept.len() > 2 * self.most {
            self.distance *= 2;
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                place % 2 == 1
            });
        }
    }
}

/// Writes the whole log to `output`.
///
/// # Errors
/// Any error of the storage, and `NotFound` if the run has no log.
pub fn copy(folder: &Path, output: &mut impl Write) -> io::Result<()> {
    each_line(folder, |line| {
        output.write_all(line)?;
        output.write_all(b"\n")
    })
}

/// Calls `act` with each line of the log that counts, in order and without its end.
fn each_line(folder: &Path, mut act: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let files = files(folder, None)?;
    for LogFile { path, counts } in files.iter().rev() {
        let file = match File::open(path) {
            // Before the end of the first run there are only parts.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_base(path) && files.len() > 1 => continue,
            opened => opened?,
        };
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            if counts.include(text) {
                act(text)?;
            }
            line.clear();
        }
    }
    Ok(())
}

fn is_base(path: &Path) -> bool {
    path.file_name() == Some(OsStr::new(METRICS_FILE))
}

/// Repeats `act` while files vanish because the end of the run merges them.
fn consistently<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..MAX_ATTEMPTS {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    act()
}

/// Returns the parts in `folder` with their file names.
fn parts(folder: &Path) -> io::Result<BTreeMap<Part, String>> {
    let mut parts = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if let (Some(part), Some(name)) = (Part::of_file(&name), name.to_str()) {
            parts.insert(part, name.to_owned());
        }
    }
    Ok(parts)
}

/// Returns the part that ends the log: the newest generation of the job that wrote last.
fn newest(folder: &Path, parts: BTreeMap<Part, String>) -> io::Result<Option<String>> {
    let mut last_of_jobs: BTreeMap<String, String> = BTreeMap::new();
    for (part, name) in parts {
        last_of_jobs.insert(part.job, name);
    }
    let mut ends: Vec<String> = last_of_jobs.into_values().collect();
    if ends.len() > 1 {
        let continued: Vec<String> =
            ends.iter().map(|name| header(&folder.join(name))).filter_map(|header| header.ok()?.continues).collect();
        ends.retain(|name| !continued.contains(name));
        let written = |name: &String| fs::metadata(folder.join(name)).and_then(|found| found.modified());
        ends.sort_by_key(|name| written(name).unwrap_or(SystemTime::UNIX_EPOCH));
    }
    Ok(ends.pop())
}

fn header(path: &Path) -> io::Result<Header> {
    let mut line = Vec::new();
    BufReader::new(File::open(path)?).read_until(b'\n', &mut line)?;
    serde_json::from_slice(&line).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: no header of a metrics log: {error}", path.display()))
    })
}

/// Returns the whole lines in the last 64 KiB of a file. Nothing if the file does not exist.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_base(path) => return Ok(Vec::new()),
        opened => opened?,
    };
    let begin = file.metadata()?.len().saturating_sub(LAST_BYTES);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if begin > 0 {
        // The first line may have begun before.
        let first = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..first);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn part(job: &str, generation: u64) -> Part {
        Part { job: job.to_owned(), attempt: 0, generation }
    }

    /// Writes a part that continues another one after `last_step`, with these steps.
    fn write(folder: &Path, part: &Part, continues: Option<&Part>, last_step: u64, steps: &[u64]) {
        let header = Header { continues: continues.map(Part::file_name), last_step, last_evaluation: last_step };
        let lines: Vec<String> = steps.iter().map(|step| format!("{}\n", line(*step, part.generation))).collect();
        let text = format!("{}\n{}", json!(header), lines.concat());
        fs::write(folder.join(part.file_name()), text).expect("written");
    }

    fn line(step: u64, generation: u64) -> Value {
        json!({"step": step, "generation": generation})
    }

    /// Returns the step and the generation of each line.
    fn told(folder: &Path) -> Vec<(u64, u64)> {
        let number = |line: &Value, field: &str| line[field].as_u64().expect("a number");
        let text = read(folder).expect("a log");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.map(|line| (number(&line, "step"), number(&line, "generation"))).collect()
    }

    #[test]
    fn a_part_takes_back_the_later_steps_of_all_parts_before_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, two, three] = [1, 2, 3].map(|generation| part("a", generation));
        write(folder.path(), &one, None, 0, &[1, 2, 3, 4]);
        write(folder.path(), &two, Some(&one), 3, &[4, 5]);
        assert_eq!(told(folder.path()), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]);
        write(folder.path(), &three, Some(&two), 2, &[3]);
        assert_eq!(told(folder.path()), [(1, 1), (2, 1), (3, 3)]);
    }

    #[test]
    fn a_part_that_no_later_one_continues_does_not_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, late, three] = [1, 2, 3].map(|generation| part("a", generation));
        write(folder.path(), &one, None, 0, &[1, 2]);
        write(folder.path(), &late, Some(&one), 1, &[2]);
        write(folder.path(), &three, Some(&one), 2, &[3]);
        assert_eq!(told(folder.path()), [(1, 1), (2, 1), (3, 3)]);
    }

    #[test]
    fn a_long_log_is_thinned_evenly_and_a_short_one_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let steps: Vec<u64> = (1..=1000).collect();
        write(folder.path(), &part("a", 1), None, 0, &steps);
        let evaluated = json!({"step": 500, "evaluation": {"accuracy": 0.5}});
        let path = folder.path().join(part("a", 1).file_name());
        let text = fs::read_to_string(&path).expect("written");
        fs::write(&path, format!("{text}{evaluated}\n")).expect("written");
        let kept = |most: usize| {
            let text = thinned(folder.path(), most).expect("a log");
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            let (evaluations, steps): (Vec<Value>, Vec<Value>) = lines.partition(|line| line["evaluation"].is_object());
            let steps: Vec<u64> = steps.iter().map(|line| line["step"].as_u64().expect("a number")).collect();
            (steps, evaluations.len())
        };
        assert_eq!(kept(500), (steps, 1));
        let (few, evaluations) = kept(10);
        assert!((10..=20).contains(&few.len()), "{few:?}");
        assert!(few.windows(2).all(|pair| pair[1] - pair[0] == few[1] - few[0]), "{few:?}");
        assert_eq!(evaluations, 1, "an evaluation does not lie between the kept steps by chance");
    }

    #[test]
    fn an_interrupted_merge_loses_no_step_and_repeats_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, two, three] = [1, 2, 3].map(|generation| part("a", generation));
        write(folder.path(), &one, None, 0, &[1, 2, 3]);
        write(folder.path(), &two, Some(&one), 3, &[4, 5]);
        write(folder.path(), &three, Some(&two), 4, &[5, 6]);
        let whole = read(folder.path()).expect("a log");
        fs::write(folder.path().join(METRICS_FILE), &whole).expect("merged");
        for part in [one, two, three] {
            assert_eq!(read(folder.path()).expect("a log"), whole, "before {part:?} is removed");
            fs::remove_file(folder.path().join(part.file_name())).expect("removed");
        }
        assert_eq!(read(folder.path()).expect("a log"), whole);
    }

    #[test]
    fn the_log_of_another_job_is_continued() {
        let folder = tempfile::tempdir().expect("a folder");
        let (earlier, later) = (part("b", 7), part("a", 1));
        write(folder.path(), &earlier, None, 0, &[1, 2, 3]);
        write(folder.path(), &later, Some(&earlier), 2, &[3]);
        assert_eq!(told(folder.path()), [(1, 7), (2, 7), (3, 1)]);
    }

    #[test]
    fn the_newest_lines_are_those_of_the_newest_part_that_has_any() {
        let folder = tempfile::tempdir().expect("a folder");
        let last = || read_last::<Value>(folder.path()).expect("readable").pop();
        assert_eq!(last(), None);
        let [one, two] = [1, 2].map(|generation| part("a", generation));
        write(folder.path(), &one, None, 0, &[1, 2, 3]);
        assert_eq!(last(), Some(line(3, 1)));
        write(folder.path(), &two, Some(&one), 2, &[]);
        assert_eq!(last(), Some(line(2, 1)), "step 3 was taken back");
        write(folder.path(), &two, Some(&one), 2, &[3, 4]);
        assert_eq!(last(), Some(line(4, 2)));
    }

    #[test]
    fn a_torn_line_and_one_without_a_step_change_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(METRICS_FILE), "{}\n{\"step\":1}\n{\"st").expect("written");
        assert_eq!(read(folder.path()).expect("a log"), "{}\n{\"step\":1}\n");
    }
}
