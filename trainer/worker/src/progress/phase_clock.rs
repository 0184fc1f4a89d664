//! The use of a worker's wall time. Each moment belongs to one phase, so the phases add up to the
//! time since the process began.
//!
//! Time is taken in periods: a step, an evaluation, the forming of a group. Within a period, the
//! parts whose use was measured are spent; the end of the period gives the rest to one phase.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use prometheus::{Counter, CounterVec};

/// A use of wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Forward, backward and update.
    Compute,
    /// Waits for samples.
    Data,
    /// Waits for ranks that computed longer.
    BarrierWait,
    /// Waits for sums that computation did not hide.
    ExposedCommunication,
    /// Saving state while training stands still.
    Checkpoint,
    /// From the end of one group to the first step of the next.
    Resize,
    /// Judging held-out samples.
    Evaluation,
    /// Everything else: start-up and reports.
    Other,
}

impl Phase {
    const ALL: [Self; 8] = [
        Self::Compute,
        Self::Data,
        Self::BarrierWait,
        Self::ExposedCommunication,
        Self::Checkpoint,
        Self::Resize,
        Self::Evaluation,
        Self::Other,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Data => "data",
            Self::BarrierWait => "barrier_wait",
            Self::ExposedCommunication => "exposed_comm",
            Self::Checkpoint => "checkpoint",
            Self::Resize => "resize",
            Self::Evaluation => "evaluation",
            Self::Other => "other",
        }
    }
}

/// Adds wall time to phases.
pub(crate) struct PhaseClock {
    counters: [Counter; Phase::ALL.len()],
    period: Mutex<Period>,
}

/// The period under way.
struct Period {
    begun: Instant,
    /// Time of it that was spent already.
    spent: Duration,
    /// The wait of the newest step, until it is known whether it was for slower ranks.
    waited: Duration,
}

impl PhaseClock {
    /// Begins the first period. All phases have a series from now on.
    pub(crate) fn start(counters: &CounterVec, now: Instant) -> Self {
        Self {
            counters: Phase::ALL.map(|phase| counters.with_label_values(&[phase.label()])),
            period: Mutex::new(Period { begun: now, spent: Duration::ZERO, waited: Duration::ZERO }),
        }
    }

    /// Gives a part of the period under way to a phase.
    pub(crate) fn spend(&self, phase: Phase, time: Duration) {
        self.period().spent += time;
        self.add(phase, time);
    }

    /// Spends the wait of a step for its sums. It counts as communication unless
    /// [`PhaseClock::was_for_ranks`] says more before the next wait.
    pub(crate) fn wait(&self, time: Duration) {
        let before = {
            let mut period = self.period();
            period.spent += time;
            std::mem::replace(&mut period.waited, time)
        };
        self.add(Phase::ExposedCommunication, before);
    }

    /// Says how much longer than this rank another one computed in the step that was last waited
    /// for. So much of the wait was for that rank.
    pub(crate) fn was_for_ranks(&self, longer: Duration) {
        let waited = std::mem::take(&mut self.period().waited);
        let for_ranks = waited.min(longer);
        self.add(Phase::BarrierWait, for_ranks);
        self.add(Phase::ExposedCommunication, waited - for_ranks);
    }

    /// Ends the period under way at `now`, and gives what is left of it to a phase. If more was
    /// spent than its length, the next period is shorter.
    pub(crate) fn end_period(&self, rest: Phase, now: Instant) {
        let left = {
            let mut period = self.period();
            let length = now.saturating_duration_since(period.begun);
            let left = length.saturating_sub(period.spent);
            period.begun = now;
            period.spent = period.spent.saturating_sub(length);
            left
        };
        self.add(rest, left);
    }

    /// Returns the seconds of each phase since the process began, in the order of [`Phase::ALL`].
    fn seconds(&self) -> [f64; Phase::ALL.len()] {
        Phase::ALL.map(|phase| self.counters[phase as usize].get())
    }

    fn add(&self, phase: Phase, time: Duration) {
        // The labels are in the order of the variants.
        self.counters[phase as usize].inc_by(time.as_secs_f64());
    }

