//! Retries for storage that is full, read-only, away, or silent.

use std::{
    convert::Infallible,
    fmt,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use lockstep_elastic::{Activity, Membership};
use tracing::warn;

use crate::failure::Failure;

/// Storage may delay work this long before a warning. Each further warning comes after twice the
/// time.
const DELAY: Duration = Duration::from_secs(60);
/// The time until a failed write is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Tells others that the group waits for the storage, and why.
pub(crate) trait Waits {
    /// Tells the reason of the wait.
    fn waits(&mut self, reason: &str);
}

impl<W: Waits + ?Sized> Waits for &mut W {
    fn waits(&mut self, reason: &str) {
        (**self).waits(reason);
    }
}

/// Only the reporting worker tells others.
impl<W: Waits> Waits for Option<W> {
    fn waits(&mut self, reason: &str) {
        self.iter_mut().for_each(|tells| tells.waits(reason));
    }
}

/// Tries to store something until the storage takes it: the group's state would be lost with this
/// process, and the storage is no better for the next one. `teller` tells others when the wait
/// begins, and each time that its reason changes. The wait ends without success only if the group
/// changes. If the storage does not even answer then, the watchdog ends this worker after a minute,
/// and the others go on.
pub(crate) fn until_stored<T, W: Waits>(
    membership: &Membership,
    teller: &mut W,
    mut store: impl FnMut(&mut W) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (begun, mut delay) = (Instant::now(), Delay::default());
    let mut told = None;
    membership.work().during(Activity::Waiting, || {
        loop {
            let reason = match store(teller) {
                Err(Failure::Retry(reason)) => reason,
                stored => return stored,
            };
            if membership.sealing().is_some() || membership.is_over() {
                return Err(Failure::broken(reason));
            }
            if told.as_ref() != Some(&reason) {
                teller.waits(&reason);
            }
            if delay.is_due(Some(begun.elapsed())) || told.is_none() {
                warn!(reason, "not stored yet; the group waits");
            }
            told = Some(reason);
            thread::sleep(AGAIN);
        }
    })
}

/// Calls `act`, which needs the storage at `place`, and warns once that takes long: a call that
/// never returns cannot warn.
pub(crate) fn warned_of<T>(place: impl fmt::Display + Sync, act: impl FnOnce() -> T) -> T {
    let tell = |lasts: Duration| {
        warn!(%place, seconds = lasts.as_secs(), "still waiting for the storage");
    };
    warned_after(DELAY, tell, act)
}

/// Calls `tell` once `act` has taken longer than `delay`, and again each time that it has taken
/// twice as long.
fn warned_after<T>(delay: Duration, tell: impl FnMut(Duration) + Send, act: impl FnOnce() -> T) -> T {
    let (acting, ended) = channel::<Infallible>();
    thread::scope(|scope| {
        // The other thread ends when this sender is dropped, also by a panic.
        let acting = acting;
        // Without a thread there is no warning.
        let _ = thread::Builder::new().spawn_scoped(scope, || warn_until(ended, delay, tell));
        let done = act();
        drop(acting);
        done
    })
}

fn warn_until(ended: Receiver<Infallible>, delay: Duration, mut tell: impl FnMut(Duration)) {
    let (begun, mut next) = (Instant::now(), delay);
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(next.saturating_sub(begun.elapsed())) {
        let lasts = begun.elapsed();
        tell(lasts);
        next = lasts * 2;
    }
}

/// Decides when to warn that the storage holds something up.
#[derive(Debug, Default)]
pub(crate) struct Delay {
    told: Option<Duration>,
}

impl Delay {
    /// Returns true if a warning is due. `under_way` is how long something has been under way, if
    /// anything is.
    pub(crate) fn is_due(&mut self, under_way: Option<Duration>) -> bool {
        let next = self.told.map_or(DELAY, |told| told * 2);
        let is_due = under_way.is_some_and(|lasts| lasts >= next);
        if is_due || under_way.is_none() {
            self.told = under_way;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_call_is_warned_of_while_it_lasts_and_not_after_its_end() {
        let (told, hears) = channel();
        let tell = |lasts: Duration| told.send(lasts).expect("heard");
        let waited = warned_after(Duration::from_millis(1), tell, || [(); 3].map(|()| hears.recv().expect("told")));
        assert!(waited[0] >= Duration::from_millis(1), "{waited:?}");
        assert!(waited.windows(2).all(|pair| pair[1] >= pair[0] * 2), "{waited:?}");
    }

    #[test]
    fn a_delay_is_warned_of_after_a_minute_and_then_each_time_twice_as_late() {
        let mut delay = Delay::default();
        let mut told = |under_way: &[u64]| -> Vec<u64> {
            let due = |seconds: &u64| delay.is_due(Some(Duration::from_secs(*seconds)));
            let told = under_way.iter().copied().filter(due).collect();
            assert!(!delay.is_due(None));
            told
        };
        assert_eq!(told(&[0, 59, 60, 61, 119, 121, 200, 500, 900, 1000]), [60, 121, 500, 1000]);
        assert_eq!(told(&[59, 75]), [75], "the next delay counts from its own beginning");
    }
}
