//! Runs the product's own state machines in a simulated job.
//!
//! The clocks are virtual and jump. The network loses, repeats, delays and reorders messages.
//! Processes crash, stop and return, machines are slow, there may be two coordinators, and the
//! store answers late or never. Steps are summed frame by frame by the product's own algorithms.
//! Every run is checked against one history: no announced step is lost or forked, no sample counts
//! twice, and no process waits for ever.

mod catchup;
mod chaos;
mod coordinators;
mod coverage;
mod dice;
mod fixtures;
mod history;
mod moments;
mod network;
mod process;
mod slow;
mod sums;
mod worker;
mod world;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use coverage::Coverage;
use world::{Bug, Run, World};

/// Selects one seed to run alone, as `cargo xtask simulate --seed` does.
const SEED: &str = "LOCKSTEP_SIMULATION_SEED";
/// Selects another range: the first seed, and the number of seeds.
const FIRST: &str = "LOCKSTEP_SIMULATION_FIRST_SEED";
const COUNT: &str = "LOCKSTEP_SIMULATION_SEEDS";
const SEEDS: u64 = 10_000;
/// Prints the progress after this many seeds.
const TELL: u64 = 100_000;
/// A planted bug has to be found within this many seeds.
const HUNT: u64 = 1000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

fn run(seed: u64, bug: Option<Bug>) -> Result<Run, String> {
    catch_unwind(AssertUnwindSafe(|| World::new(seed, bug).run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    })
}

#[derive(Default)]
struct Totals {
    runs: u64,
    steps: u64,
    generations: u64,
    faults: u64,
    faulty_steps: u64,
    rollbacks: u64,
    given_up: u64,
    attempts: u64,
    coordinators: u64,
    deliveries: u64,
    hours: f64,
    coverage: Coverage,
    failures: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, seed: u64, run: Result<Run, String>) {
        match run {
            Ok(run) => {
                self.runs += 1;
                self.steps += run.steps;
                self.generations += run.generations;
                self.faults += run.faults;
                self.faulty_steps += run.faulty_steps;
                self.rollbacks += run.rollbacks;
                self.given_up += run.given_up;
                self.attempts += u64::from(run.attempts);
                self.coordinators += run.coordinators;
                self.deliveries += run.deliveries;
                self.hours += run.clock.as_secs_f64() / 3600.0;
                self.coverage.add(&run.coverage);
            }
            Err(violation) => self.failures.push((seed, violation)),
        }
    }

    fn merge(mut self, other: Self) -> Self {
        self.runs += other.runs;
        self.steps += other.steps;
        self.generations += other.generations;
        self.faults += other.faults;
        self.faulty_steps += other.faulty_steps;
        self.rollbacks += other.rollbacks;
        self.given_up += other.given_up;
        self.attempts += other.attempts;
        self.coordinators += other.coordinators;
        self.deliveries += other.deliveries;
        self.hours += other.hours;
        self.coverage.add(&other.coverage);
        self.failures.extend(other.failures);
        self
    }
}

#[test]
fn whatever_happens_no_step_is_lost_and_every_run_ends() {
    if let Some(seed) = number(SEED) {
        let world = World::new(seed, None).traced();
        match world.run() {
            Ok(run) => println!("seed {seed}: {run:?}"),
            Err(violation) => panic!("seed {seed} fails: {violation}"),
        }
        return;
    }
    let first = number(FIRST).unwrap_or(0);
    let beyond = first + number(COUNT).unwrap_or(SEEDS);
    let next = AtomicU64::new(first);
    let work = || {
        let mut totals = Totals::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= beyond || totals.failures.len() > 20 {
                return totals;
            }
            let result = run(seed, None);
            if (seed - first).is_multiple_of(TELL) && seed > first {
                println!("{} seeds begun", seed - first);
            }
            if seed.is_multiple_of(100) {
                assert_eq!(result, run(seed, None), "seed {seed} does not replay");
            }
            totals.add(seed, result.and_then(|run| run.shortfall().map_or(Ok(run), Err)));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let totals = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("counted")).fold(Totals::default(), Totals::merge)
    });
    let Totals { runs, steps, generations, faults, faulty_steps, hours, deliveries, .. } = totals;
    println!("{runs} runs, {hours:.1} simulated hours, {deliveries} deliveries");
    println!("{steps} stable steps, {generations} generations, {faults} faults in {faulty_steps} steps");
    println!(
        "{} rollbacks that gave up {} steps, {} attempts, {} coordinators",
        totals.rollbacks, totals.given_up, totals.attempts, totals.coordinators
    );
    totals.coverage.print();
    for (seed, violation) in &totals.failures {
        println!("seed {seed} fails: {violation}\n  replay it with `cargo xtask simulate --seed {seed}`");
    }
    assert!(totals.failures.is_empty(), "{} seeds fail, the first is {}", totals.failures.len(), totals.failures[0].0);
    let unmet = totals.coverage.empty();
    assert!(runs < SEEDS || unmet.is_empty(), "no run met these cases: {unmet:?}");
}

#[test]
fn without_faults_every_group_finishes_under_few_generations() {
    for seed in 0..50 {
        let run = World::without_faults(seed).run().unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert!(run.generations <= 3 && run.rollbacks == 0, "seed {seed}: {run:?}");
    }
}

#[test]
fn a_group_with_an_unconnected_pair_finishes_without_one_of_the_two() {
    for seed in 0..200 {
        let run =
            World::with_unconnected_pair(seed).run().unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert!(run.rollbacks == 0 && run.generations <= 6, "seed {seed}: {run:?}");
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::ReportsBeforeItStops, Bug::StoreIgnoresTheVersion, Bug::KeepsItsIncarnation] {
        let found = (0..HUNT).find_map(|seed| Some((seed, run(seed, Some(bug)).err()?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{bug:?} is not found by {HUNT} seeds"));
        println!("{bug:?} is found by seed {seed}: {}", violation.lines().next().unwrap_or_default());
    }
}