    fn period(&self) -> MutexGuard<'_, Period> {
        self.period.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time between two lines of the metrics log that tell the times of the phases.
const NEWS_INTERVAL: Duration = Duration::from_secs(1);

/// What a worker tells of its phases, piece by piece.
pub(crate) struct PhaseNews<'a> {
    clock: &'a PhaseClock,
    /// Seconds of each phase that were told, or passed before this worker reported.
    told: [f64; Phase::ALL.len()],
    since: Instant,
}

impl<'a> PhaseNews<'a> {
    /// Tells what follows from now on.
    pub(crate) fn begin(clock: &'a PhaseClock, now: Instant) -> Self {
        Self { clock, told: clock.seconds(), since: now }
    }

    /// Returns the seconds of each phase since they were last told, by the names of phases. Empty
    /// if that was just before and this is not the `last` time.
    pub(crate) fn take(&mut self, last: bool, now: Instant) -> BTreeMap<&'static str, f64> {
        if !last && now.saturating_duration_since(self.since) < NEWS_INTERVAL {
            return BTreeMap::new();
        }
        self.since = now;
        let before = std::mem::replace(&mut self.told, self.clock.seconds());
        let news = Phase::ALL.map(|phase| {
            let seconds = self.told[phase as usize] - before[phase as usize];
            (phase.label(), (seconds * 1e4).round() / 1e4)
        });
        news.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use lockstep_metrics::table;
    use prometheus::Registry;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Runs the clock, and returns the seconds of each phase.
    fn phases(run: impl FnOnce(&PhaseClock, Instant)) -> [f64; Phase::ALL.len()] {
        let counters = table::PHASE_SECONDS.counters(&Registry::new()).expect("registered");
        let start = Instant::now();
        let clock = PhaseClock::start(&counters, start);
        run(&clock, start);
        Phase::ALL.map(|phase| counters.with_label_values(&[phase.label()]).get())
    }

    #[test]
    fn the_phases_add_up_to_the_wall_time() {
        let found = phases(|clock, start| {
            clock.end_period(Phase::Other, start + 2 * SECOND);
            clock.spend(Phase::Compute, 3 * SECOND);
            clock.spend(Phase::Data, SECOND);
            clock.wait(2 * SECOND);
            clock.end_period(Phase::Other, start + 9 * SECOND);
            clock.was_for_ranks(SECOND);
            clock.end_period(Phase::Resize, start + 12 * SECOND);
        });
        assert_eq!(found, [3.0, 1.0, 1.0, 1.0, 0.0, 3.0, 0.0, 3.0]);
        assert_eq!(found.iter().sum::<f64>(), 12.0);
    }

    #[test]
    fn more_than_the_length_of_a_period_shortens_the_next_one() {
        let found = phases(|clock, start| {
            clock.spend(Phase::Compute, 3 * SECOND);
            clock.end_period(Phase::Other, start + 2 * SECOND);
            clock.end_period(Phase::Other, start + 5 * SECOND);
        });
        assert_eq!((found[0], found[7]), (3.0, 2.0), "{found:?}");
    }

    #[test]
    fn a_wait_that_nobody_explains_is_communication() {
        let found = phases(|clock, start| {
            clock.wait(2 * SECOND);
            clock.wait(SECOND);
            clock.end_period(Phase::Other, start + 3 * SECOND);
        });
        assert_eq!(found[3], 2.0, "the newest wait is not explained yet: {found:?}");
    }

    #[test]
    fn news_tell_each_moment_once_and_not_before_a_second_has_passed() {
        let counters = table::PHASE_SECONDS.counters(&Registry::new()).expect("registered");
        let start = Instant::now();
        let clock = PhaseClock::start(&counters, start);
        clock.spend(Phase::Other, SECOND);
        let mut news = PhaseNews::begin(&clock, start);
        clock.spend(Phase::Compute, SECOND / 2);
        assert!(news.take(false, start + SECOND / 2).is_empty(), "too early");
        clock.spend(Phase::Data, SECOND / 4);
        assert_eq!(news.take(false, start + SECOND), BTreeMap::from([("compute", 0.5), ("data", 0.25)]));
        clock.spend(Phase::Data, SECOND / 4);
        assert_eq!(news.take(true, start + SECOND), BTreeMap::from([("data", 0.25)]), "nothing follows");
    }
}
