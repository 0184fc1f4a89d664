//! How ranks barrier: each counts in shared memory how often it has come, and whoever waits for it sleeps on that count.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;

/// The longest sleep: then whoever waits looks for an abort and for peers that have gone.
pub(super) const TICK: Duration = Duration::from_millis(2);
/// The system counts whom to wake in 31 bits.
const EVERYBODY: u32 = i32::MAX.cast_unsigned();

/// A number in memory that several processes map: the processor's, or that of a model of it.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    /// Adds to it, modulo 2³².
    fn add(&self, value: u32);
    /// Sequentially consistent among all who call it.
    fn fence();
    /// Sleeps until it is woken, [`TICK`] at most, unless the number is no longer `seen`. May end for no reason.
    fn sleep(&self, seen: u32);
    /// Wakes all who sleep here.
    fn wake(&self);
}

/// One rank's count, and how many others sleep on it.
#[derive(Default)]
#[repr(C)]
pub(super) struct ArrivalCount<W> {
    /// Modulo 2³².
    arrivals: W,
    sleepers: W,
}

impl<W: Word> ArrivalCount<W> {
    /// Its rank has come, for the `count`-th time: whoever finds that sees all that the rank did before.
    pub(super) fn arrive(&self, count: u32) {
        self.arrivals.store(count, Ordering::Release);
        // Either this sees who is about to sleep, or he sees the arrival.
        W::fence();
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.arrivals.wake();
        }
    }

    /// How often its rank has come, if less often than `count`. It may be ahead, by one at most.
    pub(super) fn lacks(&self, count: u32) -> Option<u32> {
        let arrivals = self.arrivals.load(Ordering::Acquire);
        (arrivals.wrapping_sub(count).cast_signed() < 0).then_some(arrivals)
    }

    /// Sleeps for a tick at most, while its rank has come as often as was `seen`.
    pub(super) fn sleep(&self, seen: u32) {
        self.sleepers.add(1);
        W::fence();
        self.arrivals.sleep(seen);
        self.sleepers.add(1_u32.wrapping_neg());
    }
}

impl Word for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    fn add(&self, value: u32) {
        self.fetch_add(value, Ordering::Relaxed);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }

    fn sleep(&self, seen: u32) {
        let tick = rustix::fs::Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        // Whatever ends the sleep, what is waited for is looked at again.
        let _ = futex::wait(self, futex::Flags::empty(), seen, Some(&tick));
    }

    fn wake(&self) {
        // Should that fail, they look again after a tick.
        let _ = futex::wake(self, futex::Flags::empty(), EVERYBODY);
    }
}
