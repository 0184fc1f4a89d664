//! The cost of checkpoints: how long training pauses for one, and how fast one is saved and
//! loaded, compared with a plain file.

use std::{fs, process::Command};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use xtask::folders;

use crate::bench::{
    Effort, load,
    record::{Book, Figure},
};

const MEGABYTES: f64 = 100.0;
/// The wanted share of the rate at which a plain file is written or read.
const GOAL: f64 = 0.8;
const PLAIN: &str = "a plain file with fsync";

/// Measures checkpoints of 100 MB in the build folder.
pub(super) fn checkpoints(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let repetitions = match effort {
        Effort::Quick => 11,
        Effort::Full => 101,
    };
    let folder = folders::target().join("bench/checkpoints");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let mut rate = Command::new(folders::target().join("release/examples/rate"));
    rate.arg(&folder).args([MEGABYTES.to_string(), repetitions.to_string()]);
    let (mut found, disturbed) = load::rounds(1, || Ok(rate.output()?))?;
    let output = found.remove(0);
    fs::remove_dir_all(&folder)?;
    ensure!(output.status.success(), "{rate:?}: {}", String::from_utf8_lossy(&output.stderr));
    let line: Value = serde_json::from_slice(&output.stdout).context("a line of JSON")?;
    let number = |name: &str| line[name].as_f64().with_context(|| format!("{name} in {line}"));
    let mut write = |case: &str, ours: f64, peer: Option<f64>, goal: f64| {
        let peer = peer.map(|seconds| (PLAIN, seconds));
        book.write(&Figure { case, unit: "s", ours, peer, goal, disturbed })
    };
    write(
        "a checkpoint of 100 MB in an idle process: the caller waits, p50",
        number("stall_ms_p50")? / 1e3,
        None,
        0.05,
    )?;
    write("the same, p99", number("stall_ms_p99")? / 1e3, None, 0.2)?;
    let seconds = |rate: &str| anyhow::Ok(MEGABYTES / number(rate)?);
    let (save, write_plain) = (seconds("save_mb_per_s")?, seconds("plain_write_mb_per_s")?);
    write("saving a checkpoint of 100 MB, median", save, Some(write_plain), GOAL)?;
    let (load, read_plain) = (seconds("load_mb_per_s")?, seconds("plain_read_mb_per_s")?);
    write("loading it from storage, median", load, Some(read_plain), GOAL)
}
