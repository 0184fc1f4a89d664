//! `metrics.jsonl`: one line per step and one per evaluation, written by one member, never twice for a step.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use lockstep_elastic::Digest;
use lockstep_launch::METRICS_FILE;
use serde::{Deserialize, Serialize};

/// What the files of a turn are called.
const TURN: &str = ".metrics.jsonl.turn-";
/// Of a journal that is to take the place of the one before.
const COPY: &str = ".tmp";

/// Whose turn it is to write the journal of a job: that of the newest group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    /// The job's uid: another job's groups are neither older nor newer.
    pub job: &'a str,
    pub attempt: u32,
    pub generation: u64,
}

impl Turn<'_> {
    /// What all turns of the job are called.
    fn prefix(&self) -> String {
        format!("{TURN}{:.16}-", Digest::of(self.job.as_bytes()))
    }

    fn mark(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}{}-{}", self.prefix(), self.attempt, self.generation))
    }

    fn copy(&self, folder: &Path) -> PathBuf {
        let mut path = self.mark(folder).into_os_string();
        path.push(COPY);
        path.into()
    }

    /// Leaves a mark that it has come. It stays, so that whoever was frozen in an earlier one finds it.
    fn begin(&self, folder: &Path) -> io::Result<()> {
        File::create(self.mark(folder)).map(drop)
    }

    /// Which turn of this job left a file.
    fn of(&self, name: &OsStr) -> Option<(u32, u64)> {
        let name = name.to_str()?.strip_prefix(&self.prefix())?;
        let (attempt, generation) = name.strip_suffix(COPY).unwrap_or(name).split_once('-')?;
        Some((attempt.parse().ok()?, generation.parse().ok()?))
    }

    /// Whether a later one of this job has come.
    fn is_over(&self, folder: &Path) -> io::Result<bool> {
        let names = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        let own = (self.attempt, self.generation);
        Ok(names.iter().any(|entry| self.of(&entry.file_name()) > Some(own)))
    }

    /// Removes what earlier turns have left, and this one's own copy of a time before. What a later one has left must stay, and so must the
    /// marks of earlier ones for as long as a copy of one that is older still could take the journal's place.
    fn clear(&self, folder: &Path) -> io::Result<()> {
        let (own, own_copy) = (Some((self.attempt, self.generation)), self.copy(folder));
        let paths = || Ok::<_, io::Error>(fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?.into_iter());
        let is_copy = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(COPY));
        for copies in [true, false] {
            for path in paths()?.map(|entry| entry.path()).filter(|path| is_copy(path) == copies) {
                let found = path.file_name().and_then(|name| self.of(name));
                if path == own_copy || (found.is_some() && found < own) {
                    match fs::remove_file(path) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        Ok(()) | Err(_) => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// One step of the whole group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StepLine {
    pub step: u64,
    pub epoch: u64,
    pub generation: u64,
    pub world_size: u32,
    /// Mean over the global batch, in nats; `None` where nobody is left who had it.
    pub loss: Option<f64>,
    /// How many samples all ranks took, and the hash that tells which; see [`lockstep_data::Tally`].
    pub samples: Option<u64>,
    pub sample_hash: Option<u64>,
    /// What a window of the state looks like after it, on all ranks; another window with each step, so that 128 of them cover the state.
    pub state_hash: Option<u32>,
    pub learning_rate: f32,
    pub samples_per_second: f64,
    pub step_seconds: f64,
    /// When the rank that tells of it had done it, RFC 3339.
    pub time: String,
}

impl StepLine {
    /// A step that was done, and whose figures nobody has any more.
    pub(crate) fn unseen(step: u64, steps_per_epoch: u64, generation: u64) -> Self {
        Self {
            step,
            epoch: step / steps_per_epoch,
            generation,
            world_size: 0,
            loss: None,
            samples: None,
            sample_hash: None,
            state_hash: None,
            learning_rate: 0.0,
            samples_per_second: 0.0,
            step_seconds: 0.0,
            time: jiff::Timestamp::now().to_string(),
        }
    }
}

/// One evaluation on the held-out samples.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EvaluationLine {
    pub step: u64,
    pub epoch: u64,
    pub evaluation: Evaluation,
}

/// What an evaluation found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Evaluation {
    /// Mean over the held-out samples, in nats.
    pub loss: f64,
    /// 0 to 1.
    pub accuracy: f64,
}

