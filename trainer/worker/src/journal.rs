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
#[derive(Debug, Serialize)]
pub(crate) struct StepLine {
    pub step: u64,
    pub epoch: u64,
    pub generation: u64,
    pub world_size: u32,
    /// Mean over the global batch, in nats.
    pub loss: f64,
    pub learning_rate: f32,
    pub samples_per_second: f64,
    pub step_seconds: f64,
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

/// The open file.
#[derive(Debug)]
pub(crate) struct Journal {
    file: BufWriter<File>,
}

impl Journal {
    /// Opens the journal to continue after `base_step`: lines of later steps come from work that a restart lost, and are
    /// dropped; so is a last line that was torn.
    pub(crate) fn continue_after(folder: &Path, base_step: u64) -> io::Result<Self> {
        let path = folder.join(FILE_NAME);
        let rewritten = folder.join(".metrics.jsonl.tmp");
        let mut kept = BufWriter::new(File::create(&rewritten)?);
        match File::open(&path) {
            Ok(old) => {
                for line in BufReader::new(old).split(b'\n') {
                    let line = line?;
                    if step_of(&line).is_some_and(|step| step <= base_step) {
                        kept.write_all(&line)?;
                        kept.write_all(b"\n")?;
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        kept.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&rewritten, &path)?;
        Ok(Self { file: BufWriter::new(OpenOptions::new().append(true).open(&path)?) })
    }

    /// Appends one line; it reaches the file with the next [`Self::flush`] or when the buffer is full.
    pub(crate) fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, line)?;
        self.file.write_all(b"\n")
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn step_of(line: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Line {
        step: u64,
    }
    serde_json::from_slice::<Line>(line).ok().map(|line| line.step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_drops_the_steps_that_it_will_do_again_and_a_torn_line() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(FILE_NAME);
        fs::write(&path, "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":{}}\n{\"step\":3}\n{\"st")
            .expect("written");
        let mut journal = Journal::continue_after(folder.path(), 2).expect("opens");
        let line = EvaluationLine { step: 3, epoch: 1, evaluation: Evaluation { loss: 0.5, accuracy: 0.75 } };
        journal.write(&line).expect("written");
        journal.flush().expect("flushed");
        let text = fs::read_to_string(&path).expect("readable");
        let expected = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":{}}\n\
             {\"step\":3,\"epoch\":1,\"evaluation\":{\"loss\":0.5,\"accuracy\":0.75}}\n";
        assert_eq!(text, expected);
    }
}
