//! TensorBoard's event file beside the metrics log: a scalar of each figure by step.
//!
//! A file is a sequence of records (the TFRecord format). Each holds an `Event` in the encoding of
//! protocol buffers:
//!
//! ```text
//! record    = length: u64 · masked(crc32c(length)): u32 · event · masked(crc32c(event)): u32
//! masked(c) = rotate_right(c, 15) + 0xa282ead8                               (little endian)
//! Event     = 1: wall_time f64 · 2: step i64 · 3: file_version text · 5: Summary
//!             · 7: SessionLog
//! Summary   = 1: Value { 1: tag text · 2: simple_value f32 }
//! SessionLog = 1: status (START = 1)
//! ```
//!
//! A START takes back the events from its step on, after a restart from a checkpoint.
//! Source: `tensorboard/compat/proto` and `tensorboard/summary/writer` of TensorBoard 2.20.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use crc_fast::crc32_iscsi as crc32c;
use jiff::Timestamp;
use lockstep_launch::metrics_log::{self, LogFile};

use crate::metrics_lines::{Evaluation, Line, Step, parse};

const PREFIX: &str = "events.out.tfevents.";
/// The end of the name tells the files of this program from others.
const SUFFIX: &str = ".lockstep";
const VERSION: &str = "brain.Event:2";
const MASK: u32 = 0xa282_ead8;

/// The event file of a run.
pub(super) struct EventFile {
    run: PathBuf,
    file: File,
    /// The bytes of each file of the metrics log that were read.
    read: BTreeMap<PathBuf, u64>,
    /// Generation, step and time of the newest step that was written.
    newest: Option<(u64, u64, Timestamp)>,
    /// The step of the newest evaluation that was written.
    evaluated: u64,
}

impl EventFile {
    /// Makes the file in the folder of a run. It takes the place of those of earlier starts,
    /// because the metrics log has their steps.
    pub(super) fn create(run: &Path, now: Timestamp) -> io::Result<Self> {
        for entry in fs::read_dir(run)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
                fs::remove_file(&path)?;
            }
        }
        let mut file = File::create(run.join(format!("{PREFIX}{}{SUFFIX}", now.as_second())))?;
        file.write_all(&record(&event(now, 0, &text(3, VERSION))))?;
        Ok(Self { run: run.to_owned(), file, read: BTreeMap::new(), newest: None, evaluated: 0 })
    }

    /// Writes the steps and the evaluations that the metrics log has gained.
    pub(super) fn follow(&mut self) -> io::Result<()> {
        let mut records = Vec::new();
        // The oldest file first.
        for file in metrics_log::files(&self.run, None)?.iter().rev() {
            match self.gained(file) {
                // The end of the run has merged it; the next look finds its lines elsewhere.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                gained => gained?.iter().for_each(|line| self.put(line, &mut records)),
            }
        }
        self.file.write_all(&records)
    }

    /// Returns the whole lines that count behind those that were read.
    fn gained(&mut self, LogFile { path, counts }: &LogFile) -> io::Result<Vec<Line>> {
        let mut file = File::open(path)?;
        let read = self.read.entry(path.clone()).or_default();
        file.seek(SeekFrom::Start(*read))?;
        let (mut reader, mut bytes, mut gained) = (BufReader::new(file), Vec::new(), Vec::new());
        while reader.read_until(b'\n', &mut bytes)? > 0 && bytes.ends_with(b"\n") {
            *read += bytes.len() as u64;
            let counted = counts.include(&bytes).then(|| std::str::from_utf8(&bytes).ok().and_then(parse)).flatten();
            gained.extend(counted);
            bytes.clear();
        }
        Ok(gained)
    }

    fn put(&mut self, line: &Line, records: &mut Vec<u8>) {
        match line {
            Line::Step(step) => self.step(step, records),
            Line::Evaluation(evaluation) => self.evaluation(evaluation, records),
        }
    }

    fn step(&mut self, line: &Step, records: &mut Vec<u8>) {
        let before = self.newest.map(|(generation, step, _)| (generation, step));
        // The merged log repeats what its parts had.
        let is_new = before.is_none_or(|(generation, step)| line.step > step || line.generation > generation);
        if line.world_size == 0 || !is_new {
            return;
        }
        if before.is_some_and(|(_, step)| line.step <= step) {
            records.extend(record(&event(line.time, line.step, &bytes(7, &number(1, 1)))));
            self.evaluated = self.evaluated.min(line.step.saturating_sub(1));
        }
        self.newest = Some((line.generation, line.step, line.time));
        let figures = [
            ("loss/training", line.loss),
            ("learning_rate", Some(line.learning_rate)),
            ("throughput/samples_per_second", Some(line.samples_per_second)),
            ("world_size", Some(line.world_size.into())),
            ("efficiency/scaling", line.scaling_efficiency),
            ("efficiency/load_balance", line.load_balance),
            ("efficiency/communication", line.communication_efficiency),
        ];
        records.extend(record(&event(line.time, line.step, &summary(&figures))));
    }

    /// Writes an evaluation. It has no time of its own: it follows its step.
    fn evaluation(&mut self, Evaluation { step, figures }: &Evaluation, records: &mut Vec<u8>) {
        let Some((.., time)) = self.newest.filter(|_| *step > self.evaluated) else { return };
        self.evaluated = *step;
        let figures = [("loss/evaluation", figures.loss), ("accuracy", figures.accuracy)];
        records.extend(record(&event(time, *step, &summary(&figures))));
    }
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let masked = |bytes: &[u8]| crc32c(bytes).rotate_right(15).wrapping_add(MASK).to_le_bytes();
    [&length[..], &masked(&length), event, &masked(event)].concat()
}