/// Bytes that may wait for a full disk to have room again.
const MAX_PENDING: usize = 1 << 19;
/// Bytes that are written without being asked.
const ENOUGH: usize = 16 << 10;
/// Bytes that are read at a time, from the end.
const BLOCK: u64 = 64 << 10;
/// Bytes in which the last evaluation is looked for: it only matters to those who watch.
const MAX_SEARCHED: u64 = 16 << 20;

/// The open file, and whole lines that are not in it yet.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    pending: Vec<u8>,
}

impl Journal {
    /// Opens the journal to continue after `base_step`: lines of later steps come from work that a restart lost, and are
    /// dropped; so is a last line that was torn. Gives what the lines that are kept tell.
    ///
    /// It goes on in a copy, which takes the journal's place: whoever wrote it before may be frozen or cut off, and its last lines then
    /// come where nobody reads. Nor does one that was frozen at any moment of this take the place of a later turn: either it finds that
    /// one's mark, or its own copy gone. The copy is made by the kernel, and takes as much room as the journal while both are there.
    pub(crate) fn continue_after(folder: &Path, turn: Turn<'_>, base_step: u64) -> Result<(Self, Kept), NotContinued> {
        turn.begin(folder)?;
        if turn.is_over(folder)? {
            return Err(NotContinued::Superseded);
        }
        turn.clear(folder)?;
        let continued = Self::copied(folder, turn, base_step).and_then(|copied| copied.take_place(folder, turn));
        if continued.is_err() {
            // The room that it took is somebody's.
            let _ = fs::remove_file(turn.copy(folder));
        }
        continued
    }

    fn copied(folder: &Path, turn: Turn<'_>, base_step: u64) -> Result<Copied, NotContinued> {
        let path = folder.join(METRICS_FILE);
        let mut file = File::create_new(turn.copy(folder))?;
        let mut known = Kept::default();
        match File::open(&path) {
            Ok(mut old) => {
                let end;
                (known, end) = kept(&old, old.metadata()?.len(), base_step)?;
                if io::copy(&mut (&mut old).take(end), &mut file)? < end {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        file.sync_all()?;
        if turn.is_over(folder)? {
            return Err(NotContinued::Superseded);
        }
        Ok(Copied { file, known })
    }

    /// Appends one line; it reaches the file with the next [`Self::flush`] or a little later.
    pub(crate) fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.pending, line)?;
        self.pending.push(b'\n');
        if self.pending.len() >= ENOUGH {
            // What is not written waits; too much is for the caller to notice.
            let _ = self.flush();
        }
        Ok(())
    }

    /// Whether so much waits for the disk that no more may.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING
    }

    /// Writes what is pending; what the disk does not take stays so.
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

    /// Writes what is pending. The storage has it for good once the file that this gives is synced.
    pub(crate) fn flushed(&mut self) -> io::Result<File> {
        self.flush()?;
        self.file.try_clone()
    }
}

/// A copy of the journal that is to take its place.
#[derive(Debug)]
struct Copied {
    file: File,
    known: Kept,
}

impl Copied {
    fn take_place(self, folder: &Path, turn: Turn<'_>) -> Result<(Journal, Kept), NotContinued> {
        match fs::rename(turn.copy(folder), folder.join(METRICS_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NotContinued::Superseded),
            renamed => renamed?,
        }
        File::open(folder)?.sync_all()?;
        Ok((Journal { file: self.file, pending: Vec::new() }, self.known))
    }
}

/// Why a journal does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotContinued {
    /// The storage does not take it now.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another worker goes on with it, in a newer group.
    #[error("another worker goes on with it")]
    Superseded,
}

