//! A clock for deadlines. It stands still while nobody looks at it, as when the process was stopped or the machine slept: what others were to
//! do until then may wait in a socket, and a silence that was not listened to is none.

use std::time::Duration;

/// Longest time between two looks that counts.
const NAP: Duration = Duration::from_secs(1);

/// Time as a process lived it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Awake {
    looked: Duration,
    asleep: Duration,
}

impl Awake {
    /// What it shows at `real`, which counts from when it was made and never goes back.
    pub fn look(&mut self, real: Duration) -> Duration {
        let since = real.saturating_sub(self.looked);
        self.looked = self.looked.max(real);
        if since > NAP {
            self.asleep += since;
        }
        self.looked - self.asleep
    }

    /// When it will show `shown`, if it is looked at until then.
    #[must_use]
    pub fn real(&self, shown: Duration) -> Duration {
        shown + self.asleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_somebody_looked_counts() {
        let mut clock = Awake::default();
        let mut shown = |real: &[u64]| -> Vec<u64> {
            real.iter().map(|real| clock.look(Duration::from_millis(*real)).as_millis() as u64).collect()
        };
        assert_eq!(shown(&[0, 900, 1800]), [0, 900, 1800]);
        assert_eq!(shown(&[3_601_800, 3_602_000]), [1800, 2000], "an hour later");
        assert_eq!(shown(&[3_601_000, 3_602_500]), [2000, 2500], "it never goes back");
        assert_eq!(clock.real(Duration::from_millis(2600)), Duration::from_millis(3_602_600));
    }
}
