//! `lockstep-trainer checkpoints`: shows and changes the checkpoints in a job's folder, for people
//! and, with `--json`, for programs.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use lockstep_checkpoint::{
    Checkpoint, CheckpointError, Description, Exported, Folder, Listed, OwnedTensor, Tensor, Tensors, export_model,
};
use lockstep_launch::ObjectUri;
use lockstep_objects::Home;
use serde_json::{Value, json};

use crate::storage::open_objects;

/// Work with the checkpoints of a job's folder.
#[derive(Subcommand)]
pub(crate) enum Action {
    /// List the checkpoints, newest first, by their manifests.
    List(Place),
    /// Read all bytes of the checkpoints and compare the digests. The exit code is 1 if one is
    /// damaged.
    Verify {
        #[command(flatten)]
        place: Place,
        /// Only the checkpoint of this step.
        #[arg(long)]
        step: Option<u64>,
    },
    /// Delete all but the newest checkpoints and the leftovers of interrupted saves, after the
    /// newest one was verified. No job may be running there.
    Prune {
        #[command(flatten)]
        place: Place,
        /// The number of checkpoints to keep.
        #[arg(long, value_name = "COUNT", default_value = "3")]
        keep_last: NonZeroU32,
    },
    /// Write the weights of a checkpoint as a safetensors file.
    Export {
        #[command(flatten)]
        place: Place,
        /// The checkpoint of this step. Default: the newest whole one.
        #[arg(long)]
        step: Option<u64>,
        /// The file to write. An existing file is replaced. A pipe or a device, such as
        /// /dev/stdout, is written to.
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct Place {
    /// The job's folder, which has a folder `checkpoints`; in an object store
    /// s3://BUCKET/PREFIX/JOB, or gs:// or az://.
    folder: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The outcome of an action, which becomes the exit code. Code 2 is a wrong command line, as in
/// clap.
enum Outcome {
    Done,
    /// A checkpoint is damaged, or none is whole.
    Damaged,
}

/// Carries the action out. The answer goes to standard output, problems go to standard error.
pub(crate) fn act(action: &Action) -> ExitCode {
    match perform(action, &mut io::stdout().lock()) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Damaged) => ExitCode::from(1),
        // The reader has left: it has seen enough.
        Err(Problem::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(problem) => {
            complain(&format!("error: {problem}"));
            ExitCode::from(match problem {
                Problem::NoPlace { .. } | Problem::Checkpoints(CheckpointError::NoCheckpoints { .. }) => 2,
                _ => 1,
            })
        }
    }
}

/// Writes a line to standard error. If that fails, the exit code has to suffice.
fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(transparent)]
    Checkpoints(#[from] CheckpointError),
    #[error("{uri}: {accepted}")]
    NoPlace { uri: String, accepted: &'static str },
    #[error("{path} has no checkpoint of step {step}; `checkpoints list` shows the steps")]
    NoSuchStep { path: String, step: u64 },
    #[error("{path} has no whole checkpoint")]
    NoneWhole { path: String },
    #[error("{path} is damaged: {reason}; nothing was written")]
    Damaged { path: String, reason: String },
    #[error("writing the answer: {0}")]
    Output(#[from] io::Error),
}

fn perform(action: &Action, out: &mut impl Write) -> Result<Outcome, Problem> {
    match action {
        Action::List(place) => list(&place.open()?, place.json, out),
        Action::Verify { place, step } => verify(&place.open()?, *step, place.json, out),
        Action::Prune { place, keep_last } => prune(&place.open()?, *keep_last, place.json, out),
        Action::Export { place, step, output } => export(&place.open()?, *step, output, place.json, out),
    }
}

impl Place {
    fn open(&self) -> Result<Folder, Problem> {
        let Some(uri) = self.folder.to_str().filter(|text| ObjectUri::begins(text)) else {
            return Ok(Folder::open_existing(&self.folder)?);
        };
        let place = uri.parse().map_err(|accepted| Problem::NoPlace { uri: uri.to_owned(), accepted })?;
        Ok(Folder::open_existing_bucket(open_objects(&place, Home::Command)?)?)
    }
}

fn list(folder: &Folder, json: bool, out: &mut impl Write) -> Result<Outcome, Problem> {
    let listed = folder.list()?;
    if json {
        let lines: Vec<_> = listed.iter().map(described).collect();
        writeln!(out, "{:#}", json!(lines))?;
        return Ok(Outcome::Done);
    }
    if listed.is_empty() {
        writeln!(out, "no checkpoints in {}", folder.path().display())?;
        return Ok(Outcome::Done);
    }
    writeln!(
        out,
        "{:>10} {:>7} {:>4} {:>10} {:>6} {:>7}  {:<30} STATE",
        "STEP", "EPOCH", "GEN", "BYTES", "FILES", "FORMAT", "SAVED"
    )?;
    for Listed { step, described, .. } in &listed {
        match described {
            Ok(Description { position, time, format_version, files, bytes, identity: _, writer: _, tensors: _ }) => {
                writeln!(
                    out,
                    "{step:>10} {:>7} {:>4} {:>10} {files:>6} {format_version:>7}  {time:<30} manifest whole",
                    position.epoch,
                    position.generation,
                    size(*bytes)
                )?
            }
            Err(reason) => {
                writeln!(
                    out,
                    "{step:>10} {:>7} {:>4} {:>10} {:>6} {:>7}  {:<30} unusable: {reason}",
                    "-", "-", "-", "-", "-", "-"
                )?;
            }
        }
    }
    Ok(Outcome::Done)
}

fn verify(folder: &Folder, step: Option<u64>, json: bool, out: &mut impl Write) -> Result<Outcome, Problem> {
    let mut all = folder.list()?;
    if let Some(wanted) = step {
        all.retain(|listed| listed.step == wanted);
        if all.is_empty() {
            return Err(Problem::NoSuchStep { path: folder.path().display().to_string(), step: wanted });
        }
    }
    let (mut lines, mut told) = (Vec::new(), Ok(()));
    let (mut damaged, mut whole) = (0, 0);
    for listed in &all {
        let step = listed.step;
        let found = match folder.verify(listed) {
            Ok(found) => found.map_err(|reason| format!("damaged: {reason}")),
            Err(error) => Err(format!("not verified: {error}")),
        };
        if found.is_err() && is_gone(folder, listed)? {
            complain(&format!("step {step} was deleted meanwhile"));
            continue;
        }
        whole += usize::from(found.is_ok());
        damaged += usize::from(found.is_err());
        if json {
            lines.push(match &found {
                Ok(whole) => {
                    json!({ "step": step, "whole": true, "bytes": whole.bytes, "state_digest": whole.state_digest })
                }
                Err(reason) => json!({ "step": step, "whole": false, "reason": reason }),
            });
            continue;
        }
        told = told.and_then(|()| match found {
            Ok(whole) => writeln!(out, "step {step}: whole, {} read", size(whole.bytes)),
            Err(reason) => writeln!(out, "step {step}: {reason}"),
        });
        if damaged > 0 && told.is_err() {
            break;
        }
    }
    told = told.and_then(|()| match json {
        true => writeln!(out, "{:#}", json!(lines)),
        false => writeln!(out, "{whole} of {} whole", whole + damaged),
    });
    match told {
        // The exit code counts even if the reader has left.
        Err(error) if damaged == 0 || error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ if damaged > 0 => Ok(Outcome::Damaged),
        _ => Ok(Outcome::Done),
    }
}

fn prune(folder: &Folder, keep_last: NonZeroU32, json: bool, out: &mut impl Write) -> Result<Outcome, Problem> {
    let newest = newest_whole(folder, |listed| folder.verify(listed))?;
    let pruned = folder.prune(keep_last, &newest.identity)?;
    if json {
        let Checkpoint { position, .. } = newest;
        writeln!(
            out,
            "{:#}",
            json!({ "newest": position.step, "deleted": pruned.steps, "leftovers": pruned.leftovers })
        )?;
        return Ok(Outcome::Done);
    }
    writeln!(out, "step {}, the newest, was read and is whole", newest.position.step)?;
    for step in &pruned.steps {
        writeln!(out, "step {step}: deleted")?;
    }
    writeln!(out, "{} checkpoints and {} unfinished saves deleted", pruned.steps.len(), pruned.leftovers)?;
    Ok(Outcome::Done)
}

fn export(
    folder: &Folder,
    step: Option<u64>,
    output: &Path,
    json: bool,
    out: &mut impl Write,
) -> Result<Outcome, Problem> {
    let path = || folder.path().display().to_string();
    let mut tensors = Tensors::default();
    let checkpoint = match step {
        None => newest_whole(folder, |listed| folder.load(listed, &mut tensors))?,
        Some(step) => {
            let listed = folder.list()?.into_iter().find(|listed| listed.step == step);
            let listed = listed.ok_or_else(|| Problem::NoSuchStep { path: path(), step })?;
            let damaged = |reason| Problem::Damaged { path: listed.path.display().to_string(), reason };
            folder.load(&listed, &mut tensors)?.map_err(damaged)?
        }
    };
    let (Checkpoint { position, identity, .. }, weights) = (&checkpoint, &tensors.weights);
    let metadata = BTreeMap::from(
        [("step", position.step.to_string()), ("epoch", position.epoch.to_string()), ("model", identity.model.clone())]
            .map(|(key, value)| (key.to_owned(), value)),
    );
    let exported = export_model(output, &borrowed(weights), &metadata)?;
    let told = match json {
        true => format!("{:#}", json!({ "step": position.step, "tensors": weights.len(), "output": output })),
        false => format!("step {}: {} tensors written to {}", position.step, weights.len(), output.display()),
    };
    match exported {
        Exported::File => writeln!(out, "{told}")?,
        // The stream may be standard output, where the answer would be taken for tensors.
        Exported::Stream => complain(&told),
    }
    Ok(Outcome::Done)
}

/// Returns the newest checkpoint that `read` finds whole, of any job. Names newer damaged ones on
/// standard error.
fn newest_whole(
    folder: &Folder,
    mut read: impl FnMut(&Listed) -> Result<Result<Checkpoint, String>, CheckpointError>,
) -> Result<Checkpoint, Problem> {
    'listed: loop {
        for listed in folder.list()? {
            match read(&listed)? {
                Ok(whole) => return Ok(whole),
                // A running job deleted it, and keeps newer ones.
                Err(_) if is_gone(folder, &listed)? => continue 'listed,
                Err(reason) => complain(&format!("step {} is passed over: {reason}", listed.step)),
            }
        }
        return Err(Problem::NoneWhole { path: folder.path().display().to_string() });
    }
}

/// Returns true if a checkpoint was deleted since it was listed.
fn is_gone(folder: &Folder, listed: &Listed) -> Result<bool, CheckpointError> {
    Ok(folder.list()?.iter().all(|now| now.path != listed.path))
}

fn borrowed(tensors: &[OwnedTensor]) -> Vec<Tensor<'_>> {
    tensors.iter().map(|tensor| Tensor { name: &tensor.name, shape: &tensor.shape, values: &tensor.values }).collect()
}

fn described(listed: &Listed) -> Value {
    let Listed { step, path, described, .. } = listed;
    match described {
        Err(reason) => json!({ "step": step, "path": path, "unusable": reason }),
        Ok(Description { identity, position, time, format_version, writer, tensors, files, bytes }) => json!({
            "step": step,
            "path": path,
            "epoch": position.epoch,
            "cursor": position.cursor,
            "seed": position.seed,
            "generation": position.generation,
            "time": time,
            "model": identity.model,
            "workload": identity.workload_digest,
            "format_version": format_version,
            "writer": writer,
            "tensors": tensors,
            "files": files,
            "bytes": bytes,
        }),
    }
}

/// Spells a number of bytes for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (0..UNITS.len() - 1).find(|power| bytes >> (10 * (power + 1)) == 0).unwrap_or(UNITS.len() - 1);
    match power {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / (1_u64 << (10 * power)) as f64, UNITS[power]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_checkpoint::{Position, Snapshot, TrainingIdentity};

    /// Makes a folder with checkpoints of steps 1 to 3. The last is damaged.
    fn folder() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(root.path()).expect("opens");
        let identity = TrainingIdentity { model: "mlp".into(), workload_digest: "ab12".into() };
        for step in 1..=3 {
            let values = [step as f32, 0.5];
            let saved = folder.save(&Snapshot {
                identity: &identity,
                position: Position { step, generation: 1, ..Position::default() },
                state_digest: "digest",
                time: "2026-11-21T12:00:00Z",
                communication: None,
                weights: &[Tensor { name: "fc.weight", shape: &[2], values: &values }],
                slots: &[],
            });
            saved.expect("saved");
        }
        let damaged = root.path().join("checkpoints/step-00000003");
        for file in std::fs::read_dir(damaged).expect("a folder").map(|file| file.expect("readable").path()) {
            if file.extension().is_some_and(|end| end == "chunk") {
                std::fs::write(file, [0; 8]).expect("damaged");
            }
        }
        root
    }