fn event(time: Timestamp, step: u64, rest: &[u8]) -> Vec<u8> {
    let seconds = time.as_nanosecond() as f64 / 1e9;
    [&[1 << 3 | 1][..], &seconds.to_le_bytes(), &number(2, step), rest].concat()
}

/// Returns the `Summary` of the figures that are known.
fn summary(figures: &[(&str, Option<f64>)]) -> Vec<u8> {
    let value = |(tag, value): (&str, f64)| {
        #[allow(clippy::cast_possible_truncation, reason = "TensorBoard's scalars are f32")]
        let simple = (value as f32).to_le_bytes();
        bytes(1, &[&text(1, tag)[..], &[2 << 3 | 5], &simple].concat())
    };
    let known = figures.iter().filter_map(|(tag, figure)| Some((*tag, (*figure)?)));
    bytes(5, &known.flat_map(value).collect::<Vec<u8>>())
}

fn text(field: u8, text: &str) -> Vec<u8> {
    bytes(field, text.as_bytes())
}

/// Encodes a field of bytes.
fn bytes(field: u8, content: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2][..], &varint(content.len() as u64), content].concat()
}

/// Encodes a field that is a number.
fn number(field: u8, value: u64) -> Vec<u8> {
    [&[field << 3][..], &varint(value)].concat()
}

