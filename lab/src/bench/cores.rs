//! How near each other a machine's two cores are.
//!
//! The host of a virtual machine moves its cores while they sleep. They may become the two threads
//! of one core, which compute half as much. They may share a cache or not; without a shared cache,
//! copying by the system takes three to five times as long. Sides are comparable only if their
//! cores were equally near.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_setaffinity};

/// Round-trip times of a word between two cores that share a cache. Two threads of one core are
/// faster.
const NEAR: RangeInclusive<Duration> = Duration::from_nanos(80)..=Duration::from_nanos(250);
/// Round trips of one look. The fastest of several looks counts: either core may be busy meanwhile.
const ROUND_TRIPS: u32 = 1000;
const LOOKS: u32 = 5;
/// The time that the host gets to move the cores.
const REST: Duration = Duration::from_millis(200);
/// Cores that have not been near each other for this long never are.
const HOPELESS: Duration = Duration::from_secs(15);

/// Takes measurements while the two cores share a cache.
pub(crate) struct Cores {
    /// True if the distance of the cores is measured. A single core has no neighbour. With more
    /// than two cores, it is unknown which ones a side uses, and some pairs never share a cache.
    matter: bool,
    /// The time left for waiting until the cores are near, and for measurements that do not count.
    spare: Duration,
    waited: Duration,
    /// True once the cores were found near each other.
    found: bool,
    taken: u32,
    apart: u32,
}

impl Cores {
    pub(crate) fn with(spare: Duration) -> Self {
        let matter = thread::available_parallelism().is_ok_and(|cores| cores.get() == 2);
        Self { matter, spare, waited: Duration::ZERO, found: false, taken: 0, apart: 0 }
    }

    /// Returns a measurement before and after which the cores are near each other. Once the spare
    /// time is used up, any measurement counts.
    pub(crate) fn near<T>(&mut self, mut measure: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
        while self.matter {
            while self.matter && !self.spare.is_zero() && !self.are_near() {
                thread::sleep(REST);
                self.spare = self.spare.saturating_sub(REST);
                self.waited += REST;
                self.matter = self.found || self.waited < HOPELESS;
            }
            let begun = Instant::now();
            let measured = measure()?;
            let are_near = self.are_near();
            if are_near || self.spare.is_zero() || !self.matter {
                self.taken += 1;
                self.apart += u32::from(self.matter && !are_near);
                return Ok(measured);
            }
            self.spare = self.spare.saturating_sub(begun.elapsed());
        }
        measure()
    }

    /// The number of measurements that count although the cores had moved apart.
    pub(crate) fn apart(&self) -> u32 {
        self.apart
    }

    /// A sentence about the cores, for people.
    pub(crate) fn summary(&self) -> String {
        let Self { matter, taken, apart, .. } = self;
        if *matter {
            format!("the two cores shared a cache in {} of {taken} runs of a side", taken - apart)
        } else {
            "the distance of the cores was not measured: there are not two, or they never share a cache".to_owned()
        }
    }

    fn are_near(&mut self) -> bool {
        let are_near = NEAR.contains(&round_trip());
        self.found |= are_near;
        are_near
    }
}

/// Returns the round-trip time of a word between the two cores.
fn round_trip() -> Duration {
    let (there, back) = (AtomicU64::new(0), AtomicU64::new(0));
    let wait_for = |word: &AtomicU64, turn| {
        while word.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
        }
    };
    let turns = u64::from(LOOKS * ROUND_TRIPS);
    thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(1);
            (1..=turns).for_each(|turn| {
                wait_for(&there, turn);
                back.store(turn, Ordering::Release);
            });
        });
        let looks = scope.spawn(|| {
            stay_on(0);
            let mut turn = 0;
            let look = |_| {
                let begun = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    turn += 1;
                    there.store(turn, Ordering::Release);
                    wait_for(&back, turn);
                }
                begun.elapsed() / ROUND_TRIPS
            };
            (0..LOOKS).map(look).min()
        });
        looks.join().expect("no panic").expect("several looks")
    })
}

/// Moves the calling thread to `core`, if the system allows that.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}
