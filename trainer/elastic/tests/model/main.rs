//! Every interleaving, within stated bounds, of the product's own transition functions: `Coordinator::handle` and `Member::handle`.
//!
//! Three workers that form generation 1, two coordinators that may live at a time, two steps, and generations up to three. Messages are
//! a set that only grows: each may be delivered at any time, again, or never. Bounded are the number of processes that die, of
//! connections that break, and of coordinators that are started anew, as each run states; time stands still, so that nothing is
//! suspected for its silence: a connection that breaks stands for that.

mod explore;
mod job;
mod worker;

use explore::{Found, explore};
use job::{Bounds, Job, Mutant};

const QUICK: Bounds = Bounds { workers: 3, kills: 1, moves: 0, coordinators: 1, later: true, generations: 3, steps: 2 };
const MAX_STATES: usize = 1_500_000;

fn clean(bounds: Bounds, limit: usize) {
    let found = explore(Job::begin(bounds, None), limit);
    println!("{bounds:?}: {found:?}");
    match found {
        Found::Clean { .. } => {}
        Found::Violation { rule, path, .. } => panic!("{rule}\n{}", path.join("\n")),
        Found::TooMany { states, depth } => panic!("more than {states} states, complete up to depth {depth}"),
    }
}

#[test]
fn trial() {
    let number = |name: &str, other: u64| std::env::var(name).map_or(other, |text| text.parse().expect("a number"));
    let bounds = Bounds {
        workers: number("WORKERS", 3) as usize,
        kills: number("KILLS", 1) as u8,
        moves: number("CUTS", 0) as u8,
        coordinators: number("CHAIRS", 1) as u8,
        later: number("LATER", 0) == 1,
        generations: number("GENS", 3),
        steps: number("STEPS", 2),
    };
    let mutants = [
        None,
        Some(Mutant::ReportsBeforeSealing),
        Some(Mutant::CountsEverybody),
        Some(Mutant::ToldAtLocalCompletion),
        Some(Mutant::RecordsWithoutVersion),
        Some(Mutant::KeepsItsIncarnation),
        Some(Mutant::BaseInForeignHands),
    ];
    let mutant = mutants[number("MUTANT", 0) as usize];
    let begun = std::time::Instant::now();
    println!("{mutant:?} {bounds:?}");
    match explore(Job::begin(bounds, mutant), number("LIMIT", 300_000) as usize) {
        Found::Violation { rule, states, path } => println!("{rule}, {states} states, {}", path.join("\n")),
        other => println!("{other:?}"),
    }
    println!("{:?}", begun.elapsed());
}

#[test]
fn no_interleaving_loses_a_step() {
    clean(QUICK, MAX_STATES);
}
