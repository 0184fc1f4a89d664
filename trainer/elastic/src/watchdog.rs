//! Whether a worker's training thread still does anything: its heartbeats, on a thread of their own, go on while it hangs.
//!
//! A worker judges itself: only it knows whether it computes or waits for others, and who is accused by a peer may be waiting too. Whoever
//! finds itself stuck leaves its group and joins again once it moves, so an error costs a change of the membership and nothing else.

use std::{
    fmt,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::Duration,
};

/// Shortest time of computing nothing that is an accusation.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// So many times the mean step is one, where that is longer.
const STEPS: u32 = 8;
/// The same for storage, and where no step was measured yet: network file systems recover after such times.
const SLOW_AFTER: Duration = Duration::from_secs(60);
/// After so many times that long it will not come back.
const HUNG_TIMES: u32 = 10;
/// Longest time between two looks that counts as one of doing nothing: beyond that nobody looked.
const NAP: Duration = Duration::from_secs(1);
/// The mean step is one of about so many.
const MEAN_OF: u64 = 8;

/// What a training thread is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// It waits for others, or does what may take any time.
    #[default]
    Waiting,
    /// It computes.
    Computing,
    /// It waits for storage.
    Storing,
}

/// What a training thread tells of its work; cheap enough for every micro-batch.
#[derive(Debug, Default)]
pub struct Work {
    moves: AtomicU64,
    activity: AtomicU8,
    step_nanos: AtomicU64,
    expected_nanos: AtomicU64,
}

/// [`Work`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glimpse {
    /// Changes with everything that is done.
    pub moves: u64,
    /// What is being done.
    pub activity: Activity,
    /// How long a step takes; `None` before the first.
    pub step: Option<Duration>,
    /// How long one is expected to take in this group, whose steps may be longer than those before; zero where that is not known.
    pub expected: Duration,
}

impl Glimpse {
    /// How long a step may take, as far as that is known.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        self.step.unwrap_or_default().max(self.expected)
    }
}

/// A training thread that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// What it was about to do.
    pub activity: Activity,
    /// For how long.
    pub still: Duration,
    /// Whether it is of no use to wait for it any longer.
    pub is_hung: bool,
}

/// Watches one training thread. Pure: what it does and the time in, a verdict out.
#[derive(Clone, Debug, Default)]
pub struct Watchdog {
    moves: u64,
    still: Duration,
    looked: Duration,
}

impl Work {
    /// Does a part of the work, as which it begins and ends; what is left of the work around it goes on as before.
    pub fn during<T>(&self, activity: Activity, part: impl FnOnce() -> T) -> T {
        let before = self.activity.swap(activity as u8, Ordering::Relaxed);
        self.moves.fetch_add(1, Ordering::Relaxed);
        let done = part();
        self.activity.store(before, Ordering::Relaxed);
        self.moves.fetch_add(1, Ordering::Relaxed);
        done
    }

    /// Another thread, which does a part of this work, has come further.
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Steps of the group that is entered are expected to take so long.
    pub fn expect_step(&self, takes: Duration) {
        self.expected_nanos.store(nanos(takes), Ordering::Relaxed);
    }

    /// A step took so long.
    pub fn did_step(&self, took: Duration) {
        let (mean, took) = (self.step_nanos.load(Ordering::Relaxed), nanos(took));
        let next = if mean == 0 { took } else { mean - mean / MEAN_OF + took / MEAN_OF };
        self.step_nanos.store(next.max(1), Ordering::Relaxed);
    }

