//! How this project calls cargo: profile release, locked versions.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::folders::{root, target};

/// The target of static binaries.
const MUSL: &str = "x86_64-unknown-linux-musl";

/// `cargo WORDS…` in the repository.
#[must_use]
pub fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_package(command.args(words).current_dir(root()));
    command
}

/// Runs a command to its end.
///
/// # Errors
/// The command cannot start, or fails; the error names it.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// A cargo command over the whole workspace. A smaller choice of packages unifies features
/// differently and would compile some dependencies once more.
#[must_use]
pub fn everything(verb: &str) -> Command {
    cargo(&[verb, "--release", "--locked", "--workspace"])
}

/// Builds all binaries and examples, and returns their folder.
///
/// # Errors
/// The build fails.
pub fn build() -> anyhow::Result<PathBuf> {
    run(everything("build").args(["--bins", "--examples"]))?;
    Ok(target().join("release"))
}

/// Builds a package as a static binary and returns its folder. Installs the target's standard
/// library first.
///
/// # Errors
/// The installation or the build fails.
pub fn build_static(package: &str) -> anyhow::Result<PathBuf> {
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

/// Hides from `command` the variables that cargo set for this process's own package. Build scripts
/// such as ring's watch them, and would run again together with everything that depends on them.
pub fn without_package(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}
