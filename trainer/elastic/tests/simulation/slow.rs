//! Machines that do the usual work and take many times as long for a while.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slow {
    times: u32,
    until: Duration,
}

impl Slow {
    pub(crate) fn down(times: u32, until: Duration) -> Self {
        Self { times, until }
    }

    pub(crate) fn holds(self, now: Duration) -> bool {
        self.until > now
    }

    /// Returns the time that something takes on this machine. After its slow time it works at the
    /// usual speed.
    pub(crate) fn pace(self, now: Duration, takes: Duration) -> Duration {
        if !self.holds(now) {
            return takes;
        }
        let lasts = self.until - now;
        let done = lasts / self.times;
        if takes <= done { takes * self.times } else { lasts + takes - done }
    }
}
