//! `cargo xtask train`: the first run.

use std::process::{Command, ExitCode};

use anyhow::Context as _;
use xtask::{cargo, folders};

use crate::lab::exit_code;

const MANIFEST: &str = "deploy/examples/glyphs.yaml";

/// The packages that training on one machine needs: `lockstep` and `lockstep-trainer`.
const TRAINING: [&str; 2] = ["lockstep-cli", "lockstep-worker"];

/// Builds the packages of a local run and trains the built-in glyphs. Returns the run's exit code.
pub(crate) fn train(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let binaries = folders::target().join("release");
    if !binaries.join("lockstep-trainer").exists() {
        println!("compiling Lockstep, once: about 5 minutes on two cores");
    }
    let packages = TRAINING.iter().flat_map(|package| ["--package", package]);
    cargo::run(cargo::cargo(&["build", "--release", "--locked", "--bins"]).args(packages))?;
    let lockstep = binaries.join("lockstep");
    let status = Command::new(&lockstep)
        .args(["run", MANIFEST])
        .args(arguments)
        .current_dir(folders::root())
        .status()
        .with_context(|| format!("starting {}", lockstep.display()))?;
    Ok(exit_code(status.code()))
}
