//! `lockstep checkpoints`: passes its arguments to the trainer beside this program, which reads and
//! writes checkpoints.

use std::{env, ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::Context;

use crate::{Outcome, run::find_trainer};

/// Arguments of `lockstep checkpoints`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// list, verify, prune or export, with the trainer's arguments: try `lockstep checkpoints
    /// --help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

/// Becomes the trainer, whose exit code is the result. Returns only on failure.
pub(crate) fn checkpoints(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let trainer = find_trainer(None)?;
    // The trainer's help shows the name that the user typed.
    let typed = env::args_os().next().unwrap_or_default();
    let error = Command::new(&trainer).arg0(typed).arg("checkpoints").args(&arguments.words).exec();
    Err(error).with_context(|| format!("start {}", trainer.display()))
}
