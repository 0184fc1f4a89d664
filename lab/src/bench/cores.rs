//! How near each other a machine's two cores are. The host of a virtual machine moves them while they sleep: to the threads of one core,
//! which compute half as much, to cores that share a cache, or to some that do not, between which what the system copies takes three to
//! five times as long. Sides that are to be compared need the same.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_setaffinity};

/// A word goes there and back within this between two cores that share a cache; faster between the threads of one.
const NEAR: RangeInclusive<Duration> = Duration::from_nanos(80)..=Duration::from_nanos(250);
/// Round trips of one look; the fastest of several looks counts, since either core may be taken away meanwhile.
const ROUND_TRIPS: u32 = 1000;
const LOOKS: u32 = 5;
/// Time that the host is given to move them.
const REST: Duration = Duration::from_millis(200);
/// Cores that have not been near each other for so long never are.
const HOPELESS: Duration = Duration::from_secs(15);

/// Has measurements taken while the cores are two that share a cache.
pub(crate) struct Cores {
    /// Whether they are looked at: of one there is no other, of many it is not known on which a side runs, and some never share a cache.
    matter: bool,
    /// Time that may still go into waiting for that, and into measurements that do not count.
    spare: Duration,
    waited: Duration,
    /// Whether they were found so at all.
    found: bool,
    taken: u32,
    apart: u32,
}

impl Cores {
    pub(crate) fn with(spare: Duration) -> Self {
        let matter = thread::available_parallelism().is_ok_and(|cores| cores.get() == 2);
        Self { matter, spare, waited: Duration::ZERO, found: false, taken: 0, apart: 0 }
    }

    /// What a measurement gives before and after which the cores are near each other; once no time is left for that, what it gives.
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

    /// How many measurements were kept although the cores had moved apart.
    pub(crate) fn apart(&self) -> u32 {
        self.apart
    }

    /// For people.
    pub(crate) fn told(&self) -> String {
        let Self { matter, taken, apart, .. } = self;
        if *matter {
            format!("the cores were two of one cache in {} of {taken} runs of a side", taken - apart)
        } else {
            "whether two cores share a cache was not asked: there are not two, or they never do".to_owned()
        }
    }

    fn are_near(&mut self) -> bool {
        let are_near = NEAR.contains(&round_trip());
        self.found |= are_near;
        are_near
    }
}

/// Of a word between the two cores.
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
        looks.join().ok().flatten().unwrap_or_default()
    })
}

/// A thread that may not choose its core measures what it can.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}
