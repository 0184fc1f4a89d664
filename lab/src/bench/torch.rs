//! PyTorch, the peer of several benchmarks.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::Context as _;

use xtask::cargo;

const TORCH: &str = "torch==2.15.0";

/// The peer's name beside its figures.
pub(crate) const NAME: &str = "PyTorch 2.15.0";

/// Returns a Python with PyTorch, which is installed on first use into the user's cache.
pub(crate) fn python() -> anyhow::Result<PathBuf> {
    let folder = xtask::folders::cache()?.join(TORCH);
    let python = folder.join("bin/python");
    let works = Command::new(&python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        println!("installing {TORCH} from PyPI (once, about 5 GB)");
        cargo::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            .context("making a virtual environment with python3")?;
        cargo::run(Command::new(&python).args(["-m", "pip", "install", "--quiet", TORCH, "numpy"]))?;
    }
    Ok(python)
}
