//! A core for each rank of a host. A rank moves to its core when another thread uses the core that
//! it is on.
//!
//! A rank moves and is not bound: the scheduler may move it again as before. So nothing has to be
//! undone if the core turns out to be busy while another one is free. Threads that the rank starts
//! may use all cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The core that a rank prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnCore(usize);

impl OwnCore {
    /// Returns the core of the `index`-th rank of a host, if each rank computes with `threads`
    /// threads. Ranks that may use the same cores have different ones. Returns `None` if this
    /// thread may not use that many cores.
    pub(crate) fn of(index: usize, threads: usize) -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).nth(index.checked_mul(threads)?).map(Self)
    }

    /// Returns true if this thread is on the core.
    pub(crate) fn is_here(self) -> bool {
        sched_getcpu() == self.0
    }

    /// Moves this thread to the core, and lets it use the same cores as before.
    pub(crate) fn move_there(self) {
        self.moved(|| {});
    }

    /// Runs `there` while this thread is on the core, if the system allows it.
    fn moved(self, there: impl FnOnce()) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut only = CpuSet::new();
        only.set(self.0);
        if sched_setaffinity(None, &only).is_ok() {
            there();
            // The thread could use them a moment ago.
            let _ = sched_setaffinity(None, &allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_have_different_cores() {
        let cores = std::thread::available_parallelism().unwrap().get();
        let own: Vec<_> = (0..cores).map_while(|index| OwnCore::of(index, 1)).collect();
        assert!(own.windows(2).all(|pair| pair[0].0 < pair[1].0), "{own:?}");
        assert_eq!(OwnCore::of(1, CpuSet::MAX_CPU), None);
    }

    #[test]
    fn a_rank_moves_to_its_core_and_may_use_all_others_afterwards() {
        let before = sched_getaffinity(None).unwrap();
        for own in (0..2).filter_map(|index| OwnCore::of(index, 1)) {
            let mut was_there = false;
            own.moved(|| was_there = own.is_here());
            assert!(was_there, "{own:?}");
            assert!(sched_getaffinity(None).unwrap() == before, "{own:?}");
        }
    }
}
