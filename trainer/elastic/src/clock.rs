//! A clock for deadlines that skips the time in which the process did not run.
//!
//! The clock stands still while nobody reads it, for example while the process is stopped or the
//! machine sleeps. Messages of that time may still wait in a socket, so the silence proves nothing
//! about the sender.

use std::time::Duration;

/// A longer gap between two readings is not counted.
const LONGEST_GAP: Duration = Duration::from_secs(1);

/// A clock that counts only the time in which the process ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct AwakeClock {
    looked: Duration,
    asleep: Duration,
}

impl AwakeClock {
    /// Returns the counted time at `real`, which starts at the clock's creation and never goes
    /// back.
    pub fn look(&mut self, real: Duration) -> Duration {
        let since = real.saturating_sub(self.looked);
        self.looked = self.looked.max(real);
        if since > LONGEST_GAP {
            self.asleep += since;
        }
        self.looked - self.asleep
    }

    /// Returns the real time at which the clock will show `shown`, if it is read regularly until
    /// then.
    #[must_use]
    pub fn real(&self, shown: Duration) -> Duration {
        shown + self.asleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_between_two_readings_is_not_counted() {
        let mut clock = AwakeClock::default();
        let mut shown = |real: &[u64]| -> Vec<u64> {
            real.iter().map(|real| clock.look(Duration::from_millis(*real)).as_millis() as u64).collect()
        };
        assert_eq!(shown(&[0, 900, 1800]), [0, 900, 1800]);
        assert_eq!(shown(&[3_601_800, 3_602_000]), [1800, 2000], "an hour later");
        assert_eq!(shown(&[3_601_000, 3_602_500]), [2000, 2500], "it never goes back");
        assert_eq!(clock.real(Duration::from_millis(2600)), Duration::from_millis(3_602_600));
    }
}
