//! How long a rank has found nothing to do. Time in which its process was stopped is not its peers' silence.

use std::time::{Duration, Instant};

/// Longest time between two looks that counts.
const NAP: Duration = Duration::from_secs(1);
/// How long a rank sleeps at most before it looks again.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    looked: Instant,
    counted: Duration,
}

impl Idle {
    pub(crate) fn since(now: Instant) -> Self {
        Self { looked: now, counted: Duration::ZERO }
    }

    /// For how long nothing was found, where nothing is again.
    pub(crate) fn look(&mut self, now: Instant) -> Duration {
        self.counted += now.duration_since(self.looked).min(NAP);
        self.looked = now;
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_in_which_nobody_looked_is_no_silence() {
        let begun = Instant::now();
        let mut idle = Idle::since(begun);
        let found = [300, 800, 3_600_800, 3_601_300].map(|real| idle.look(begun + Duration::from_millis(real)));
        assert_eq!(found.map(|idle| idle.as_millis()), [300, 800, 1800, 2300]);
    }
}
