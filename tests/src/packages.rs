//! Programs of the machine, and Debian packages that add missing ones.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use crate::say;

/// Folders of programs that an ordinary PATH may lack. The last two hold network plugins.
const MORE_FOLDERS: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/cni", "/opt/cni/bin"];

/// Returns the path of a program, if it is installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(MORE_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Installs packages of the distribution.
///
/// # Errors
/// They could not be installed.
pub fn install(missing: &[&str]) -> anyhow::Result<()> {
    let advice = format!("install the packages {}", missing.join(" "));
    if program("apt-get").is_none() || !rustix::process::geteuid().is_root() {
        bail!("{advice}");
    }
    say(&format!("installing {}", missing.join(" ")));
    let apt = |words: &[&str]| -> anyhow::Result<bool> {
        let mut command = Command::new("apt-get");
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command.status().context("starting apt-get")?.success())
    };
    let install: Vec<&str> =
        ["install", "--yes", "-qq", "--no-install-recommends"].into_iter().chain(missing.iter().copied()).collect();
    // Fresh package lists need no update. Missing or stale lists make the first attempt fail.
    let installed = apt(&install)? || (apt(&["update", "-qq"])? && apt(&install)?);
    if !installed {
        bail!("apt-get failed: {advice}");
    }
    Ok(())
}
