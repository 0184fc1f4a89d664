//! Calling cargo the one way this project builds: profile release, locked versions.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

/// The target of static binaries.
pub(crate) const MUSL: &str = "x86_64-unknown-linux-musl";

pub(crate) use lockstep_tests::{root, target};

/// `cargo WORDS…` in the repository.
pub(crate) fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    lockstep_tests::without_package(command.args(words).current_dir(root()));
    command
}

/// Runs a command to its end; a failure names it.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// A cargo command over the whole workspace. Always the whole: another choice of packages, or no examples, which use what tests do, unifies
/// features differently, and would compile the dependencies once more.
pub(crate) fn everything(verb: &str) -> Command {
    cargo(&[verb, "--release", "--locked", "--workspace"])
}

/// Builds all binaries and examples, and returns the folder with them.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    run(everything("build").args(["--bins", "--examples"]))?;
    Ok(target().join("release"))
}

/// Builds a package as a static binary and returns the folder with it; installs the target's standard library first.
pub(crate) fn build_static(package: &str) -> anyhow::Result<PathBuf> {
    if !has_target(MUSL)? {
        run(Command::new("rustup").args(["target", "add", MUSL]).current_dir(root()))?;
    }
    run(cargo(&["build", "--release", "--locked", "--target", MUSL]).args(["--package", package]))?;
    Ok(target().join(MUSL).join("release"))
}

fn has_target(target: &str) -> anyhow::Result<bool> {
    let output =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).current_dir(root()).output()?;
    let folder = String::from_utf8_lossy(&output.stdout);
    Ok(output.status.success() && Path::new(folder.trim()).is_dir())
}
