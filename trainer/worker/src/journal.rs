//! `metrics.jsonl`: one line per step and one per evaluation, written by one member, never twice for a step.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

/// Name of the file in the run's folder.
pub(crate) const FILE_NAME: &str = "metrics.jsonl";

/// One step of the whole group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StepLine {
    pub step: u64,
    pub epoch: u64,
    pub generation: u64,
    pub world_size: u32,
    /// Mean over the global batch, in nats; `None` where nobody is left who had it.
    pub loss: Option<f64>,
    pub learning_rate: f32,
    pub samples_per_second: f64,
    pub step_seconds: f64,
    /// When all ranks had done it, RFC 3339.
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
            learning_rate: 0.0,
            samples_per_second: 0.0,
            step_seconds: 0.0,
            time: jiff::Timestamp::now().to_string(),
        }
    }
}

/// One evaluation on the held-out samples.
#[derive(Debug, Serialize)]
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
const MAX_PENDING: usize = 1 << 20;
/// Bytes that are written without being asked.
const ENOUGH: usize = 16 << 10;

/// The open file, and whole lines that are not in it yet.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    pending: Vec<u8>,
}

impl Journal {
    /// Opens the journal to continue after `base_step`: lines of later steps come from work that a restart lost, and are
    /// dropped; so is a last line that was torn. Gives what the lines that are kept tell.
    pub(crate) fn continue_after(folder: &Path, base_step: u64) -> io::Result<(Self, Kept)> {
        let path = folder.join(FILE_NAME);
        let rewritten = folder.join(".metrics.jsonl.tmp");
        let mut file = BufWriter::new(File::create(&rewritten)?);
        let mut kept = Kept::default();
        match File::open(&path) {
            Ok(old) => {
                for line in BufReader::new(old).split(b'\n') {
                    let line = line?;
                    let Some(Line { step, evaluation }) = read(&line).filter(|line| line.step <= base_step) else {
                        continue;
                    };
                    match evaluation {
                        Some(found) => kept.accuracy = Some((step, found.accuracy)),
                        None => kept.step = step,
                    }
                    file.write_all(&line)?;
                    file.write_all(b"\n")?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&rewritten, &path)?;
        File::open(folder)?.sync_all()?;
        Ok((Self { file: OpenOptions::new().append(true).open(&path)?, pending: Vec::new() }, kept))
    }

    /// Appends one line; it reaches the file with the next [`Self::flush`] or a little later.
    ///
    /// # Errors
    /// Only when so much waits for the disk that no more can.
    pub(crate) fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.pending, line)?;
        self.pending.push(b'\n');
        if self.pending.len() < ENOUGH {
            return Ok(());
        }
        self.flush().or_else(|error| if self.pending.len() < MAX_PENDING { Ok(()) } else { Err(error) })
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

/// What the lines tell that a journal goes on after.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Kept {
    /// The last step that has a line; 0 for none.
    pub step: u64,
    /// Step and accuracy of the last evaluation.
    pub accuracy: Option<(u64, f64)>,
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

    #[test]
    fn a_restart_drops_the_steps_that_it_will_do_again_and_a_torn_line() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(FILE_NAME);
        fs::write(
            &path,
            "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":{\"accuracy\":0.5}}\n{\"step\":3}\n{\"st",
        )
        .expect("written");
        let (mut journal, kept) = Journal::continue_after(folder.path(), 2).expect("opens");
        assert_eq!(kept, Kept { step: 2, accuracy: Some((2, 0.5)) });
        let line = EvaluationLine { step: 3, epoch: 1, evaluation: Evaluation { loss: 0.5, accuracy: 0.75 } };
        journal.write(&line).expect("written");
        journal.flush().expect("flushed");
        let text = fs::read_to_string(&path).expect("readable");
        let expected = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":{\"accuracy\":0.5}}\n\
             {\"step\":3,\"epoch\":1,\"evaluation\":{\"loss\":0.5,\"accuracy\":0.75}}\n";
        assert_eq!(text, expected);
    }
}
