//! Detects a training thread that hangs. Heartbeats do not show this, because they come from
//! another thread.
//!
//! A worker judges itself, because only it knows if it computes or waits for others. A peer cannot
//! judge it: the accused may be waiting, too. A worker that finds itself stuck leaves its group and
//! joins again once it moves. A wrong verdict therefore costs one change of the group and nothing
//! else.

use std::{
    fmt,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::Duration,
};

/// A thread that computes without a move for this long may be stuck.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// A thread may compute for this many mean steps before it counts as stuck.
const STUCK_STEPS: u32 = 8;
/// The limit for storage, and for computing before the first step is measured. Network file systems
/// recover within this time.
const SLOW_AFTER: Duration = Duration::from_secs(60);
/// A thread that stays still for this many times the limit never recovers.
const HUNG_TIMES: u32 = 10;
/// A longer gap between two looks is not counted, because the process did not run in it.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// The weight of the newest step in the mean step time is one in this many.
const MEAN_STEPS: u64 = 8;

/// The kind of work that a training thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// It waits for others, or does something that may take any time.
    #[default]
    Waiting,
    /// It computes.
    Computing,
    /// It waits for storage.
    Storing,
}

/// Records the activity of a training thread. It is cheap enough for every micro-batch.
#[derive(Debug, Default)]
pub struct ActivityMonitor {
    moves: AtomicU64,
    activity: AtomicU8,
    step_nanos: AtomicU64,
    expected_nanos: AtomicU64,
}

/// The content of an [`ActivityMonitor`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivitySample {
    /// A counter that changes with everything that the thread does.
    pub moves: u64,
    /// The current activity.
    pub activity: Activity,
    /// The mean time of a step, or `None` before the first step.
    pub step: Option<Duration>,
    /// The expected time of a step in this group, whose steps may be longer than those before. Zero
    /// if it is not known.
    pub expected: Duration,
}

impl ActivitySample {
    /// Returns the longest time that a step may take, as far as it is known.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        self.step.unwrap_or_default().max(self.expected)
    }
}

/// A training thread that does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The activity in which it stopped.
    pub activity: Activity,
    /// The time since its last move.
    pub still: Duration,
    /// True if it is useless to wait any longer.
    pub is_hung: bool,
}

/// Watches one training thread. It is pure: a sample and the time go in, a verdict comes out.
#[derive(Clone, Debug, Default)]
pub struct Watchdog {
    moves: u64,
    still: Duration,
    looked: Duration,
}

impl ActivityMonitor {
    /// Runs `part` as one activity and counts its begin and its end as moves. Afterwards the
    /// activity around it continues.
    pub fn during<T>(&self, activity: Activity, part: impl FnOnce() -> T) -> T {
        let before = self.activity.swap(activity as u8, Ordering::Relaxed);
        self.moves.fetch_add(1, Ordering::Relaxed);
        let done = part();
        self.activity.store(before, Ordering::Relaxed);
        self.moves.fetch_add(1, Ordering::Relaxed);
        done
    }

    /// Counts a move of another thread that does a part of this work.
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the expected time of a step in the group that this worker enters.
    pub fn expect_step(&self, takes: Duration) {
        self.expected_nanos.store(nanos(takes), Ordering::Relaxed);
    }

    /// Adds the measured time of one step to the mean.
    pub fn did_step(&self, took: Duration) {
        let (mean, took) = (self.step_nanos.load(Ordering::Relaxed), nanos(took));
        let next = if mean == 0 { took } else { mean - mean / MEAN_STEPS + took / MEAN_STEPS };
        self.step_nanos.store(next.max(1), Ordering::Relaxed);
    }

