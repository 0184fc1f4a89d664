//! The pauses before a lost process is started again.

use jiff::SignedDuration;

/// Most doublings of a pause. All longest pauses are shorter.
const MAX_DOUBLINGS: u32 = 16;

/// How long to wait. Pods and processes follow one rule on two scales, because a process starts in
/// milliseconds and a pod in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// A process that lived for less is replaced no sooner than this. So one that fails at every
    /// start is not replaced without pause.
    pub short_life: SignedDuration,
    /// The pauses after 1, 2, 3, 4 … failures are 0, 1, 3, 7 … times this.
    pub unit: SignedDuration,
    /// Longest pause after a failure.
    pub longest: SignedDuration,
    /// The first pause if something was not there. Each further failure doubles it.
    pub absence: SignedDuration,
    /// Longest pause if something was not there.
    pub longest_absence: SignedDuration,
}

impl Pauses {
    /// The pauses of pods. Those after an absence are the ones of Kubernetes' own Jobs.
    pub const OF_PODS: Self = Self {
        short_life: SignedDuration::from_secs(10),
        unit: SignedDuration::from_secs(1),
        longest: SignedDuration::from_secs(60),
        absence: SignedDuration::from_secs(10),
        longest_absence: SignedDuration::from_secs(360),
    };
    /// The pauses of processes of one machine.
    pub const OF_PROCESSES: Self = Self {
        short_life: SignedDuration::from_secs(1),
        unit: SignedDuration::from_millis(500),
        longest: SignedDuration::from_secs(10),
        absence: SignedDuration::from_secs(1),
        longest_absence: SignedDuration::from_secs(60),
    };

    /// The pause before the replacement of a process that lived for so long and is not counted.
    #[must_use]
    pub fn after_short_life(&self, lived: SignedDuration) -> SignedDuration {
        if lived < self.short_life { self.short_life } else { SignedDuration::ZERO }
    }

    /// The pause after so many failures.
    #[must_use]
    pub fn after(&self, failures: u32) -> SignedDuration {
        let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
        (self.unit * ((1 << doublings) - 1)).min(self.longest)
    }

    /// The pause after so many failures, if the newest one was that something is not there.
    #[must_use]
    pub fn after_absence(&self, failures: u32) -> SignedDuration {
        let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
        (self.absence * (1 << doublings)).min(self.longest_absence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_after_an_absence_doubles_up_to_a_limit() {
        let pauses = [0, 1, 2, 3, 4, 5, 6, 7, 1000].map(|failures| Pauses::OF_PODS.after_absence(failures).as_secs());
        assert_eq!(pauses, [10, 10, 20, 40, 80, 160, 320, 360, 360]);
    }

    #[test]
    fn each_pause_after_a_failure_grows_up_to_a_limit() {
        let pods = [0, 1, 2, 3, 4, 1000].map(|failures| Pauses::OF_PODS.after(failures).as_secs());
        assert_eq!(pods, [0, 0, 1, 3, 7, 60]);
        let processes = [1, 2, 3, 4, 1000].map(|failures| Pauses::OF_PROCESSES.after(failures).as_millis());
        assert_eq!(processes, [0, 500, 1500, 3500, 10_000]);
    }
}
