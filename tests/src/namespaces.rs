//! Network namespaces for clusters, benchmarks over a line and tests of faults. All functions need
//! root.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};

/// How long an idle interface may send at full speed.
const BURST: Duration = Duration::from_millis(2);
const MIN_BURST_BYTES: f64 = 32e3;

/// Makes a namespace without any link to others.
///
/// # Errors
/// There is one of this name, or the user is not root.
pub fn make(name: &str) -> anyhow::Result<()> {
    run(Command::new("ip").args(["netns", "add", name]))
}

/// Removes a namespace. The kernel removes it, and the links that end in it, some time after its
/// name is gone.
///
/// # Errors
/// There is none of this name, or the user is not root.
pub fn remove(name: &str) -> anyhow::Result<()> {
    run(Command::new("ip").args(["netns", "del", name]))
}

/// Returns true if there is a namespace of this name.
#[must_use]
pub fn exists(name: &str) -> bool {
    fs::symlink_metadata(path(name)).is_ok()
}

/// Returns the file of a namespace.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// Returns a command inside a namespace. (`ip netns exec` would mount /sys again and hide the
/// control groups.)
pub fn inside(name: &str, program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path(name).display())).arg(program.as_ref());
    command
}

/// Runs lines of `ip` in a namespace.
///
/// # Errors
/// The message of `ip` about the first line that it refused.
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

/// Returns the bytes that an interface [shaped](shape) to so many Mb/s sends at full speed after it
/// was idle.
#[must_use]
pub fn burst_bytes(megabits: f64) -> f64 {
    // The processor cuts segments of up to 64 KiB that do not fit into packets. It then has no time
    // for other work.
    (megabits * 1e6 / 8.0 * BURST.as_secs_f64()).max(MIN_BURST_BYTES)
}

/// Limits an interface of a namespace to so many Mb/s, except for its [burst](burst_bytes).
///
/// # Errors
/// There is no such interface, or the user is not root.
pub fn shape(name: &str, interface: &str, megabits: f64) -> anyhow::Result<()> {
    let (rate, burst) = (format!("{megabits}mbit"), format!("{:.0}b", burst_bytes(megabits)));
    let words =
        ["qdisc", "replace", "dev", interface, "root", "tbf", "rate", &rate, "burst", &burst, "latency", "20ms"];
    run(inside(name, "tc").args(words))
}

/// Runs a command to its end. The error of a failed command holds its message.
///
/// # Errors
/// The command cannot be started, or fails.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
