//! The product's own transition functions, `Coordinator::handle` and `Member::handle`, in every order within stated bounds.
//!
//! Workers that form generation 1, coordinators of which two may live at a time, and a store that swaps or refuses. Messages are a set
//! that only grows: each may be delivered at any time, again, or never, as long as its connection is open. A coordinator that does
//! nothing any more is one that died. Bounded are the processes that die (each comes back as a new one), the connections that break
//! and are made anew to any coordinator (one on which something overtakes the hello breaks, too), the generations, and the steps.
//! Time stands still, or makes one leap by which everything that is waited for comes due, where anything does.
//!
//! The rules: no step that anybody was told of is missing where a generation begins, unless its record says so and nobody alive holds
//! it; no step is told in two forms; inside a generation two members differ by one step at most; no coordinator meets different states.
//!
//! Visited is every state there is (*exhaustive*) or every one up to a number of transitions (*shallow*), apart from those that can do
//! no more than another: see `names`, `packet`, and `Job::actions`. Three workers with two coordinators, a death and a move are
//! exhaustive for two generations with one step, and shallow for three with two. Beyond that some paths are drawn by chance (*sampled*).
//! Nothing here leaves as planned, drains, saves or finishes: `tests/simulation` does.

mod explore;
mod job;
mod machines;
mod names;
mod packet;
mod part;
mod rules;
mod wander;
mod worker;

use std::time::Instant;

use explore::{Found, explore};
use job::{Bounds, Job};
use rules::Mutant;
use wander::{Wandered, wander};

/// Less than a kilobyte each.
const MAX_STATES: usize = 12_000_000;
const NO_LIMIT: u32 = u32::MAX;

/// One process dies among three, and comes back; one coordinator.
const DEATH: Bounds =
    Bounds { workers: 3, kills: 1, moves: 0, coordinators: 1, later: false, generations: 2, steps: 2, absent: false };
/// One process dies of two, comes back, and joins as planned.
const DEATH_AND_JOIN: Bounds = Bounds { workers: 2, later: true, generations: 3, ..DEATH };
/// Two coordinators, and a member that goes from one to the other, or returns.
const TWO_COORDINATORS: Bounds =
    Bounds { kills: 0, moves: 1, coordinators: 2, later: true, generations: 3, steps: 1, ..DEATH };
/// Everything at once.
const ALL: Bounds = Bounds { moves: 1, coordinators: 2, later: true, generations: 3, ..DEATH };
/// More of everything than can be visited.
const MORE: Bounds = Bounds { kills: 2, moves: 3, coordinators: 3, generations: 6, steps: 4, ..ALL };

fn clean(bounds: Bounds, depth: u32, steps: usize) {
    let begun = Instant::now();
    let found = explore(Job::begin(bounds, None), depth, MAX_STATES);
    match found {
        Found::Clean { states, transitions, depth, told } => {
            let took = begun.elapsed();
            println!(
                "{bounds:?}\n  {states} states, {transitions} transitions, depth {depth}, {told} steps told, {took:.1?}"
            );
            assert!(told >= steps, "only {told} steps were reached");
        }
        Found::Violation { rule, path, .. } => panic!("{rule}\n{}", path.join("\n")),
        Found::TooMany { states, depth } => panic!("more than {states} states, complete up to depth {depth}"),
    }
}

fn sampled(bounds: Bounds, paths: u64) {
    let begun = Instant::now();
    match wander(&Job::begin(bounds, None), 0..paths) {
        Wandered::Clean { transitions, came_far, told } => {
            let took = begun.elapsed();
            println!(
                "{bounds:?}\n  {paths} paths, {transitions} transitions, {came_far} came far, {told} steps told, {took:.1?}"
            );
            assert!(came_far > paths / 2, "only {came_far} of {paths} came far");
        }
        Wandered::Violation { rule, seed, path } => panic!("seed {seed}: {rule}\n{}", path.join("\n")),
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
fn a_death_and_a_broken_connection_lose_no_step() {
    clean(Bounds { moves: 1, ..DEATH_AND_JOIN }, NO_LIMIT, 2);
}

#[test]
fn two_coordinators_lose_no_step() {
    clean(TWO_COORDINATORS, NO_LIMIT, 1);
}

#[test]
fn the_first_transitions_of_everything_at_once_lose_no_step() {
    clean(ALL, 12, 2);
}

#[test]
fn long_paths_through_more_of_everything_lose_no_step() {
    sampled(ALL, 500);
    sampled(MORE, 1000);
}

#[test]
#[ignore = "minutes: cargo test --release -p lockstep-elastic --test model -- --ignored --nocapture"]
fn a_death_and_two_coordinators_lose_no_step() {
    clean(Bounds { generations: 2, steps: 1, ..ALL }, NO_LIMIT, 1);
    clean(ALL, 20, 2);
    sampled(ALL, 5_000);
    sampled(MORE, 5_000);
}

/// Alone with what it holds, and on its way from one connection to the next, while the others are replaced.
const ALONE: Bounds = Bounds { workers: 2, moves: 1, generations: 3, steps: 1, absent: true, ..DEATH };

#[test]
fn who_is_away_for_a_moment_while_all_others_are_replaced_loses_no_step() {
    clean(ALONE, NO_LIMIT, 1);
}

/// The limit of what the product promises: once those who may hold more were waited for in vain, what those who are connected hold is
/// taken, and the record says so.
#[test]
fn who_stays_away_while_nobody_else_is_left_may_lose_steps() {
    match explore(Job::begin(Bounds { later: true, ..ALONE }, None), NO_LIMIT, MAX_STATES) {
        Found::Violation { rule, path, .. } => println!("{rule}\n{}", path.join("\n")),
        Found::Clean { .. } | Found::TooMany { .. } => panic!("it loses none: let `absent` be true everywhere"),
    }
}

#[test]
fn every_rule_is_needed() {
    caught(Mutant::ReportsBeforeSealing, DEATH);
    caught(Mutant::ToldAtLocalCompletion, DEATH);
    caught(Mutant::KeepsItsIncarnation, DEATH);
    caught(Mutant::CountsEverybody, ALL);
    caught(Mutant::BaseInForeignHands, ALL);
    caught(Mutant::RecordsWithoutVersion, Bounds { workers: 2, moves: 2, ..TWO_COORDINATORS });
}

#[test]
#[ignore = "minutes: cargo test --release -p lockstep-elastic --test model -- --ignored --nocapture"]
fn every_rule_is_needed_by_three_workers_with_two_coordinators() {
    let bounds = Bounds { steps: 1, ..ALL };
    caught(Mutant::ReportsBeforeSealing, bounds);
    caught(Mutant::ToldAtLocalCompletion, bounds);
    caught(Mutant::KeepsItsIncarnation, bounds);
    caught(Mutant::CountsEverybody, bounds);
    caught(Mutant::BaseInForeignHands, bounds);
    caught(Mutant::RecordsWithoutVersion, bounds);
}