    fn said(action: &Action) -> (Result<Outcome, Problem>, String) {
        let mut out = Vec::new();
        let outcome = perform(action, &mut out);
        (outcome, String::from_utf8(out).expect("UTF-8"))
    }

    fn place(root: &tempfile::TempDir, json: bool) -> Place {
        Place { folder: root.path().to_owned(), json }
    }

    #[test]
    fn a_list_has_a_line_for_each_checkpoint_newest_first() {
        let root = folder();
        let (outcome, text) = said(&Action::List(place(&root, false)));
        assert!(matches!(outcome, Ok(Outcome::Done)));
        let steps: Vec<_> = text.lines().skip(1).map(|line| line.split_whitespace().next().expect("a step")).collect();
        assert_eq!(steps, ["3", "2", "1"]);
        let (_, text) = said(&Action::List(place(&root, true)));
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&value[0]["step"], &value[2]["model"]), (&json!(3), &json!("mlp")));
    }

    #[test]
    fn verifying_names_the_damaged_checkpoint() {
        let root = folder();
        let (outcome, text) = said(&Action::Verify { place: place(&root, false), step: None });
        assert!(matches!(outcome, Ok(Outcome::Damaged)));
        assert!(
            text.contains("step 3: damaged") && text.contains("step 2: whole") && text.contains("2 of 3"),
            "{text}"
        );
        let (outcome, _) = said(&Action::Verify { place: place(&root, true), step: Some(2) });
        assert!(matches!(outcome, Ok(Outcome::Done)));
        let (outcome, _) = said(&Action::Verify { place: place(&root, true), step: Some(9) });
        assert!(outcome.err().expect("refused").to_string().contains("no checkpoint of step 9"));
    }

    /// A reader that has left.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_damaged_checkpoint_decides_the_outcome_even_if_nobody_reads_it() {
        let root = folder();
        let of = |step| perform(&Action::Verify { place: place(&root, false), step }, &mut Gone);
        assert!(matches!(of(None), Ok(Outcome::Damaged)));
        assert!(matches!(of(Some(2)), Err(Problem::Output(_))));
    }

    #[test]
    fn pruning_counts_from_the_newest_whole_checkpoint() {
        let root = folder();
        let (outcome, text) = said(&Action::Prune { place: place(&root, false), keep_last: NonZeroU32::MIN });
        assert!(matches!(outcome, Ok(Outcome::Done)));
        assert!(text.contains("step 2, the newest") && text.contains("step 1: deleted"), "{text}");
        let left = Folder::open_existing(root.path()).expect("opens").list().expect("listed");
        assert_eq!(left.iter().map(|listed| listed.step).collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn the_newest_whole_weights_are_exported_and_a_damaged_step_is_refused() {
        let root = folder();
        let output = root.path().join("out.safetensors");
        let (outcome, _) = said(&Action::Export { place: place(&root, false), step: Some(3), output: output.clone() });
        assert!(outcome.err().expect("refused").to_string().contains("nothing was written"));
        assert!(!output.exists());
        let (_, text) = said(&Action::Export { place: place(&root, false), step: None, output: output.clone() });
        assert!(text.contains("step 2: 1 tensors written"), "{text}");
        assert!(std::fs::read(output).expect("written").ends_with(&[2.0_f32, 0.5].map(f32::to_le_bytes).concat()));
    }

    #[test]
    fn a_checkpoint_that_its_job_deletes_meanwhile_is_not_damaged() {
        let root = folder();
        let folder = Folder::open_existing(root.path()).expect("opens");
        let (aside, place) = (root.path().join("aside"), root.path().join("checkpoints/step-00000002"));
        std::fs::rename(&place, &aside).expect("moved");
        let mut looked_at = Vec::new();
        let newest = newest_whole(&folder, |listed| {
            looked_at.push(listed.step);
            if listed.step == 3 {
                std::fs::remove_dir_all(&listed.path).expect("deleted");
                std::fs::rename(&aside, &place).expect("moved back");
            }
            folder.verify(listed)
        });
        assert!(newest.is_ok_and(|newest| newest.position.step == 2));
        assert_eq!(looked_at, [3, 2]);
    }

    #[test]
    fn a_folder_without_checkpoints_is_refused_and_stays_as_it_is() {
        let root = tempfile::tempdir().expect("a folder");
        let (outcome, _) = said(&Action::List(place(&root, false)));
        assert!(outcome.err().expect("refused").to_string().contains("is no folder of checkpoints"));
        assert_eq!(std::fs::read_dir(root.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn sizes_are_in_the_unit_that_fits() {
        let found = [0, 1023, 1024, 100_000_000, u64::MAX].map(size);
        assert_eq!(found, ["0 B", "1023 B", "1.0 KiB", "95.4 MiB", "16777216.0 TiB"]);
    }
}
