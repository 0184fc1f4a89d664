//! Records of measured cases, a line for each.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

use anyhow::Context as _;
use serde_json::json;

use xtask::folders;

/// A figure beside its peer's. Less is better.
pub(crate) struct Figure<'a> {
    pub case: &'a str,
    pub unit: &'a str,
    pub ours: f64,
    /// Name and figure of the peer in the same run, if there is one.
    pub peer: Option<(&'a str, f64)>,
    /// With a peer: the least ratio, 1 if as good as the peer is enough. Without a peer: the
    /// greatest figure.
    pub goal: f64,
    /// True if other work on the machine disturbed the measurement, or its cores were apart.
    pub disturbed: bool,
}

/// Prints figures and writes them to target/bench/NAME.jsonl.
pub(crate) struct Book {
    bench: String,
    file: File,
    commit: String,
    machine: String,
}

impl Book {
    pub(crate) fn open(bench: &str) -> anyhow::Result<Self> {
        let folder = folders::target().join("bench");
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{bench}.jsonl"));
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { bench: bench.to_owned(), file, commit: commit(), machine: machine() })
    }

    /// Returns the machine and the commit.
    pub(crate) fn origin(&self) -> String {
        format!("{} at {}", self.machine, self.commit)
    }

    /// Records one case.
    pub(crate) fn write(&mut self, figure: &Figure) -> anyhow::Result<()> {
        self.write_beside(figure, None)
    }

    /// Records one case beside the time that its bytes take alone in the same run.
    pub(crate) fn write_beside(&mut self, figure: &Figure, alone: Option<f64>) -> anyhow::Result<()> {
        let Figure { case, unit, ours, peer, goal, disturbed } = *figure;
        // A figure of zero has no ratio.
        let ratio = peer.filter(|_| ours > 0.0).map(|(_, theirs)| theirs / ours);
        let met = ratio.map_or(ours <= goal, |ratio| ratio >= goal);
        let line = json!({
            "bench": self.bench, "case": case, "unit": unit, "ours": ours, "peer": peer.map(|(_, theirs)| theirs),
            "peer_name": peer.map(|(name, _)| name), "ratio": ratio, "alone": alone, "goal": goal, "met": met, "disturbed": disturbed,
            "commit": self.commit, "machine": self.machine,
        });
        writeln!(self.file, "{line}")?;
        let against = match (peer, ratio) {
            (Some((name, theirs)), Some(ratio)) => {
                let bare =
                    alone.map(|alone| format!("; the bytes alone {}: {:.2}", readable(alone, unit), theirs / alone));
                let bare = bare.unwrap_or_default();
                format!("{name} {}, ratio {ratio:.2} (goal ≥ {goal:.2}{bare})", readable(theirs, unit))
            }
            (Some((name, theirs)), None) => format!("{name} {}, no ratio", readable(theirs, unit)),
            (None, _) => format!("goal ≤ {goal} {unit}"),
        };
        let ours = readable(ours, unit);
        let verdict = if met { "met" } else { "MISSED" };
        let disturbed = if disturbed { ", disturbed" } else { "" };
        println!("{case}: {ours}; {against}: {verdict}{disturbed}\n  {}", self.origin());
        Ok(())
    }
}

/// Returns a figure with its unit. Short times are in microseconds.
fn readable(figure: f64, unit: &str) -> String {
    if unit == "s" && figure < 0.1 { format!("{:.1} µs", figure * 1e6) } else { format!("{figure:.3} {unit}") }
}

fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).current_dir(folders::root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let clean = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| changes.is_empty());
    if clean { head } else { format!("{head}+changes") }
}

fn machine() -> String {
    let cpuinfo = fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let vectors = match field("flags") {
        Some(flags) if flags.contains("avx512f") => "AVX-512",
        Some(flags) if flags.contains("avx2") => "AVX2",
        _ => "no AVX2",
    };
    format!("{} × {cores}, {vectors}", field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}
