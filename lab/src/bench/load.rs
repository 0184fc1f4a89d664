//! How much of the machine other processes used during a measurement.

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// A run is disturbed if other work takes more than this share of the machine's time.
const MAX_FOREIGN_SHARE: f64 = 0.08;
/// Kernel clock ticks per second, as /proc counts CPU time.
const TICKS_PER_SECOND: f64 = 100.0;

/// Ticks of processes that nobody waits for.
static LEFT_BEHIND: AtomicU64 = AtomicU64::new(0);

/// Disturbed rounds that may be repeated for each wanted round, before one counts.
const MAX_DISTURBED: usize = 2;

/// Returns the results of so many rounds, and true if other work disturbed one of them. A disturbed
/// round is repeated, up to a limit. The processes of a round must have ended when it returns.
pub(crate) fn rounds<T>(count: usize, mut round: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<(Vec<T>, bool)> {
    let (mut kept, mut thrown_away, mut disturbed) = (Vec::with_capacity(count), 0, false);
    while kept.len() < count {
        let (watch, before) = (Watch::start(), children());
        let found = round()?;
        let was_disturbed = watch.disturbed(children().saturating_sub(before));
        if was_disturbed && thrown_away < MAX_DISTURBED * count {
            thrown_away += 1;
        } else {
            disturbed |= was_disturbed;
            kept.push(found);
        }
    }
    Ok((kept, disturbed))
}

/// Watches the machine from its creation to [`Watch::disturbed`].
pub(crate) struct Watch {
    start: Instant,
    busy: f64,
}

impl Watch {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), busy: busy_seconds() }
    }

    /// Returns true if processes beside those that used `own` CPU time spoil the figure.
    pub(crate) fn disturbed(&self, own: Duration) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let foreign = busy_seconds() - self.busy - own.as_secs_f64();
        foreign / (self.start.elapsed().as_secs_f64() * cores) > MAX_FOREIGN_SHARE
    }
}

/// Returns the CPU time of this process's ended children, and of processes that were [left
/// behind](leave_behind).
pub(crate) fn children() -> Duration {
    let ended = times("self").map_or(0, |times| times.of_children);
    seconds(ended + LEFT_BEHIND.load(Ordering::Relaxed))
}

/// Counts the CPU time of the processes below a child that is about to be killed. Nobody waits for
/// them afterwards.
pub(crate) fn leave_behind(child: u32) {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: BTreeMap<u32, Times> = pids.filter_map(|pid| Some((pid, times(&pid.to_string())?))).collect();
    let is_below = |times: &Times| {
        let mut parents = std::iter::successors(Some(times.parent), |pid| Some(all.get(pid)?.parent));
        parents.any(|pid| pid == child)
    };
    let ticks = all.values().filter(|times| is_below(times)).map(|times| times.own + times.of_children).sum();
    LEFT_BEHIND.fetch_add(ticks, Ordering::Relaxed);
}

/// The CPU time of a process and of its ended children, in ticks.
struct Times {
    parent: u32,
    own: u64,
    of_children: u64,
}

fn times(pid: &str) -> Option<Times> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 3 is the first after the command's name, which may hold spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Times { parent: field(4)? as u32, own: field(14)? + field(15)?, of_children: field(16)? + field(17)? })
}

fn seconds(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND)
}

fn busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.lines().next().unwrap_or("").split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // The fields are user nice system idle iowait irq softirq steal. Idle and iowait do not count.
    let busy: f64 =
        fields.iter().take(8).enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, ticks)| ticks).sum();
    busy / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread};

    use super::*;

    #[test]
    fn the_time_of_a_process_counts_when_its_parent_is_about_to_be_killed() {
        let mut parent = Command::new("sh").args(["-c", "(while :; do :; done) & wait"]).spawn().expect("a shell");
        let (used, begun) = (Duration::from_millis(50), Instant::now());
        // Each call counts; the last one alone shows that the child has worked.
        let counts = || {
            let before = children();
            leave_behind(parent.id());
            children() - before >= used
        };
        while !counts() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the child of the shell is not counted");
            thread::sleep(Duration::from_millis(10));
        }
        Command::new("pkill").args(["-P", &parent.id().to_string()]).status().expect("pkill");
        parent.wait().expect("ended");
    }
}