    /// Returns the current state.
    pub fn sample(&self) -> ActivitySample {
        let activities = [Activity::Waiting, Activity::Computing, Activity::Storing];
        let activity = self.activity.load(Ordering::Relaxed);
        let step = self.step_nanos.load(Ordering::Relaxed);
        ActivitySample {
            moves: self.moves.load(Ordering::Relaxed),
            activity: activities.into_iter().find(|known| *known as u8 == activity).unwrap_or_default(),
            step: (step > 0).then(|| Duration::from_nanos(step)),
            expected: Duration::from_nanos(self.expected_nanos.load(Ordering::Relaxed)),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Watchdog {
    /// Returns the verdict at `now`, which counts from any fixed moment and never goes back. If the
    /// thread `is_awaited`, all other members may already have sealed. It then waits for no peer
    /// any more, and storage may have failed for this worker alone.
    pub fn look(&mut self, work: ActivitySample, is_awaited: bool, now: Duration) -> Option<Stuck> {
        let since = now.saturating_sub(self.looked).min(LONGEST_GAP);
        self.looked = now;
        let patience = match work.activity {
            Activity::Waiting => is_awaited.then_some(SLOW_AFTER),
            Activity::Computing => {
                let least = if work.step.is_some() { STUCK_AFTER } else { SLOW_AFTER };
                Some(least.max(work.longest_step().saturating_mul(STUCK_STEPS)))
            }
            Activity::Storing => Some(SLOW_AFTER),
        };
        let (true, Some(patience)) = (work.moves == self.moves, patience) else {
            *self = Self { moves: work.moves, still: Duration::ZERO, looked: now };
            return None;
        };
        self.still += since;
        let (still, activity) = (self.still, work.activity);
        (still >= patience).then(|| Stuck {
            activity,
            still,
            is_hung: activity != Activity::Waiting && still >= patience.saturating_mul(HUNG_TIMES),
        })
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = match self.activity {
            Activity::Waiting => "waiting",
            Activity::Computing => "computing",
            Activity::Storing => "reading or writing",
        };
        write!(f, "its training thread, {about}, has not moved for {:.1} s", self.still.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds after which a motionless thread counts as stuck and as hung, with ten
    /// looks per second.
    fn verdicts(activity: Activity, is_awaited: bool, step: Option<Duration>) -> (Option<u64>, Option<u64>) {
        verdicts_of(ActivitySample { moves: 1, activity, step, expected: Duration::ZERO }, is_awaited)
    }

    fn verdicts_of(work: ActivitySample, is_awaited: bool) -> (Option<u64>, Option<u64>) {
        let mut watchdog = Watchdog::default();
        let (mut stuck, mut hung) = (None, None);
        for tenth in 0..20_000 {
            if let Some(found) = watchdog.look(work, is_awaited, Duration::from_millis(100 * tenth)) {
                stuck = stuck.or(Some(tenth / 10));
                hung = hung.or(found.is_hung.then_some(tenth / 10));
            }
        }
        (stuck, hung)
    }

    #[test]
    fn patience_depends_on_the_activity_and_the_step_time() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let milliseconds = |milliseconds| Some(Duration::from_millis(milliseconds));
        let found = |stuck, hung| (Some(stuck), Some(hung));
        for is_awaited in [false, true] {
            assert_eq!(verdicts(Activity::Computing, is_awaited, milliseconds(10)), found(5, 50));
            assert_eq!(verdicts(Activity::Computing, is_awaited, seconds(2)), found(16, 160), "eight steps");
            assert_eq!(verdicts(Activity::Computing, is_awaited, None), found(60, 600), "no step is known yet");
            assert_eq!(verdicts(Activity::Storing, is_awaited, milliseconds(10)), found(60, 600));
        }
        assert_eq!(
            verdicts(Activity::Waiting, false, milliseconds(10)),
            (None, None),
            "the other members judge themselves"
        );
        assert_eq!(verdicts(Activity::Waiting, true, milliseconds(10)), (Some(60), None), "storage may come back");
    }

    #[test]
    fn a_longer_expected_step_extends_the_patience() {
        let expected = Duration::from_secs(20);
        for step in [None, Some(Duration::from_secs(2))] {
            let work = ActivitySample { moves: 1, activity: Activity::Computing, step, expected };
            assert_eq!(verdicts_of(work, false), (Some(160), Some(1600)), "eight expected steps; {step:?}");
        }
        let work =
            ActivitySample { moves: 1, activity: Activity::Computing, step: None, expected: Duration::from_millis(1) };
        assert_eq!(verdicts_of(work, false), (Some(60), Some(600)), "first steps may take longer than expected");
    }

    #[test]
    fn a_move_or_a_wait_restarts_the_patience() {
        let mut watchdog = Watchdog::default();
        let step = Some(Duration::from_millis(1));
        let mut work = ActivitySample { moves: 1, activity: Activity::Computing, step, ..ActivitySample::default() };
        let mut look = |work, tenth: u64| watchdog.look(work, false, Duration::from_millis(100 * tenth)).is_some();
        assert!((0..50).all(|tenth| !look(work, tenth)));
        work.moves += 1;
        assert!((50..100).all(|tenth| !look(work, tenth)));
        assert!(look(work, 101));
        work.activity = Activity::Waiting;
        assert!(!look(work, 102));
    }

    #[test]
    fn a_process_that_was_suspended_as_a_whole_is_not_stuck_when_it_wakes() {
        let mut watchdog = Watchdog::default();
        let step = Some(Duration::from_millis(1));
        let work = ActivitySample { moves: 1, activity: Activity::Computing, step, ..ActivitySample::default() };
        assert_eq!(watchdog.look(work, false, Duration::ZERO), None);
        assert_eq!(watchdog.look(work, false, Duration::from_secs(3600)), None);
    }

    #[test]
    fn the_monitor_shows_the_activity_and_the_step_time() {
        let work = ActivityMonitor::default();
        assert_eq!(work.sample(), ActivitySample::default());
        work.during(Activity::Computing, || {
            let computing = work.sample();
            assert_eq!(computing.activity, Activity::Computing);
            work.during(Activity::Storing, || assert_eq!(work.sample().activity, Activity::Storing));
            assert_eq!(work.sample().activity, Activity::Computing);
            assert_ne!(work.sample().moves, computing.moves);
        });
        for _ in 0..100 {
            work.did_step(Duration::from_millis(3));
        }
        work.expect_step(Duration::from_secs(4));
        assert_eq!(work.sample().longest_step(), Duration::from_secs(4));
        let step = work.sample().step.expect("measured");
        assert!(step.abs_diff(Duration::from_millis(3)) < Duration::from_micros(1), "{step:?}");
    }
}
