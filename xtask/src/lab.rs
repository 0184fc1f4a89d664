//! The commands that need the test harness. This program builds `lockstep-lab` and passes them on.

use std::process::{Command, ExitCode};

use anyhow::Context as _;
use xtask::{
    cargo::{everything, run},
    folders,
};

/// Calls `lockstep-lab VERB ARGUMENTS…` and returns its exit code.
pub(crate) fn lab(verb: &str, arguments: &[String]) -> anyhow::Result<ExitCode> {
    // The lab builds the products itself. Building all of them at once unifies features in one way.
    run(everything("build").args(["--bins", "--examples"]))?;
    let lab = folders::target().join("release/lockstep-lab");
    let status = Command::new(&lab)
        .arg(verb)
        .args(arguments)
        .current_dir(folders::root())
        .status()
        .with_context(|| format!("starting {}", lab.display()))?;
    Ok(exit_code(status.code()))
}

/// Returns a child's exit code as this process's own; 1 if a signal ended the child.
pub(crate) fn exit_code(code: Option<i32>) -> ExitCode {
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}
