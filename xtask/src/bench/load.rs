//! How much of the machine others used while something was measured.

use std::{
    fs,
    time::{Duration, Instant},
};

/// More than this share of the machine's time spent on other work makes a run disturbed.
const MAX_FOREIGN_SHARE: f64 = 0.08;
/// Kernel clock ticks per second, as /proc counts CPU time.
const TICKS_PER_SECOND: f64 = 100.0;

/// Rounds that may be thrown away before figures are given with the mark "disturbed".
const MAX_DISTURBED: usize = 10;

/// What so many rounds give during which others left the machine alone, and whether some were kept although they did not: the processes of
/// a round have ended when it does.
pub(crate) fn rounds<T>(count: usize, mut round: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<(Vec<T>, bool)> {
    let (mut kept, mut disturbed) = (Vec::with_capacity(count), 0);
    while kept.len() < count {
        let (watch, before) = (Watch::start(), children());
        let found = round()?;
        if watch.disturbed(children().saturating_sub(before)) && disturbed < MAX_DISTURBED {
            disturbed += 1;
        } else {
            kept.push(found);
        }
    }
    Ok((kept, disturbed == MAX_DISTURBED))
}

/// Watches from its creation to [`Watch::disturbed`].
pub(crate) struct Watch {
    start: Instant,
    busy: f64,
}

impl Watch {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), busy: busy_seconds() }
    }

    /// Whether processes other than those that used `own` CPU time took a share that spoils the figure.
    pub(crate) fn disturbed(&self, own: Duration) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let foreign = busy_seconds() - self.busy - own.as_secs_f64();
        foreign / (self.start.elapsed().as_secs_f64() * cores) > MAX_FOREIGN_SHARE
    }
}

/// CPU seconds that this process's ended children have used.
pub(crate) fn children() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 16 and 17, counted after the command name, which may hold spaces.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 = after_name.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Duration::from_secs_f64(ticks / TICKS_PER_SECOND)
}

fn busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.lines().next().unwrap_or("").split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal: all but idle and iowait.
    let busy: f64 =
        fields.iter().take(8).enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, ticks)| ticks).sum();
    busy / TICKS_PER_SECOND
}
