//! `cargo xtask train`: the first run.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::cargo;

const MANIFEST: &str = "deploy/examples/glyphs.yaml";

/// Builds what a local run needs and trains the built-in glyphs; ends with the run's own exit code.
pub(crate) fn train(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let binaries = cargo::build()?;
    let lockstep = binaries.join("lockstep");
    let status = Command::new(&lockstep)
        .args(["run", MANIFEST])
        .args(arguments)
        .current_dir(cargo::root())
        .status()
        .with_context(|| format!("starting {}", lockstep.display()))?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
