//! The choice of one checkpoint of a job's folder.

use std::{
    io::{self, Write},
    path::Path,
};

use lockstep_checkpoint::{Checkpoint, CheckpointError, Folder, Listed, Metric, Tensors};
use lockstep_launch::ObjectUri;
use lockstep_objects::Home;

use crate::storage::open_objects;

/// Writes a line to standard error. If that fails, the exit code has to suffice.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Why a checkpoint is not found or an action not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
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
    #[error(
        "{path} has no checkpoint that was evaluated, of which one could be the best: the state after each epoch is saved with its evaluation if spec.checkpoint.best is given"
    )]
    NoneEvaluated { path: String },
    #[error("writing the answer: {0}")]
    Output(#[from] io::Error),
}

/// Which checkpoint of a folder is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The newest whole one.
    Newest,
    /// The one of this step.
    Step(u64),
    /// The best of those that were evaluated, by the job's metric, or else by accuracy.
    Best,
}

impl Choice {
    /// Returns the choice of a command line.
    pub(crate) fn of(step: Option<u64>, best: bool) -> Self {
        match step {
            _ if best => Self::Best,
            Some(step) => Self::Step(step),
            None => Self::Newest,
        }
    }
}

/// Opens a job's folder, or its place in an object store, for reading.
pub(crate) fn open(place: &Path) -> Result<Folder, Problem> {
    let Some(uri) = place.to_str().filter(|text| ObjectUri::begins(text)) else {
        return Ok(Folder::open_existing(place)?);
    };
    let place = uri.parse().map_err(|accepted| Problem::NoPlace { uri: uri.to_owned(), accepted })?;
    Ok(Folder::open_existing_bucket(open_objects(&place, Home::Command)?)?)
}

/// Loads the chosen checkpoint of any job.
pub(crate) fn load(folder: &Folder, choice: Choice, tensors: &mut Tensors) -> Result<Checkpoint, Problem> {
    let path = || folder.path().display().to_string();
    let listed = match choice {
        Choice::Newest => return newest_whole(folder, |listed| folder.load(listed, tensors)),
        Choice::Step(step) => {
            let listed = folder.list()?.into_iter().find(|listed| listed.step == step);
            listed.ok_or_else(|| Problem::NoSuchStep { path: path(), step })?
        }
        Choice::Best => {
            let listed = folder.list()?;
            let best = best(&listed).map(|(step, _)| step).ok_or_else(|| Problem::NoneEvaluated { path: path() })?;
            let best = listed.into_iter().find(|listed| listed.step == best && listed.described.is_ok());
            best.ok_or_else(|| Problem::NoneEvaluated { path: path() })?
        }
    };
    load_listed(folder, &listed, tensors)
}

/// Loads a listed checkpoint of any job.
pub(crate) fn load_listed(folder: &Folder, listed: &Listed, tensors: &mut Tensors) -> Result<Checkpoint, Problem> {
    let damaged = |reason| Problem::Damaged { path: listed.path.display().to_string(), reason };
    folder.load(listed, tensors)?.map_err(damaged)
}

/// Returns the step of the best of the listed checkpoints, newest first, and the metric that says
/// so: that of the newest, or else accuracy.
pub(crate) fn best(listed: &[Listed]) -> Option<(u64, Metric)> {
    let mut described = listed.iter().filter_map(|listed| listed.described.as_ref().ok());
    let metric = described.clone().next()?.about.best_by.unwrap_or(Metric::Accuracy);
    let step = metric.best(described.by_ref().map(|found| (found.position.step, found.about.evaluation)))?;
    Some((step, metric))
}

/// Returns the newest checkpoint that `read` finds whole, of any job. Names newer damaged ones on
/// standard error.
pub(super) fn newest_whole(
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
pub(super) fn is_gone(folder: &Folder, listed: &Listed) -> Result<bool, CheckpointError> {
    Ok(folder.list()?.iter().all(|now| now.path != listed.path))
}
