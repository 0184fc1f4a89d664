//! Runs the real checkpoint code on a simulated disk. The disk loses data that was not synced,
//! tears files, fills up, fails, lies and flips bits. Members are killed, held up and replaced by a
//! newer generation. After every restart the newest checkpoint must be one that was committed, bit
//! for bit, and at least as new as every checkpoint that was promised to survive.

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

/// The length of a chunk.
const CHUNK_BYTES: u64 = 128;

/// Set it to a seed to see that run alone. `cargo xtask simulate checkpoints --seed` does so.
const SEED: &str = "LOCKSTEP_SIMULATION_SEED";
/// The first seed and the number of seeds, for any other range.
const FIRST: &str = "LOCKSTEP_SIMULATION_FIRST_SEED";
const COUNT: &str = "LOCKSTEP_SIMULATION_SEEDS";
const SEEDS: u64 = 10_000;
/// A planted bug must be found within so many seeds.
const HUNT: u64 = 1000;
/// A long run reports its progress after so many seeds.
const TELL: u64 = 10_000;
/// Each thread reports so many failing seeds.
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
fn no_fault_of_the_disk_loses_or_mixes_a_promised_checkpoint() {
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
    println!("{runs} runs saved {steps} steps in {work} processes and met {faults} faults");
    println!("{generations} generations, {restarts} restarts");
    println!("{saved} commits succeeded, {late} of them by an old generation; {refused} parts or commits failed");
    println!("{pruned} checkpoints pruned, {fallen_back} loads skipped a damaged one, {reset} found none");
    coverage.print();
    for (seed, violation) in &failures {
        println!("seed {seed} fails: {violation}\n  replay it with `cargo xtask simulate checkpoints --seed {seed}`");
    }
    assert!(failures.is_empty(), "{} seeds fail, the first is {}", failures.len(), failures[0].0);
    let unmet = coverage.empty();
    assert!(runs < SEEDS || unmet.is_empty(), "no run met these cells: {unmet:?}");
}

#[test]
fn the_simulation_finds_every_planted_bug() {
    for bug in Bug::ALL {
        let found = (0..HUNT).find_map(|seed| Some((seed, run(seed, Some(bug)).err()?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{bug:?} is not found by {HUNT} seeds"));
        println!("{bug:?} is found by seed {seed}: {}", violation.lines().next().unwrap_or_default());
    }
}
