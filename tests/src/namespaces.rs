//! Network namespaces, of which clusters, benchmarks over a line and tests of faults are made. All of this needs root.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

/// Makes one, without any link to others.
///
/// # Errors
/// There is one of this name, or this user may not.
pub fn make(name: &str) -> anyhow::Result<()> {
    run(Command::new("ip").args(["netns", "add", name]))
}

/// Takes it away. The kernel takes it apart, and the lines that end in it with it, some time after its name is gone.
///
/// # Errors
/// There is none of this name, or this user may not.
pub fn remove(name: &str) -> anyhow::Result<()> {
    run(Command::new("ip").args(["netns", "del", name]))
}

/// Whether there is one.
#[must_use]
pub fn exists(name: &str) -> bool {
    fs::symlink_metadata(path(name)).is_ok()
}

/// The file that stands for it.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// A command inside one. (`ip netns exec` would mount /sys anew and hide the control groups.)
pub fn inside(name: &str, program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path(name).display())).arg(program.as_ref());
    command
}

/// Runs lines of `ip` in one.
///
/// # Errors
/// What `ip` said of the first line that it refused.
pub fn ip(name: &str, lines: &str) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(["-n", name, "-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting ip")?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(lines.as_bytes()).context("writing to ip")?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("ip in {name}: {}\n{lines}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Lets an interface of one send so many Mb/s and no more.
///
/// # Errors
/// There is no such interface, or this user may not.
pub fn shape(name: &str, interface: &str, megabits: f64) -> anyhow::Result<()> {
    let rate = format!("{megabits}mbit");
    let words = ["qdisc", "replace", "dev", interface, "root", "tbf", "rate", &rate];
    run(inside(name, "tc").args(words).args(["burst", "32kb", "latency", "20ms"]))
}

/// Runs a command to its end; a failure carries what it said.
///
/// # Errors
/// It cannot be started, or fails.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
