//! `lockstep summary`: has the trainer beside this program print the layers of a model and what
//! they cost.

use std::{env, os::unix::process::CommandExt, path::Path, process::Command};

use anyhow::{Context, bail};
use lockstep_api::ValidJob;
use lockstep_launch::Task;

use crate::{Outcome, manifest, run::find_trainer};

/// Arguments of `lockstep summary`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The name of a model, or the path of a training job's manifest.
    #[arg(value_name = "MODEL|MANIFEST")]
    model: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Becomes the trainer, whose exit code is the result. Returns only on failure.
pub(crate) fn summary(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let trainer = find_trainer(None)?;
    let typed = env::args_os().next().unwrap_or_default();
    let mut command = Command::new(&trainer);
    command.arg0(typed).arg("summary");
    let path = Path::new(&arguments.model);
    if path.exists() {
        let job = ValidJob::from_manifest(&manifest::read(path)?).map_err(|fields| manifest::refused(path, &fields))?;
        let Task::Train(workload) = job.task else { bail!("{}: a benchmark has no model", path.display()) };
        command.arg("--workload").arg(serde_json::to_string(&workload)?);
    } else {
        command.arg(&arguments.model);
    }
    if arguments.json {
        command.arg("--json");
    }
    Err(command.exec()).with_context(|| format!("start {}", trainer.display()))
}
