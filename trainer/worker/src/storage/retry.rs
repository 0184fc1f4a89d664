//! Waiting for storage that is full, read-only or away, or gives no answer.

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

/// How long storage may hold something up until that is told, and once more each time that it has taken twice as long.
const DELAY: Duration = Duration::from_secs(60);
/// Time until storage that took nothing is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Tells others that the group waits for the storage, and why.
pub(crate) trait Waits {
    fn waits(&mut self, reason: &str);
}

impl<W: Waits + ?Sized> Waits for &mut W {
    fn waits(&mut self, reason: &str) {
        (**self).waits(reason);
    }
}

/// Only the worker that reports tells.
impl<W: Waits> Waits for Option<W> {
    fn waits(&mut self, reason: &str) {
        self.iter_mut().for_each(|tells| tells.waits(reason));
    }
}

/// Stores something, however long the storage does not take it: the state of the group would end
/// with this process, and storage is no better for the next one. `teller` tells others when the
/// wait begins, and each time that its reason changes. The wait ends without success only where the
/// group changes. Where the storage gives no answer even then, the watchdog ends this worker after
/// a minute, and the others go on.
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

/// Does what needs the storage at `place`, and tells of it once that takes long: a call that never returns says nothing itself.
pub(crate) fn told_of<T>(place: impl fmt::Display + Sync, act: impl FnOnce() -> T) -> T {
    let tell = |lasts: Duration| {
        warn!(%place, seconds = lasts.as_secs(), "still waiting for the storage");
    };
    told_after(DELAY, tell, act)
}

/// Calls `tell` while `act` lasts longer than this, and once more each time that it has taken twice as long.
fn told_after<T>(delay: Duration, tell: impl FnMut(Duration) + Send, act: impl FnOnce() -> T) -> T {
    let (acting, ended) = channel::<Infallible>();
    thread::scope(|scope| {
        // Its end, also by a panic, ends the other thread.
        let acting = acting;
        // Where the system gives no thread nothing is told.
        let _ = thread::Builder::new().spawn_scoped(scope, || tell_until(ended, delay, tell));
        let done = act();
        drop(acting);
        done
    })
}

fn tell_until(ended: Receiver<Infallible>, delay: Duration, mut tell: impl FnMut(Duration)) {
    let (begun, mut next) = (Instant::now(), delay);
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(next.saturating_sub(begun.elapsed())) {
        let lasts = begun.elapsed();
        tell(lasts);
        next = lasts * 2;
    }
}

/// How long the storage holds something up.
#[derive(Debug, Default)]
pub(crate) struct Delay {
    told: Option<Duration>,
}

impl Delay {
    /// Whether it is to be told that something has been under way for so long; `None` while nothing is.
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
    fn what_never_returns_is_told_of_while_it_lasts_and_no_more_once_it_has_ended() {
        let (told, hears) = channel();
        let tell = |lasts: Duration| told.send(lasts).expect("heard");
        let waited = told_after(Duration::from_millis(1), tell, || [(); 3].map(|()| hears.recv().expect("told")));
        assert!(waited[0] >= Duration::from_millis(1), "{waited:?}");
        assert!(waited.windows(2).all(|pair| pair[1] >= pair[0] * 2), "{waited:?}");
    }

    #[test]
    fn what_is_held_up_is_told_of_after_a_minute_and_then_each_time_twice_as_late() {
        let mut delay = Delay::default();
        let mut told = |under_way: &[u64]| -> Vec<u64> {
            let due = |seconds: &u64| delay.is_due(Some(Duration::from_secs(*seconds)));
            let told = under_way.iter().copied().filter(due).collect();
            assert!(!delay.is_due(None));
            told
        };
        assert_eq!(told(&[0, 59, 60, 61, 119, 121, 200, 500, 900, 1000]), [60, 121, 500, 1000]);
        assert_eq!(told(&[59, 75]), [75], "the next one's delay counts from its own beginning");
    }
}
