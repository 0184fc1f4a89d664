//! `lockstep eval`: has the trainer beside this program evaluate a trained model on the data set of
//! its run, or on another one.

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use lockstep_api::{ValidJob, manifest::set as set_field};
use lockstep_launch::{Task, Workload};
use serde_json::Value;

use crate::{
    Outcome, manifest,
    run::{find_trainer, folder::MANIFEST, paths::data_uri},
};

/// The folders of a run above that of a checkpoint.
const ABOVE_CHECKPOINT: usize = 2;

/// Arguments of `lockstep eval`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder of a run; the folder of one of its checkpoints; or a safetensors file that a run
    /// or `lockstep export` wrote.
    #[arg(value_name = "RUN|CHECKPOINT|MODEL")]
    source: PathBuf,
    /// Other labelled samples: a folder in the format of the run's data set, or a manifest with
    /// another data set. Default: those of the run.
    #[arg(long, value_name = "FOLDER|MANIFEST")]
    data: Option<PathBuf>,
    /// Another value for a field of the manifest, such as spec.dataset.evaluationFraction=0.5. May
    /// be given several times.
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The samples of the data set: evaluation (the held-out ones), train (without augmentation) or
    /// all.
    #[arg(long, value_name = "PART", default_value = "evaluation", value_parser = ["evaluation", "train", "all"])]
    split: String,
    /// The checkpoint of this step. Default: the newest whole one.
    #[arg(long, value_name = "STEP")]
    step: Option<u64>,
    /// The best checkpoint by spec.checkpoint.best.metric, or else by accuracy.
    #[arg(long, conflicts_with = "step")]
    best: bool,
    /// The format of the answer: text or json.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

/// Becomes the trainer, whose exit code is the result. Returns only on failure.
pub(crate) fn eval(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { source, data, set, split, step, best, output } = arguments;
    let workload = workload(source, data.as_deref(), set)?;
    let trainer = find_trainer(None)?;
    let mut command = Command::new(&trainer);
    command.arg0(env::args_os().next().unwrap_or_default()).arg("eval").arg(source);
    command.arg("--workload").arg(serde_json::to_string(&workload)?);
    command.args(["--split", split, "--output", output]);
    if let Some(step) = step {
        command.arg("--step").arg(step.to_string());
    }
    if *best {
        command.arg("--best");
    }
    Err(command.exec()).with_context(|| format!("start {}", trainer.display()))
}

/// Returns the workload of the model's run, with the data set to evaluate on.
fn workload(source: &Path, data: Option<&Path>, set: &[String]) -> anyhow::Result<Workload> {
    // A file is a manifest; a folder holds samples.
    let other = data.filter(|path| path.is_file());
    let path = match (manifest_of(source), other) {
        (_, Some(other)) => other.to_owned(),
        (Some(own), None) => own,
        (None, None) => bail!(
            "{}: no {MANIFEST} of a run lies there, which would say on which samples to evaluate; name a manifest with \
             --data MANIFEST",
            source.display()
        ),
    };
    let mut value: Value =
        lockstep_api::manifest::parse(&manifest::read(&path)?).with_context(|| path.display().to_string())?;
    for assignment in set {
        set_field(&mut value, assignment).with_context(|| format!("--set {assignment}"))?;
    }
    let job = ValidJob::from_value(value).map_err(|fields| manifest::refused(&path, &fields))?;
    let Task::Train(workload) = job.task else { bail!("{}: a benchmark has no model", path.display()) };
    let mut workload = *workload;
    if let Some(folder) = data.filter(|_| other.is_none()) {
        workload.dataset.uri = Some(data_uri(&workload.dataset, folder)?);
    }
    Ok(workload)
}

/// Returns the manifest of the run to which a model belongs, if it lies with it.
fn manifest_of(source: &Path) -> Option<PathBuf> {
    let source = source.canonicalize().ok()?;
    let folders = if source.is_dir() { source.ancestors() } else { source.parent()?.ancestors() };
    folders.take(1 + ABOVE_CHECKPOINT).map(|folder| folder.join(MANIFEST)).find(|manifest| manifest.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const JOB: &str = "apiVersion: lockstep.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\nspec:\n  replicas: 1\n  \
                       model: {name: lenet5}\n  dataset: {format: idx, uri: \"file:///data\"}\n  checkpoint: {uri: \
                       \"file:///checkpoints\"}\n";

    #[test]
    fn a_run_a_checkpoint_and_a_model_lead_to_the_manifest_of_their_run() {
        let run = tempfile::tempdir().expect("a folder");
        let checkpoint = run.path().join("checkpoints/step-00000010");
        fs::create_dir_all(&checkpoint).expect("a folder");
        fs::write(run.path().join(MANIFEST), JOB).expect("written");
        fs::write(run.path().join("model.safetensors"), "").expect("written");
        for source in [run.path(), &checkpoint, &run.path().join("model.safetensors")] {
            let found = workload(source, None, &[]).expect("a workload");
            assert_eq!(found.dataset.uri.as_deref(), Some("file:///data"), "{}", source.display());
        }
    }

    #[test]
    fn another_folder_or_another_manifest_takes_the_place_of_the_runs_samples() {
        let run = tempfile::tempdir().expect("a folder");
        fs::write(run.path().join(MANIFEST), JOB).expect("written");
        let samples = run.path().join("samples");
        fs::create_dir(&samples).expect("a folder");
        let found = workload(run.path(), Some(&samples), &[]).expect("a workload");
        assert!(found.dataset.uri.is_some_and(|uri| uri.ends_with("/samples")));
        let other = run.path().join("other.yaml");
        fs::write(&other, JOB.replace("format: idx", "format: cifar10")).expect("written");
        let set = ["spec.dataset.evaluationFraction=0.5".to_owned()];
        let found = workload(run.path(), Some(&other), &set).expect("a workload");
        assert_eq!((found.dataset.format.as_str(), found.dataset.evaluation_fraction), ("cifar10", 0.5));
    }

    #[test]
    fn a_model_without_its_run_needs_a_manifest() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = workload(&folder.path().join("m.safetensors"), None, &[]).expect_err("no manifest").to_string();
        assert!(error.contains("--data MANIFEST"), "{error}");
    }
}
