//! The commands that need the test harness: this builds `lockstep-lab` and hands them over.

use std::process::{Command, ExitCode};

use anyhow::Context as _;
use xtask::{
    cargo::{everything, run},
    folders,
};

/// Calls `lockstep-lab VERB ARGUMENTS…`, and ends with its exit code.
pub(crate) fn lab(verb: &str, arguments: &[String]) -> anyhow::Result<ExitCode> {
    // The lab builds the products for itself; all of them are built at once, so that features unify in one way.
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

/// The exit code of a child as this process's own; 1 where a signal ended it.
pub(crate) fn exit_code(code: Option<i32>) -> ExitCode {
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}
