//! Every interleaving, within stated bounds, of the product's own transition functions: `Coordinator::handle` and `Member::handle`.
//!
//! Workers that form generation 1, coordinators of which two may live at a time, and a store that swaps or refuses. Messages are a set
//! that only grows: each may be delivered at any time, again, or never, as long as its connection is open. A coordinator that does
//! nothing any more is one that died. Bounded are the processes that die (each comes back as a new one), the connections that break
//! and are made anew to any coordinator, the generations, the steps, and where it says so the transitions from the beginning. Time
//! stands still, or makes one leap by which everything that is waited for comes due.
//!
//! The rules: no step that anybody was told of is missing where a generation begins, unless its record says so and nobody alive holds
//! it; no step is told in two forms; inside a generation two members differ by one step at most.

mod explore;
mod job;
mod machines;
mod part;
mod rules;
mod worker;

use std::time::Instant;

use explore::{Found, explore};
use job::{Bounds, Job};
use rules::Mutant;

const MAX_STATES: usize = 20_000_000;
const NO_LIMIT: u32 = u32::MAX;

/// One process dies among three, and comes back; one coordinator.
const DEATH: Bounds =
    Bounds { workers: 3, kills: 1, moves: 0, coordinators: 1, later: false, generations: 2, steps: 2 };
/// One process dies of two, comes back, and joins as planned.
const DEATH_AND_JOIN: Bounds =
    Bounds { workers: 2, kills: 1, moves: 0, coordinators: 1, later: true, generations: 3, steps: 2 };
/// Two coordinators, and a member that goes from one to the other, or returns.
const TWO_COORDINATORS: Bounds =
    Bounds { workers: 2, kills: 0, moves: 1, coordinators: 2, later: true, generations: 3, steps: 1 };
/// Everything at once.
const ALL: Bounds = Bounds { workers: 3, kills: 1, moves: 1, coordinators: 2, later: true, generations: 3, steps: 2 };

fn clean(bounds: Bounds, depth: u32, steps: u64) {
    let begun = Instant::now();
    let found = explore(Job::begin(bounds, None), depth, MAX_STATES);
    match found {
        Found::Clean { states, transitions, depth, told } => {
            let took = begun.elapsed();
            println!(
                "{bounds:?}\n  {states} states, {transitions} transitions, depth {depth}, {told} steps told, {took:.1?}"
            );
            assert!(told as u64 >= steps, "only {told} steps were reached");
        }
        Found::Violation { rule, path, .. } => panic!("{rule}\n{}", path.join("\n")),
        Found::TooMany { states, depth } => panic!("more than {states} states, complete up to depth {depth}"),
    }
}

fn caught(mutant: Mutant, bounds: Bounds) {
    match explore(Job::begin(bounds, Some(mutant)), NO_LIMIT, MAX_STATES) {
        Found::Violation { rule, states, path } => {
            println!("{mutant:?}: {rule}, after {} transitions, {states} states", path.len());
        }
        missed => panic!("{mutant:?} is not caught: {missed:?}"),
    }
}

#[test]
fn a_death_loses_no_step() {
    clean(DEATH, NO_LIMIT, 2);
}

#[test]
fn a_death_and_a_join_lose_no_step() {
    clean(DEATH_AND_JOIN, NO_LIMIT, 2);
}

#[test]
fn two_coordinators_lose_no_step() {
    clean(TWO_COORDINATORS, 23, 1);
}

#[test]
fn the_first_transitions_of_everything_at_once_lose_no_step() {
    clean(ALL, 8, 1);
}

#[test]
#[ignore = "minutes: cargo test --release -p lockstep-elastic --test model -- --ignored --nocapture"]
fn more_of_everything_loses_no_step() {
    clean(Bounds { generations: 3, later: true, ..DEATH }, 18, 2);
    clean(TWO_COORDINATORS, 27, 1);
    clean(ALL, 10, 1);
}

#[test]
fn every_rule_is_needed() {
    caught(Mutant::ReportsBeforeSealing, DEATH);
    caught(Mutant::ToldAtLocalCompletion, DEATH);
    caught(Mutant::KeepsItsIncarnation, DEATH);
    caught(Mutant::CountsEverybody, TWO_COORDINATORS);
    caught(Mutant::RecordsWithoutVersion, TWO_COORDINATORS);
    caught(Mutant::BaseInForeignHands, TWO_COORDINATORS);
}
