//! PyTorch, the peer of several benchmarks.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;

use xtask::cargo;

const TORCH: &str = "torch==2.15.0";

/// The peer's name beside its figures.
pub(crate) const NAME: &str = "PyTorch 2.15.0";

/// The version of torchvision that belongs to it.
const TORCHVISION: &str = "torchvision==0.29.2";

/// Returns a Python with PyTorch and torchvision, which are installed on first use into the user's
/// cache.
pub(crate) fn python_with_torchvision() -> anyhow::Result<PathBuf> {
    let python = python()?;
    if !imports(&python, "torchvision") {
        println!("installing {TORCHVISION} from PyPI (once)");
        cargo::run(Command::new(&python).args(["-m", "pip", "install", "--quiet", TORCHVISION]))?;
    }
    Ok(python)
}

fn imports(python: &Path, module: &str) -> bool {
    let works = Command::new(python).args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
    works.is_ok_and(|status| status.success())
}

/// Returns a Python with PyTorch, which is installed on first use into the user's cache.
pub(crate) fn python() -> anyhow::Result<PathBuf> {
    let folder = xtask::folders::cache()?.join(TORCH);
    let python = folder.join("bin/python");
    if !imports(&python, "torch") {
        println!("installing {TORCH} from PyPI (once, about 5 GB)");
        cargo::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            .context("making a virtual environment with python3")?;
        cargo::run(Command::new(&python).args(["-m", "pip", "install", "--quiet", TORCH, "numpy"]))?;
    }
    Ok(python)
}
