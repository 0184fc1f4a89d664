//! Commands that the trainer beside this program carries out: it reads and writes checkpoints, and
//! computes with models.

use std::{env, ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::Context;

use crate::{Outcome, run::find_trainer};

/// Arguments that the trainer understands.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// The trainer's arguments: try `--help` here.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

/// Becomes the trainer, which carries `command` out and whose exit code is the result. Returns only
/// on failure.
pub(crate) fn pass_on(command: &str, arguments: &Arguments) -> anyhow::Result<Outcome> {
    let trainer = find_trainer(None)?;
    // The trainer's help shows the name that the user typed.
    let typed = env::args_os().next().unwrap_or_default();
    let error = Command::new(&trainer).arg0(typed).arg(command).args(&arguments.words).exec();
    Err(error).with_context(|| format!("start {}", trainer.display()))
}
