//! `lockstep replay`: repeats a run without faults, by the memberships that it had, and compares
//! the state after each step and the weights.

mod segments;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use lockstep_api::ValidJob;
use lockstep_launch::{Replay, StateComparison, Task};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use self::segments::{Segment, segments};
use crate::{
    Outcome,
    display::{eprint_line, print},
    run::{
        LocalRun,
        folder::{ReadOnlyFolder, metrics_log_of},
    },
};

const MODEL: &str = "model.safetensors";
/// Bytes before the header, which hold its length.
const LENGTH_BYTES: usize = 8;

/// Arguments of `lockstep replay`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the run, as `lockstep run` prints it.
    run: PathBuf,
    /// Path of the trainer. Default: lockstep-trainer beside this program.
    #[arg(long, value_name = "PATH")]
    trainer: Option<PathBuf>,
}

/// A replay that is ready to start.
pub(crate) struct PreparedReplay {
    job: ValidJob,
    /// The manifest of `job`.
    manifest: Value,
    /// The run's metrics log.
    metrics_log: String,
    segments: Vec<Segment>,
    original: Weights,
    trainer: Option<PathBuf>,
    /// Folder of the replay. It is removed if the weights are equal.
    folder: TempDir,
}

/// The tensors of a model file.
#[derive(Debug, PartialEq)]
struct Weights {
    /// Names, shapes and offsets.
    tensors: Value,
    bytes: Vec<u8>,
}

/// Checks everything before any process starts.
pub(crate) fn prepare(arguments: &Arguments) -> anyhow::Result<PreparedReplay> {
    let Arguments { run, trainer } = arguments;
    let original_run = ReadOnlyFolder::open(run)?;
    let shown = run.display();
    ensure!(
        matches!(original_run.job.task, Task::Train(_)),
        "{shown}: a benchmark trains nothing that a replay could compare"
    );
    ensure!(!original_run.is_at_work(), "{shown}: a `lockstep run` is at work in it; wait for its end");
    if let Some(earlier) = original_run.earlier_manifest()? {
        bail!(
            "{shown}: it was started with another manifest, {}; a replay needs a run with one manifest",
            earlier.display()
        );
    }
    let model = run.join(MODEL);
    if let (Task::Train(workload), false) = (&original_run.job.task, model.exists())
        && workload.checkpoint.objects().is_some()
    {
        bail!(
            "{shown}: its {MODEL} is in {}; copy it here first, because a replay compares with it",
            workload.checkpoint.uri
        );
    }
    ensure!(model.exists(), "{shown}: {MODEL} is missing: `lockstep run` continues the run to its end");
    let original = Weights::read(&model)?;
    let metrics_log = metrics_log_of(run)?;
    let segments = segments(original_run.plans()?, &original_run.history()?).with_context(|| shown.to_string())?;
    let folder = TempDir::with_prefix("lockstep-replay-").context("create a folder for the replay")?;
    let ReadOnlyFolder { mut job, value: manifest, .. } = original_run;
    if let Task::Train(workload) = &mut job.task {
        // The run's own storage may be an object store, which a replay must not touch.
        workload.checkpoint.uri = "file:///checkpoints".to_owned();
    }
    Ok(PreparedReplay { job, manifest, metrics_log, segments, original, trainer: trainer.clone(), folder })
}

impl PreparedReplay {
    /// Trains one segment after another, each from the state that the one before left.
    pub(crate) async fn run(self) -> anyhow::Result<Outcome> {
        let Self { job, manifest, metrics_log, segments, original, trainer, folder } = self;
        for segment in segments {
            eprint_line(&segment.to_string());
            let Segment { generation: _, workers, from: _, to, plan } = segment;
            let mut job = job.clone();
            job.replicas = workers;
            job.elastic.min_replicas = workers.get();
            let repetition = LocalRun::open(job, &manifest, trainer.as_deref(), None, Some(folder.path()))?;
            let outcome = repetition.repeat(Replay { plan, last_step: to }).await;
            if !matches!(outcome, Ok(Outcome::Done)) {
                eprint_line(&format!("the replay is kept in {}", folder.keep().display()));
                return outcome;
            }
        }
        let states = StateComparison::between(&metrics_log, &metrics_log_of(folder.path())?);
        print(&format!("states  {states}\n"));
        let replayed = Weights::read(&folder.path().join(MODEL))?;
        let (digest, other) = (original.digest(), replayed.digest());
        let are_equal = original == replayed;
        let found = if are_equal { "equal".to_owned() } else { format!("differs: {other} when replayed") };
        print(&format!("digest  {digest}  {found}\n"));
        if are_equal && states.differ_from.is_none() {
            folder.close().context("remove the replay")?;
            return Ok(Outcome::Done);
        }
        eprint_line(&format!("the replay is kept in {}", folder.keep().display()));
        Ok(Outcome::Failed)
    }
}

impl Weights {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let mut header = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let parsed = Self::split(&mut header).with_context(|| format!("{}: no safetensors", path.display()))?;
        Ok(Self { tensors: parsed.0, bytes: parsed.1 })
    }

    /// Splits the file into the tensors' header and their bytes. Other facts in the header do not
    /// belong to the weights.
    fn split(file: &mut Vec<u8>) -> Option<(Value, Vec<u8>)> {
        let length = u64::from_le_bytes(file.get(..LENGTH_BYTES)?.try_into().ok()?);
        let end = LENGTH_BYTES.checked_add(usize::try_from(length).ok()?).filter(|end| *end <= file.len())?;
        let bytes = file.split_off(end);
        let mut tensors: Value = serde_json::from_slice(&file[LENGTH_BYTES..]).ok()?;
        tensors.as_object_mut()?.remove("__metadata__");
        Some((tensors, bytes))
    }

    fn digest(&self) -> String {
        Sha256::digest(&self.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(MODEL);
        let length = (header.len() as u64).to_le_bytes();
        fs::write(&path, [&length[..], header.as_bytes(), bytes].concat()).expect("written");
        (folder, path)
    }

    fn weights(header: &str, bytes: &[u8]) -> Weights {
        let (_folder, path) = file(header, bytes);
        Weights::read(&path).expect("a model")
    }

    #[test]
    fn weights_are_compared_by_names_shapes_and_bits_alone() {
        let original = weights(r#"{"__metadata__":{"job":"a"},"w":{"shape":[2]}}"#, &[1, 2]);
        assert_eq!(original, weights(r#"{"w":{"shape":[2]},"__metadata__":{"job":"b"}}"#, &[1, 2]));
        assert_ne!(original, weights(r#"{"w":{"shape":[2]}}"#, &[1, 3]));
        assert_ne!(original, weights(r#"{"v":{"shape":[2]}}"#, &[1, 2]));
    }

    #[test]
    fn a_cut_file_is_no_model() {
        let (_folder, path) = file(r#"{"w":{}}"#, &[]);
        fs::write(&path, &fs::read(&path).expect("readable")[..12]).expect("cut");
        assert!(Weights::read(&path).expect_err("refused").to_string().contains("no safetensors"));
    }
}
