//! The environment of a run: the version of this program, and the machine.

use std::{fs, path::Path, thread};

use jiff::Timestamp;
use lockstep_launch::lines;
use serde::{Deserialize, Serialize};

/// Name of the file in a run's folder with a line of JSON for each [`Start`].
pub(crate) const FILE: &str = "environment.jsonl";

/// A start of a run, or of its continuation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Start {
    /// RFC 3339.
    pub time: String,
    /// The version of lockstep.
    pub version: String,
    /// Number of workers that were asked for.
    pub workers: u32,
    pub machine: Machine,
}

/// A machine. What it does not tell is missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Machine {
    /// Operating system and architecture.
    pub system: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Cores that this process may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl Start {
    /// Describes a start with `workers` workers on this machine.
    pub(crate) fn here(workers: u32, now: Timestamp) -> Self {
        Self { time: now.to_string(), version: env!("CARGO_PKG_VERSION").to_owned(), workers, machine: Machine::here() }
    }

    /// Adds the start to the file in the folder of a run.
    pub(crate) fn keep(&self, run: &Path) -> std::io::Result<()> {
        lines::append(&run.join(FILE), self)
    }
}

impl Machine {
    /// Returns a machine that is not known.
    pub(crate) fn unknown() -> Self {
        Self { system: "in a cluster".to_owned(), ..Self::default() }
    }

    fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            system: format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH),
            kernel: Some(read("/proc/sys/kernel/osrelease").trim().to_owned()).filter(|kernel| !kernel.is_empty()),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cores: thread::available_parallelism().ok().map(usize::from),
            memory_bytes: field(&read("/proc/meminfo"), "MemTotal").as_deref().and_then(kibibytes),
        }
    }
}

/// Returns the value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// Reads a size such as `2048 kB`, in bytes.
fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read_by_their_names() {
        let text = "processor\t: 0\nmodel name\t: Fast 9: Xtra\nprocessor\t: 1\nmodel name\t: Slow\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Fast 9: Xtra"));
        assert_eq!(field("MemTotal:       2048 kB\n", "MemTotal").as_deref().and_then(kibibytes), Some(2 << 20));
        assert_eq!(field("", "model name"), None);
    }
}
