//! The checkpointer's own code on a simulated disk that loses what is not synced, tears, fills up, fails, lies and flips bits, under members
//! that are killed, held up and outlived by a newer generation. After every restart the newest checkpoint is one that was committed, bit
//! for bit, and at least as new as any that was promised to survive.

mod coverage;
mod dice;
mod disk;
mod history;
mod job;
mod machine;
mod planted_bug;
mod power_failure;
mod process;
mod state;
mod thread_pool;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use job::{Job, Run};
use planted_bug::Bug;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = 128;

/// Set it to a seed, as `cargo xtask simulate checkpoints --seed` does, to see that run alone.
const SEED: &str = "LOCKSTEP_SIMULATION_SEED";
/// For any other range: the first seed, and how many.
const FIRST: &str = "LOCKSTEP_SIMULATION_FIRST_SEED";
const COUNT: &str = "LOCKSTEP_SIMULATION_SEEDS";
const SEEDS: u64 = 10_000;
/// A planted bug has to be found within so many seeds.
const HUNT: u64 = 1000;
/// Seeds after which a long run says how far it has come.
const TELL: u64 = 10_000;
/// Seeds that fail, of which each thread tells.
const MOST_FAILURES: usize = 20;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn run(seed: u64, bug: Option<Bug>) -> Result<Run, String> {
    catch_unwind(AssertUnwindSafe(|| Job::new(seed, bug).run())).unwrap_or_else(|panic| Err(job::text_of(&*panic)))
}

#[derive(Default)]
struct Totals {
    runs: u64,
    sum: Run,
    failures: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, seed: u64, run: Result<Run, String>) {
        match run {
            Ok(run) => {
                self.runs += 1;
                self.sum.add(&run);
            }
            Err(violation) => self.failures.push((seed, violation)),
        }
    }

    fn merge(mut self, other: Self) -> Self {
        self.runs += other.runs;
        self.sum.add(&other.sum);
        self.failures.extend(other.failures);
        self
    }
}

impl Run {
    fn add(&mut self, other: &Self) {
        let Self {
            steps,
            work,
            generations,
            restarts,
            saved,
            refused,
            late,
            pruned,
            fallen_back,
            reset,
            coverage,
            digest: _,
        } = other;
        self.steps += steps;
        self.work += work;
        self.generations += generations;
        self.restarts += restarts;
        self.saved += saved;
        self.refused += refused;
        self.late += late;
        self.pruned += pruned;
        self.fallen_back += fallen_back;
        self.reset += reset;
        self.coverage.add(coverage);
    }
}

#[test]
fn whatever_the_disk_does_no_promised_checkpoint_is_lost_or_mixed() {
    if let Some(seed) = variable(SEED) {
        match Job::new(seed, None).traced().run() {
            Ok(run) => println!("seed {seed}: {run:?}"),
            Err(violation) => panic!("seed {seed} fails: {violation}"),
        }
        return;
    }
    let first = variable(FIRST).unwrap_or(0);
    let beyond = first + variable(COUNT).unwrap_or(SEEDS);
    let next = AtomicU64::new(first);
    let work = || {
        let mut totals = Totals::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= beyond || totals.failures.len() > MOST_FAILURES {
                return totals;
            }
            let result = run(seed, None);
            if (seed - first).is_multiple_of(TELL) && seed > first {
                println!("{} seeds begun", seed - first);
            }
            if seed.is_multiple_of(100) {
                assert_eq!(result, run(seed, None), "seed {seed} does not replay");
            }
            totals.add(seed, result);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let totals = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("counted")).fold(Totals::default(), Totals::merge)
    });
    let Totals { runs, sum, failures } = totals;
    let Run { steps, work, generations, restarts, .. } = sum;
    let Run { saved, refused, late, pruned, fallen_back, reset, ref coverage, .. } = sum;
    let faults = coverage.faults();
    println!("{runs} runs, {steps} steps to be saved by {work} processes, {faults} faults");
    println!("{generations} generations, {restarts} restarts");
    println!("{saved} saved, {late} of them by a generation that was over, {refused} parts or commitments failed");
    println!("{pruned} deleted, {fallen_back} loads passed a damaged one over, {reset} found none");
    coverage.print();
    for (seed, violation) in &failures {
        println!("seed {seed} fails: {violation}\n  replay it with `cargo xtask simulate checkpoints --seed {seed}`");
    }
    assert!(failures.is_empty(), "{} seeds fail, the first is {}", failures.len(), failures[0].0);
    let unmet = coverage.empty();
    assert!(runs < SEEDS || unmet.is_empty(), "no run met this: {unmet:?}");
}

#[test]
fn planted_bugs_of_the_checkpointer_are_found() {
    for bug in Bug::ALL {
        let found = (0..HUNT).find_map(|seed| Some((seed, run(seed, Some(bug)).err()?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{bug:?} is not found by {HUNT} seeds"));
        println!("{bug:?} is found by seed {seed}: {}", violation.lines().next().unwrap_or_default());
    }
}