/// What the lines tell that a journal goes on after.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Kept {
    /// The last step that has a line; 0 for none.
    pub step: u64,
    /// Step and accuracy of the last evaluation.
    pub accuracy: Option<(u64, f64)>,
}

/// What those of the `length` bytes of a journal tell that are kept, and where these end.
fn kept(file: &File, length: u64, base_step: u64) -> io::Result<(Kept, u64)> {
    let mut lines = Backwards { file, start: length, bytes: Vec::new() };
    let (mut step, mut accuracy, mut end) = (None, None, length);
    while let Some((start, line)) = lines.before()? {
        let whole = line.strip_suffix(b"\n").and_then(read).filter(|line| line.step <= base_step);
        match whole {
            None if step.is_none() && accuracy.is_none() => end = start,
            None => {}
            Some(Line { step, evaluation: Some(found) }) => accuracy = accuracy.or(Some((step, found.accuracy))),
            Some(line) => step = step.or(Some(line.step)),
        }
        if step.is_some() && (accuracy.is_some() || end - start > MAX_SEARCHED) {
            break;
        }
    }
    Ok((Kept { step: step.unwrap_or_default(), accuracy }, end))
}

/// The lines of a file, the last one first.
struct Backwards<'a> {
    file: &'a File,
    /// Where `bytes` begin in the file; those before are not read yet, those after are given.
    start: u64,
    bytes: Vec<u8>,
}

