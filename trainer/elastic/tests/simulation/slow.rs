//! Machines that do for a while what they always do, and take many times as long.

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

    /// How long something takes here: what is not done until then goes on as ever.
    pub(crate) fn pace(self, now: Duration, takes: Duration) -> Duration {
        if !self.holds(now) {
            return takes;
        }
        let lasts = self.until - now;
        let done = lasts / self.times;
        if takes <= done { takes * self.times } else { lasts + takes - done }
    }
}