/// Encodes a number in groups of seven bits, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut groups = Vec::new();
    while value >= 0x80 {
        groups.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    groups.push(value as u8);
    groups
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn numbers_and_records_are_encoded_as_their_formats_say() {
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(text(3, "ab"), [0x1a, 2, b'a', b'b']);
        let record = record(b"123456789");
        assert_eq!(record[..8], 9_u64.to_le_bytes());
        // CRC-32C of these nine digits is 0xe3069283.
        let masked = 0xe306_9283_u32.rotate_right(15).wrapping_add(MASK);
        assert_eq!(record[record.len() - 4..], masked.to_le_bytes());
    }

    /// Returns the steps of the events in a file; one that takes steps back is negative.
    fn steps(run: &Path) -> Vec<i64> {
        let names = fs::read_dir(run).expect("a folder").map(|entry| entry.expect("an entry").path());
        let file = names.filter(|path| path.to_string_lossy().ends_with(SUFFIX)).collect::<Vec<_>>();
        let [file] = &file[..] else { panic!("{file:?}") };
        let (bytes, mut place, mut steps) = (fs::read(file).expect("readable"), 0, Vec::new());
        while place < bytes.len() {
            let length = u64::from_le_bytes(bytes[place..place + 8].try_into().expect("eight")) as usize;
            let event = &bytes[place + 12..place + 12 + length];
            // Steps of this test fit into one group of bits. Field 7 begins with 0x3a.
            let sign = if event[11] == 0x3a { -1 } else { 1 };
            steps.push(sign * i64::from(event[10]));
            place += length + 16;
        }
        steps
    }

    #[test]
    fn a_restart_at_step_0_takes_all_evaluations_back() {
        let run = tempfile::tempdir().expect("a folder");
        let mut events = EventFile::create(run.path(), Timestamp::UNIX_EPOCH).expect("made");
        let line = |step: u64, generation: u64| {
            let line = format!(
                "{{\"step\":{step},\"generation\":{generation},\"world_size\":1,\"loss\":1,\"step_seconds\":1,\
                 \"time\":\"2026-11-22T05:12:10Z\"}}"
            );
            parse(&line).expect("a step")
        };
        let evaluation = parse("{\"step\":1,\"evaluation\":{\"loss\":1,\"accuracy\":0.5}}").expect("an evaluation");
        for line in [line(0, 1), line(1, 1), evaluation, line(0, 2)] {
            events.put(&line, &mut Vec::new());
        }
        assert_eq!(events.evaluated, 0);
    }

    #[test]
    fn a_restart_takes_steps_back_and_the_merged_log_repeats_none() {
        let run = tempfile::tempdir().expect("a folder");
        let path = |name: &str| run.path().join(name);
        let line = |step: u64, generation: u64| {
            format!(
                "{{\"step\":{step},\"generation\":{generation},\"world_size\":1,\"loss\":1,\"step_seconds\":1,\
                 \"time\":\"2026-11-22T05:12:10Z\"}}\n"
            )
        };
        let header = |last: u64| format!("{{\"continues\":null,\"last_step\":{last},\"last_evaluation\":{last}}}\n");
        fs::write(path("events.out.tfevents.1.lockstep"), "of an earlier start").expect("written");
        let mut events = EventFile::create(run.path(), Timestamp::UNIX_EPOCH).expect("made");
        events.follow().expect("there is no log yet");
        let first = path("metrics.jsonl.part-a-0-1");
        fs::write(&first, header(0) + &line(1, 1) + &line(2, 1) + &line(3, 1)[..9]).expect("written");
        events.follow().expect("followed");
        assert_eq!(steps(run.path()), [0, 1, 2], "the third line is torn");
        let mut file = OpenOptions::new().append(true).open(&first).expect("open");
        file.write_all(&line(3, 1).as_bytes()[9..]).expect("completed");
        events.follow().expect("followed");
        let second = header(1).replace("null", "\"metrics.jsonl.part-a-0-1\"") + &line(2, 2) + &line(3, 2);
        fs::write(path("metrics.jsonl.part-a-0-2"), second).expect("written");
        events.follow().expect("followed");
        let expected = [0, 1, 2, 3, -2, 2, 3];
        assert_eq!(steps(run.path()), expected);
        fs::write(path("metrics.jsonl"), line(1, 1) + &line(2, 2) + &line(3, 2)).expect("merged");
        fs::remove_file(first).expect("merged");
        fs::remove_file(path("metrics.jsonl.part-a-0-2")).expect("merged");
        events.follow().expect("followed");
        assert_eq!(steps(run.path()), expected);
    }
}