impl Backwards<'_> {
    /// The line before those that were given, with its end unless it was torn, and where it begins.
    fn before(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        loop {
            let inner = &self.bytes[..self.bytes.len().saturating_sub(1)];
            if let Some(end_before) = inner.iter().rposition(|byte| *byte == b'\n') {
                let line = self.bytes.split_off(end_before + 1);
                return Ok(Some((self.start + self.bytes.len() as u64, line)));
            }
            if self.start == 0 {
                let first = std::mem::take(&mut self.bytes);
                return Ok((!first.is_empty()).then_some((0, first)));
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
}

fn read(line: &[u8]) -> Option<Line> {
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Turn<'static> = Turn { job: "a-job", attempt: 0, generation: 3 };
    const LATER: Turn<'static> = Turn { generation: 4, ..TURN };

    #[test]
    fn a_restart_drops_the_steps_that_it_will_do_again_and_a_torn_line() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(METRICS_FILE);
        fs::write(
            &path,
            "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":{\"accuracy\":0.5}}\n{\"step\":3}\n{\"st",
        )
        .expect("written");
        let (mut journal, kept) = Journal::continue_after(folder.path(), TURN, 2).expect("opens");
        assert_eq!(kept, Kept { step: 2, accuracy: Some((2, 0.5)) });
        let line = EvaluationLine { step: 3, epoch: 1, evaluation: Evaluation { loss: 0.5, accuracy: 0.75 } };
        journal.write(&line).expect("written");
        journal.flush().expect("flushed");
        let text = fs::read_to_string(&path).expect("readable");
        let expected = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":{\"accuracy\":0.5}}\n\
             {\"step\":3,\"epoch\":1,\"evaluation\":{\"loss\":0.5,\"accuracy\":0.75}}\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn whatever_its_length_and_wherever_it_was_torn_a_journal_goes_on_after_the_base() {
        // Blocks end anywhere within lines, and before and after line ends.
        let lines: Vec<String> = (1..=3000)
            .flat_map(|step: u64| {
                let padding = "x".repeat(step as usize % 61);
                let evaluated = format!("{{\"step\":{step},\"evaluation\":{{\"accuracy\":0.25}}}}\n");
                let done = format!("{{\"step\":{step},\"padding\":\"{padding}\"}}\n");
                [Some(done), step.is_multiple_of(1000).then_some(evaluated)].into_iter().flatten()
            })
            .collect();
        let whole = lines.concat();
        assert!(whole.len() as u64 > 2 * BLOCK);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(METRICS_FILE);
        for (torn_by, base) in [(0, 3000), (1, 3000), (30, 3000), (0, 2999), (0, 1000), (0, 999), (7, 1), (0, 0)] {
            fs::write(&path, &whole[..whole.len() - torn_by]).expect("written");
            let (_, kept) = Journal::continue_after(folder.path(), TURN, base).expect("opens");
            let text = fs::read_to_string(&path).expect("readable");
            let is_kept = |line: &&String| read(line.as_bytes()).is_some_and(|line| line.step <= base);
            let mut left: Vec<&String> = lines.iter().filter(is_kept).collect();
            left.pop_if(|_| torn_by > 0 && base == 3000);
            assert!(text == left.into_iter().map(String::as_str).collect::<String>(), "torn by {torn_by}, base {base}");
            let evaluated = (base - u64::from(torn_by > 0 && base == 3000)) / 1000 * 1000;
            let accuracy = (evaluated > 0).then_some((evaluated, 0.25));
            assert_eq!(kept, Kept { step: base, accuracy }, "torn by {torn_by}");
        }
    }

    #[test]
    fn what_a_worker_writes_that_was_cut_off_is_in_no_journal() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let line = |step: u64| serde_json::json!({ "step": step });
        let (mut cut_off, _) = Journal::continue_after(folder.path(), TURN, 0).expect("opens");
        cut_off.write(&line(1)).expect("written");
        cut_off.flush().expect("written");
        cut_off.write(&line(2)).expect("written");
        let (mut newest, kept) = Journal::continue_after(folder.path(), LATER, 1).expect("opens");
        assert_eq!(kept.step, 1);
        newest.write(&line(2)).expect("written");
        newest.flush().expect("written");
        cut_off.flush().expect("written");
        let text = fs::read_to_string(folder.path().join(METRICS_FILE)).expect("readable");
        assert_eq!(text, "{\"step\":1}\n{\"step\":2}\n");
    }

    #[test]
    fn a_journal_that_was_never_begun_tells_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (_, kept) = Journal::continue_after(folder.path(), TURN, 7).expect("opens");
        assert_eq!(kept, Kept::default());
    }

    #[test]
    fn whoever_was_frozen_at_any_moment_takes_no_later_turns_place() {
        type Woken = Box<dyn FnOnce(&Path) -> Result<(), NotContinued>>;
        type Moment = (&'static str, fn(&Path) -> Woken);
        let moments: [Moment; 4] = [
            ("before its turn", |_| Box::new(|folder| Journal::continue_after(folder, TURN, 0).map(drop))),
            ("before it copied", |folder| {
                TURN.begin(folder).expect("a mark");
                Box::new(|folder| Journal::copied(folder, TURN, 0).map(drop))
            }),
            ("before its copy took the journal's place", |folder| {
                TURN.begin(folder).expect("a mark");
                let copied = Journal::copied(folder, TURN, 0).expect("a copy");
                Box::new(|folder| copied.take_place(folder, TURN).map(drop))
            }),
            ("after that", |folder| {
                let (mut journal, _) = Journal::continue_after(folder, TURN, 0).expect("opens");
                journal.write(&serde_json::json!({"step": 1, "is": "late"})).expect("written");
                Box::new(move |_| journal.flush().map_err(NotContinued::from).and(Err(NotContinued::Superseded)))
            }),
        ];
        for (moment, freeze) in moments {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path();
            let wake = freeze(path);
            let (mut later, _) = Journal::continue_after(path, LATER, 0).expect("opens");
            later.write(&serde_json::json!({"step": 1})).expect("written");
            later.flush().expect("flushed");
            let woken = wake(path);
            assert!(matches!(woken, Err(NotContinued::Superseded)), "{moment}: {woken:?}");
            let text = fs::read_to_string(path.join(METRICS_FILE)).expect("readable");
            assert_eq!(text, "{\"step\":1}\n", "{moment}");
            let others = Turn { job: "another-job", attempt: 0, generation: 1 };
            Journal::continue_after(path, others, 1).expect("another job's turn is no earlier one");
            Journal::continue_after(path, Turn { attempt: 1, generation: 1, ..TURN }, 1)
                .expect("nor a later attempt's");
        }
    }
}
