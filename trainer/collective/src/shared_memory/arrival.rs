//! The arrivals of a rank at barriers. Each rank counts them in shared memory, and other ranks
//! sleep on that count.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;

/// The longest sleep. A rank then looks for an abort and for peers that have gone.
pub(super) const TICK: Duration = Duration::from_millis(2);
/// The most sleepers to wake: the system counts in 31 bits.
const EVERYBODY: u32 = i32::MAX.cast_unsigned();

/// A number in memory that several processes map, or a model of it.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    /// Adds to the number, modulo 2³².
    fn add(&self, value: u32);
    /// Orders memory accesses among all callers, sequentially consistent.
    fn fence();
    /// Sleeps until it is woken, at most [`TICK`], unless the number differs from `seen`. It may
    /// end for no reason.
    fn sleep(&self, seen: u32);
    /// Wakes all sleepers.
    fn wake(&self);
}

/// One rank's arrivals, and the number of others that sleep on them.
#[derive(Default)]
#[repr(C)]
pub(super) struct ArrivalCount<W> {
    /// Modulo 2³².
    arrivals: W,
    sleepers: W,
}

impl<W: Word> ArrivalCount<W> {
    /// Notes the rank's `count`-th arrival. A rank that sees it also sees everything that this rank
    /// did before.
    pub(super) fn arrive(&self, count: u32) {
        self.arrivals.store(count, Ordering::Release);
        // Either this rank sees the sleeper, or the sleeper sees the arrival.
        W::fence();
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.arrivals.wake();
        }
    }

    /// Returns the rank's arrivals, if they are fewer than `count`. The rank may be ahead, by one
    /// at most.
    pub(super) fn lacks(&self, count: u32) -> Option<u32> {
        let arrivals = self.arrivals.load(Ordering::Acquire);
        (arrivals.wrapping_sub(count).cast_signed() < 0).then_some(arrivals)
    }

    /// Sleeps for at most a tick, while the arrivals equal `seen`.
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
        // The caller looks again, whatever ended the sleep.
        let _ = futex::wait(self, futex::Flags::empty(), seen, Some(&tick));
    }

    fn wake(&self) {
        // If it fails, the sleepers look again after a tick.
        let _ = futex::wake(self, futex::Flags::empty(), EVERYBODY);
    }
}
