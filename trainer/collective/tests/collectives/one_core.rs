//! Two ranks on one core, where the scheduler of a busy machine may put them.

use lockstep_collective::algorithm::Algorithm;
use lockstep_collective::{Group, Limits, Reduction, Tag, Waiting};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::group::{PATIENT, bare_group, ends};

const SUMS: u64 = 2000;

#[test]
fn two_ranks_on_one_core_yield_it_instead_of_looking_until_they_sleep() {
    for (link, shares_memory) in [("memory", true), ("tcp", false)] {
        let limits = Limits { waiting: Waiting::SpinThenBlock, shares_memory, ..PATIENT };
        let slept: u64 = ends(move || bare_group(2, limits, sleeps_of_sums_on_one_core)).iter().sum();
        // A rank that looks until it sleeps does so in every sum, while the other may not run.
        assert!(slept < SUMS / 4, "{slept} sleeps of 2 ranks in {SUMS} sums over {link}");
    }
}

/// Returns how often this rank sleeps in sums that all ranks do on the first core that they may
/// use.
fn sleeps_of_sums_on_one_core(mut group: Group) -> u64 {
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
    let mut only = CpuSet::new();
    only.set(first);
    sched_setaffinity(None, &only).unwrap();
    let mut sum = |step| {
        let (tag, data) = (Tag { step, bucket: 0 }, &mut [1.0_f32; 256]);
        if group.shares_memory() {
            group.all_reduce_in_memory(tag, data, Reduction::Sum).unwrap();
        } else {
            group.all_reduce(Algorithm::RecursiveDoubling, tag, data, Reduction::Sum).unwrap();
        }
    };
    sum(0);
    let before = sleeps();
    (1..=SUMS).for_each(sum);
    sleeps() - before
}

/// Returns how often this thread has given its core up because it had to wait.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}
