//! The memory limit of a process and the kernel's out-of-memory kills, read from its cgroup and its
//! host.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

const CGROUPS: &str = "/sys/fs/cgroup";
/// Version 1 writes about 2^63 if there is no limit.
const NO_LIMIT: u64 = 1 << 60;

/// The words between the memory that a worker needs and its limit. A worker leaves both as its
/// ending before its first step, in case the kernel kills it.
pub const AND_MAY_HAVE: &str = ", and may have ";

/// The memory that a process may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes for everything under this limit together.
    pub bytes: u64,
    /// Bytes of swap that the host may use to make room.
    pub swap: u64,
    /// File or host that sets the limit.
    pub source: String,
}

impl MemoryLimit {
    /// Returns the smallest limit of this process: of its cgroup, of one around it, or of the host.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        Self::read(|path| fs::read_to_string(path).ok())
    }

    fn read(read: impl Fn(&Path) -> Option<String>) -> Option<Self> {
        let host = read(Path::new("/proc/meminfo"));
        let line = |name| host.as_deref().and_then(|text| kilobytes(text, name));
        let swap = line("SwapTotal:").unwrap_or(0);
        let of_host = line("MemTotal:").map(|bytes| Self { bytes, swap, source: "the memory of this host".to_owned() });
        let mut limits: Vec<Self> = of_host.into_iter().collect();
        for Cgroup { version, path } in folders(&read) {
            // Limits of all cgroups around it hold too.
            for folder in path.ancestors().take_while(|path| path.starts_with(CGROUPS)) {
                let file = folder.join(version.limit());
                let bytes = read(&file).and_then(|text| text.trim().parse().ok()).filter(|bytes| *bytes < NO_LIMIT);
                limits.extend(bytes.map(|bytes| Self { bytes, swap, source: file.display().to_string() }));
            }
        }
        limits.into_iter().min_by_key(|limit| limit.bytes)
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", in_words(self.bytes), self.source)
    }
}

/// Returns the number of processes of this cgroup that the kernel has killed because memory ran
/// out. If the cgroup does not count them, returns the number for this host.
#[must_use]
pub fn out_of_memory_kills() -> Option<u64> {
    kills(|path| fs::read_to_string(path).ok())
}

fn kills(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let of_cgroup = folders(&read)
        .into_iter()
        .find_map(|Cgroup { version, path }| number(&read(&path.join(version.events()))?, "oom_kill "));
    of_cgroup.or_else(|| number(&read(Path::new("/proc/vmstat"))?, "oom_kill "))
}

/// Writes bytes in a unit that people use.
#[must_use]
pub fn in_words(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{} MB", (bytes + 500_000) / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[derive(Clone, Copy)]
enum CgroupVersion {
    One,
    Two,
}

impl CgroupVersion {
    const fn limit(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }

    const fn events(self) -> &'static str {
        match self {
            Self::One => "memory.oom_control",
            Self::Two => "memory.events",
        }
    }
}

/// A cgroup that accounts for this process's memory.
struct Cgroup {
    version: CgroupVersion,
    path: PathBuf,
}

/// Returns the cgroups that account for this process's memory. A container often sees its own
/// cgroup as the root, although `/proc` names the whole path.
fn folders(read: &impl Fn(&Path) -> Option<String>) -> Vec<Cgroup> {
    let text = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (words.next(), words.next()) else { continue };
        let (version, root) = match controllers {
            "" => (CgroupVersion::Two, Path::new(CGROUPS).to_owned()),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (CgroupVersion::One, Path::new(CGROUPS).join("memory"))
            }
            _ => continue,
        };
        let below = root.join(path.trim_start_matches('/'));
        let path = if read(&below.join(version.events())).is_some() { below } else { root };
        folders.push(Cgroup { version, path });
    }
    folders
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    Some(number(text, name)? * 1024)
}

fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads from a table of paths and contents.
    fn files<'a>(files: &'a [(&str, &str)]) -> impl Fn(&Path) -> Option<String> + 'a {
        |path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned())
    }

    const HOST: (&str, &str) = ("/proc/meminfo", "MemTotal:  1000000 kB\nSwapTotal: 0 kB\n");

    #[test]
    fn the_smallest_limit_around_a_process_is_found() {
        let own = "/sys/fs/cgroup/memory/job/memory.limit_in_bytes";
        let around = "/sys/fs/cgroup/a.slice/memory.max";
        for (situation, given, bytes, source) in [
            (
                "version 1",
                vec![
                    ("/proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n0::/\n"),
                    ("/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill 0\n"),
                    (own, "700000000\n"),
                ],
                700_000_000,
                own,
            ),
            (
                "version 2, limited by the slice around it",
                vec![
                    ("/proc/self/cgroup", "0::/a.slice/b.scope\n"),
                    ("/sys/fs/cgroup/a.slice/b.scope/memory.events", "oom_kill 0\n"),
                    ("/sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n"),
                    (around, "600000000\n"),
                ],
                600_000_000,
                around,
            ),
            (
                "a container that sees its own cgroup as the root",
                vec![("/proc/self/cgroup", "0::/kubepods/pod1/c1\n"), ("/sys/fs/cgroup/memory.max", "500000000\n")],
                500_000_000,
                "/sys/fs/cgroup/memory.max",
            ),
            (
                "no limit",
                vec![
                    ("/proc/self/cgroup", "4:memory:/\n"),
                    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
                ],
                1_024_000_000,
                "the memory of this host",
            ),
        ] {
            let limit = MemoryLimit::read(files(&[given, vec![HOST]].concat())).expect(situation);
            assert_eq!((limit.bytes, limit.source.as_str()), (bytes, source), "{situation}");
        }
    }

    #[test]
    fn kills_are_counted_in_the_own_cgroup_or_else_on_the_host() {
        let own = [
            ("/proc/self/cgroup", "4:memory:/job\n"),
            ("/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            ("/proc/vmstat", "oom_kill 9\n"),
        ];
        assert_eq!(kills(files(&own)), Some(3));
        assert_eq!(kills(files(&own[2..])), Some(9));
        assert_eq!(kills(files(&[])), None);
    }

    #[test]
    fn bytes_are_written_in_units_that_people_use() {
        assert_eq!([999, 700_000_000, 1_956_000_000].map(in_words), ["1 kB", "700 MB", "2.0 GB"]);
    }
}
