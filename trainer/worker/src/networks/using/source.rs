//! A trained model, from the folder of a run, from a checkpoint, or from a safetensors file.

use std::path::{Path, PathBuf};

use lockstep_checkpoint::{Checkpoint, Evaluation, Folder, OwnedTensor, Tensors, read_model};
use lockstep_launch::ObjectUri;
use serde::Serialize;
use tracing::debug;

use super::problem::Problem;
use crate::{
    checkpoints::{
        choose::{self, Choice},
        metadata,
    },
    networks::description::ModelDescription,
    trainee::DESCRIPTION,
};

/// The folder of a run that holds its checkpoints.
const CHECKPOINTS: &str = "checkpoints";
/// The exported model of a run.
const MODEL: &str = "model.safetensors";
/// The file of a checkpoint that makes it whole.
const MANIFEST: &str = "manifest.json";

/// The place of a trained model.
#[derive(Debug, clap::Args)]
pub(super) struct Source {
    /// The folder of a run, or its place in an object store; the folder of one of its checkpoints;
    /// or a safetensors file that a run or `lockstep export` wrote.
    #[arg(value_name = "RUN|CHECKPOINT|MODEL")]
    source: PathBuf,
    /// The checkpoint of this step. Default: the newest whole one.
    #[arg(long, value_name = "STEP")]
    step: Option<u64>,
    /// The best checkpoint by spec.checkpoint.best.metric, or else by accuracy, of those that were
    /// evaluated.
    #[arg(long, conflicts_with = "step")]
    best: bool,
}

/// A trained model.
#[derive(Debug)]
pub(super) struct TrainedModel {
    /// The weights and statistics.
    pub tensors: Vec<OwnedTensor>,
    /// What the model says of itself, as metadata of a safetensors file.
    pub metadata: std::collections::BTreeMap<String, String>,
    pub origin: Origin,
}

/// The origin of a model, for its user.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Origin {
    /// The path or URI.
    pub path: PathBuf,
    /// The steps that the model was trained for, if they are known.
    pub step: Option<u64>,
    /// The evaluation of the model in its run, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Evaluation>,
    /// How it was chosen, for people.
    #[serde(skip)]
    how: &'static str,
}

impl Origin {
    /// Describes a file that holds one model.
    pub(super) fn of_file(path: &Path, step: Option<u64>) -> Self {
        Self { path: path.to_owned(), step, evaluation: None, how: "" }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, step, how, evaluation: _ } = self;
        match step {
            Some(step) => write!(f, "step {step}{how} ({})", path.display()),
            None => write!(f, "{}{how}", path.display()),
        }
    }
}

impl Source {
    /// Finds the model and reads it.
    pub(super) fn read(&self) -> Result<TrainedModel, Problem> {
        let Self { source, step, best } = self;
        let choice = Choice::of(*step, *best);
        if source.is_dir() || source.to_str().is_some_and(ObjectUri::begins) {
            return of_folder(source, choice);
        }
        if choice != Choice::Newest {
            return Err(Problem(format!(
                "{}: a file holds one model: leave --step and --best out, or name the folder of a run",
                source.display()
            )));
        }
        of_file(source)
    }
}

fn of_folder(path: &Path, choice: Choice) -> Result<TrainedModel, Problem> {
    if path.join(MANIFEST).is_file() {
        return of_checkpoint(path, choice);
    }
    // A run whose checkpoints were removed, or lie in an object store, may still have its model.
    let model = path.join(MODEL);
    if path.is_dir() && !path.join(CHECKPOINTS).is_dir() && choice == Choice::Newest && model.is_file() {
        return of_file(&model);
    }
    let folder = choose::open(path).map_err(Problem::new)?;
    let mut tensors = Tensors::default();
    let checkpoint = choose::load(&folder, choice, &mut tensors).map_err(Problem::new)?;
    Ok(model_of(checkpoint, tensors, how(choice)))
}

fn how(choice: Choice) -> &'static str {
    match choice {
        Choice::Newest => ", the newest checkpoint",
        Choice::Best => ", the best checkpoint",
        Choice::Step(_) => "",
    }
}

/// Reads the checkpoint that lies in this folder.
fn of_checkpoint(path: &Path, choice: Choice) -> Result<TrainedModel, Problem> {
    let failed = |problem: &str| Problem(format!("{}: {problem}", path.display()));
    if choice != Choice::Newest {
        return Err(failed("it is one checkpoint: leave --step and --best out, or name the folder of its run"));
    }
    let path = path.canonicalize().map_err(|error| failed(&error.to_string()))?;
    let root = path.parent().and_then(Path::parent).ok_or_else(|| failed("it lies in no folder of checkpoints"))?;
    let folder = Folder::open_existing(root).map_err(Problem::new)?;
    let listed = folder.list().map_err(Problem::new)?.into_iter().find(|listed| listed.path == path);
    let listed = listed.ok_or_else(|| failed("it is no checkpoint of the folder that it lies in"))?;
    let mut tensors = Tensors::default();
    let checkpoint = choose::load_listed(&folder, &listed, &mut tensors).map_err(Problem::new)?;
    Ok(model_of(checkpoint, tensors, ""))
}

fn model_of(checkpoint: Checkpoint, tensors: Tensors, how: &'static str) -> TrainedModel {
    let metadata = metadata(&checkpoint);
    let Checkpoint { path, position, about, .. } = checkpoint;
    let origin = Origin { path, step: Some(position.step), evaluation: about.evaluation, how };
    debug!(%origin, "model read");
    TrainedModel { tensors: tensors.weights, metadata, origin }
}

fn of_file(path: &Path) -> Result<TrainedModel, Problem> {
    let read = read_model(path).map_err(|error| Problem(format!("{}: {error}", path.display())))?;
    let number = |key: &str| read.metadata.get(key).and_then(|step| step.parse().ok());
    let step = number("step").or_else(|| number("steps"));
    Ok(TrainedModel { origin: Origin::of_file(path, step), tensors: read.tensors, metadata: read.metadata })
}

impl TrainedModel {
    /// Returns the description that the model carries.
    ///
    /// # Errors
    /// It carries none, or one of no model.
    pub(super) fn description(&self) -> Result<ModelDescription, Problem> {
        let path = self.origin.path.display();
        let Some(text) = self.metadata.get(DESCRIPTION) else {
            return Err(Problem(format!(
                "{path} does not say which model it is: use the folder of a run, or a file that `lockstep export` wrote. \
                 Weights from elsewhere begin a run with spec.model.weights; a model of a trainer's own can only be exported"
            )));
        };
        ModelDescription::read(text).map_err(|problem| Problem(format!("{path}: {problem}")))
    }
}