    /// How it stands.
    pub fn glimpse(&self) -> Glimpse {
        let activities = [Activity::Waiting, Activity::Computing, Activity::Storing];
        let activity = self.activity.load(Ordering::Relaxed);
        let step = self.step_nanos.load(Ordering::Relaxed);
        Glimpse {
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
    /// Whether the thread is stuck at `now`, which counts from any fixed moment and never goes back. All others may stand still until it
    /// does, and it `is_awaited`: then it waits for no peer any more, and storage that others have may be gone for this worker alone.
    pub fn look(&mut self, work: Glimpse, is_awaited: bool, now: Duration) -> Option<Stuck> {
        let since = now.saturating_sub(self.looked).min(NAP);
        self.looked = now;
        let patience = match work.activity {
            Activity::Waiting => is_awaited.then_some(SLOW_AFTER),
            Activity::Computing => {
                let least = if work.step.is_some() { STUCK_AFTER } else { SLOW_AFTER };
                Some(least.max(work.longest_step().saturating_mul(STEPS)))
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

    /// When a thread that stops `moves` counts as stuck, and as hung, looked at ten times a second.
    fn verdicts(activity: Activity, is_awaited: bool, step: Option<Duration>) -> (Option<u64>, Option<u64>) {
        verdicts_of(Glimpse { moves: 1, activity, step, expected: Duration::ZERO }, is_awaited)
    }

    fn verdicts_of(work: Glimpse, is_awaited: bool) -> (Option<u64>, Option<u64>) {
        let mut dog = Watchdog::default();
        let (mut stuck, mut hung) = (None, None);
        for tenth in 0..20_000 {
            if let Some(found) = dog.look(work, is_awaited, Duration::from_millis(100 * tenth)) {
                stuck = stuck.or(Some(tenth / 10));
                hung = hung.or(found.is_hung.then_some(tenth / 10));
            }
        }
        (stuck, hung)
    }

    #[test]
    fn patience_follows_from_what_is_done_and_how_long_a_step_takes() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let milliseconds = |milliseconds| Some(Duration::from_millis(milliseconds));
        let found = |stuck, hung| (Some(stuck), Some(hung));
        for is_awaited in [false, true] {
            assert_eq!(verdicts(Activity::Computing, is_awaited, milliseconds(10)), found(5, 50));
            assert_eq!(verdicts(Activity::Computing, is_awaited, seconds(2)), found(16, 160), "eight steps");
            assert_eq!(verdicts(Activity::Computing, is_awaited, None), found(60, 600), "no step is known yet");
            assert_eq!(verdicts(Activity::Storing, is_awaited, milliseconds(10)), found(60, 600));
        }
        assert_eq!(verdicts(Activity::Waiting, false, milliseconds(10)), (None, None), "others answer for themselves");
        assert_eq!(verdicts(Activity::Waiting, true, milliseconds(10)), (Some(60), None), "storage may come back");
    }

    #[test]
    fn whoever_is_expected_to_take_longer_than_before_may() {
        let expected = Duration::from_secs(20);
        for step in [None, Some(Duration::from_secs(2))] {
            let work = Glimpse { moves: 1, activity: Activity::Computing, step, expected };
            assert_eq!(verdicts_of(work, false), (Some(160), Some(1600)), "eight of them; {step:?}");
        }
        let work = Glimpse { moves: 1, activity: Activity::Computing, step: None, expected: Duration::from_millis(1) };
        assert_eq!(verdicts_of(work, false), (Some(60), Some(600)), "the first ones may take longer than expected");
    }

    #[test]
    fn whoever_moves_or_waits_has_all_its_patience_again() {
        let mut dog = Watchdog::default();
        let step = Some(Duration::from_millis(1));
        let mut work = Glimpse { moves: 1, activity: Activity::Computing, step, ..Glimpse::default() };
        let mut look = |work, tenth: u64| dog.look(work, false, Duration::from_millis(100 * tenth)).is_some();
        assert!((0..50).all(|tenth| !look(work, tenth)));
        work.moves += 1;
        assert!((50..100).all(|tenth| !look(work, tenth)));
        assert!(look(work, 101));
        work.activity = Activity::Waiting;
        assert!(!look(work, 102));
    }

    #[test]
    fn a_process_that_was_stopped_as_a_whole_accuses_nobody_when_it_wakes() {
        let mut dog = Watchdog::default();
        let step = Some(Duration::from_millis(1));
        let work = Glimpse { moves: 1, activity: Activity::Computing, step, ..Glimpse::default() };
        assert_eq!(dog.look(work, false, Duration::ZERO), None);
        assert_eq!(dog.look(work, false, Duration::from_secs(3600)), None);
    }

    #[test]
    fn work_tells_what_is_done_and_how_long_a_step_takes() {
        let work = Work::default();
        assert_eq!(work.glimpse(), Glimpse::default());
        work.during(Activity::Computing, || {
            let computing = work.glimpse();
            assert_eq!(computing.activity, Activity::Computing);
            work.during(Activity::Storing, || assert_eq!(work.glimpse().activity, Activity::Storing));
            assert_eq!(work.glimpse().activity, Activity::Computing);
            assert_ne!(work.glimpse().moves, computing.moves);
        });
        for _ in 0..100 {
            work.did_step(Duration::from_millis(3));
        }
        work.expect_step(Duration::from_secs(4));
        assert_eq!(work.glimpse().longest_step(), Duration::from_secs(4));
        let step = work.glimpse().step.expect("measured");
        assert!(step.abs_diff(Duration::from_millis(3)) < Duration::from_micros(1), "{step:?}");
    }
}
