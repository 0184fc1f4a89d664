//! The time in which a rank found nothing to do. Time in which its process was stopped does not
//! count as silence of its peers.

use std::time::{Duration, Instant};

/// The longest time between two looks that counts.
const NAP: Duration = Duration::from_secs(1);
/// The longest time that a rank sleeps before it looks again.
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

    /// Notes that nothing was found at `now`, and returns for how long that has been so.
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
    fn an_hour_without_a_look_is_no_silence() {
        let begun = Instant::now();
        let mut idle = Idle::since(begun);
        let found = [300, 800, 3_600_800, 3_601_300].map(|real| idle.look(begun + Duration::from_millis(real)));
        assert_eq!(found.map(|idle| idle.as_millis()), [300, 800, 1800, 2300]);
    }
}
