//! `lockstep-trainer checkpoints`: shows and changes the checkpoints in a job's folder, for people
//! and, with `--json`, for programs.

pub(crate) mod choose;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use lockstep_checkpoint::{
    Checkpoint, CheckpointError, Description, Exported, Folder, Listed, OwnedTensor, Tensors, export_model,
};
use serde_json::{Value, json};

use self::choose::{Choice, Problem, complain, is_gone, newest_whole};
use crate::trainee::DESCRIPTION;

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
    /// newest one was verified. A job with spec.checkpoint.best keeps its best one. No job may be
    /// running there.
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
        /// The best of those that were evaluated; see spec.checkpoint.best.
        #[arg(long, conflicts_with = "step")]
        best: bool,
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

fn perform(action: &Action, out: &mut impl Write) -> Result<Outcome, Problem> {
    match action {
        Action::List(place) => list(&place.open()?, place.json, out),
        Action::Verify { place, step } => verify(&place.open()?, *step, place.json, out),
        Action::Prune { place, keep_last } => prune(&place.open()?, *keep_last, place.json, out),
        Action::Export { place, step, best, output } => export(&place.open()?, *step, *best, output, place.json, out),
    }
}

impl Place {
    fn open(&self) -> Result<Folder, Problem> {
        choose::open(&self.folder)
    }
}

fn list(folder: &Folder, json: bool, out: &mut impl Write) -> Result<Outcome, Problem> {
    let listed = folder.list()?;
    if json {
        let best = choose::best(&listed).map(|(step, _)| step);
        let lines: Vec<_> = listed.iter().map(|listed| described(listed, best)).collect();
        writeln!(out, "{:#}", json!(lines))?;
        return Ok(Outcome::Done);
    }
    if listed.is_empty() {
        writeln!(out, "no checkpoints in {}", folder.path().display())?;
        return Ok(Outcome::Done);
    }
    writeln!(
        out,
        "{:>10} {:>7} {:>4} {:>8} {:>8} {:>10} {:>6}  {:<30} STATE",
        "STEP", "EPOCH", "GEN", "ACCURACY", "LOSS", "BYTES", "FILES", "SAVED"
    )?;
    let best = choose::best(&listed);
    for Listed { step, described, .. } in &listed {
        match described {
            Ok(Description { position, time, files, bytes, about, .. }) => {
                let [accuracy, loss] = about.evaluation.map_or(["-".to_owned(), "-".to_owned()], |found| {
                    [format!("{:.4}", found.accuracy), format!("{:.4}", found.loss)]
                });
                let state = match best {
                    Some((best, metric)) if best == *step => format!("manifest whole, best {}", metric.as_str()),
                    _ => "manifest whole".to_owned(),
                };
                writeln!(
                    out,
                    "{step:>10} {:>7} {:>4} {accuracy:>8} {loss:>8} {:>10} {files:>6}  {time:<30} {state}",
                    position.epoch,
                    position.generation,
                    size(*bytes)
                )?
            }
            Err(reason) => {
                writeln!(
                    out,
                    "{step:>10} {:>7} {:>4} {:>8} {:>8} {:>10} {:>6}  {:<30} unusable: {reason}",
                    "-", "-", "-", "-", "-", "-", "-"
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
    best: bool,
    output: &Path,
    json: bool,
    out: &mut impl Write,
) -> Result<Outcome, Problem> {
    let mut tensors = Tensors::default();
    let checkpoint = choose::load(folder, Choice::of(step, best), &mut tensors)?;
    let (position, weights) = (checkpoint.position, &tensors.weights);
    let borrowed: Vec<_> = weights.iter().map(OwnedTensor::borrowed).collect();
    let exported = export_model(output, &borrowed, &metadata(&checkpoint))?;
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

/// Returns what an exported file says beside its tensors.
pub(crate) fn metadata(checkpoint: &Checkpoint) -> BTreeMap<String, String> {
    let Checkpoint { position, identity, about, .. } = checkpoint;
    let facts = [
        ("format", "pt".to_owned()),
        ("step", position.step.to_string()),
        ("epoch", position.epoch.to_string()),
        ("model", identity.model.clone()),
    ];
    let description = about.description.iter().map(|description| (DESCRIPTION, description.clone()));
    facts.into_iter().chain(description).map(|(key, value)| (key.to_owned(), value)).collect()
}

fn described(listed: &Listed, best: Option<u64>) -> Value {
    let Listed { step, path, described, .. } = listed;
    match described {
        Err(reason) => json!({ "step": step, "path": path, "unusable": reason }),
        Ok(Description { identity, position, time, about, format_version, writer, tensors, files, bytes }) => json!({
            "step": step,
            "path": path,
            "epoch": position.epoch,
            "cursor": position.cursor,
            "seed": position.seed,
            "generation": position.generation,
            "time": time,
            "evaluation": about.evaluation,
            "best": best == Some(*step),
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
mod tests;
