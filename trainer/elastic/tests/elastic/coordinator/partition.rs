//! Members that reach the coordinator but not each other.

use std::time::Duration;

use lockstep_collective::{ErrorSite, Origin, PeerFault};
use lockstep_elastic::{Break, Message, coordinator::Command};

use super::{Table, asked, change, committed, sent, state};
use crate::fixtures::{ms, pod};

const SECOND: Duration = Duration::from_secs(1);

fn unreached(generation: u64, rank: u32) -> Message {
    Message::Broken { generation, broken: Break { unreached: Some(rank), ..Break::from("not formed") } }
}

/// Reports that the first and the last of three members are not connected, and returns the next
/// requests.
fn again(table: &mut Table, generation: u64) -> Vec<Command> {
    let mut commands = table.says(0, unreached(generation, 2));
    commands.extend(table.says(2, unreached(generation, 0)));
    commands.extend(table.wait(SECOND, &[0, 1, 2]));
    commands
}

/// Reports step 5 for all three members, which form the next generation.
fn all_report(table: &mut Table) {
    for member in 0..3 {
        table.reports(member, Some(1), state(5));
    }
}

/// Returns a table whose generation 3 trains without the last of three members.
fn without_the_last() -> Table {
    let mut table = Table::running(3, 2);
    assert_eq!(
        asked(&again(&mut table, 1)),
        [(0, 2, false), (1, 2, false), (2, 2, false)],
        "the first failure may have been temporary"
    );
    all_report(&mut table);
    assert_eq!(asked(&again(&mut table, 2)), [(0, 3, false), (1, 3, false)]);
    table.reports(0, Some(1), state(5));
    let commands = table.reports(1, Some(1), state(5));
    assert_eq!(committed(&commands).0, [0, 1]);
    let lost = change(&commands).lost;
    assert_eq!(lost, [(pod(2), format!("it and {} cannot reach each other", pod(0)))]);
    table
}

#[test]
fn one_member_of_a_pair_that_failed_to_connect_twice_is_excluded() {
    without_the_last();
}

/// Reports that nothing arrived from one rank at another during a step, and returns the next
/// requests.
fn silent(table: &mut Table, generation: u64, from: u32, to: u32) -> Vec<Command> {
    let site = ErrorSite { operation: 0, step: 6, bucket: 0, hop: 1, from, to, hops: 4 };
    let origin = Some(Origin { site, rank: from as usize, fault: PeerFault::Silent });
    let broken = Break { origin, ..Break::from("nothing arrived") };
    let mut commands = table.says(u64::from(to), Message::Broken { generation, broken });
    commands.extend(table.wait(SECOND, &[0, 1, 2]));
    commands
}

#[test]
fn one_member_of_a_pair_that_was_silent_twice_is_excluded() {
    let mut table = Table::running(3, 2);
    assert_eq!(asked(&silent(&mut table, 1, 0, 2)).len(), 3, "it may have been a pause");
    all_report(&mut table);
    assert_eq!(asked(&silent(&mut table, 2, 0, 2)), [(0, 3, false), (1, 3, false)]);
    table.reports(0, Some(1), state(5));
    let lost = change(&table.reports(1, Some(1), state(5))).lost.clone();
    assert_eq!(lost, [(pod(2), format!("it and {} cannot reach each other", pod(0)))]);
}

#[test]
fn a_step_between_two_silences_proves_the_connection() {
    let mut table = Table::running(3, 2);
    silent(&mut table, 1, 0, 2);
    all_report(&mut table);
    table.says(0, Message::Progress { step: 6, payload: Vec::new() });
    assert_eq!(asked(&silent(&mut table, 2, 0, 2)).len(), 3);
}

#[test]
fn a_member_that_waited_for_an_unconnected_pair_is_not_blamed() {
    let mut table = Table::running(3, 2);
    silent(&mut table, 1, 1, 0);
    all_report(&mut table);
    table.says(1, unreached(2, 2));
    table.says(2, unreached(2, 1));
    assert_eq!(asked(&table.wait(SECOND, &[0, 1, 2])), [(0, 3, false), (1, 3, false)]);
    table.reports(0, Some(1), state(5));
    let lost = change(&table.reports(1, Some(1), state(5))).lost.clone();
    assert_eq!(lost, [(pod(2), format!("it and {} cannot reach each other", pod(1)))]);
}

#[test]
fn a_member_that_two_others_never_heard_is_excluded() {
    let mut table = Table::running(3, 1);
    silent(&mut table, 1, 0, 2);
    all_report(&mut table);
    assert_eq!(asked(&silent(&mut table, 2, 0, 2)), [(0, 3, false), (1, 3, false)]);
    table.reports(0, Some(1), state(5));
    table.reports(1, Some(1), state(5));
    assert_eq!(asked(&silent(&mut table, 3, 0, 1)), [(1, 4, false)]);
}

#[test]
fn an_excluded_member_returns_later_as_a_newcomer() {
    let mut table = without_the_last();
    assert_eq!(sent(&table.wait(8 * SECOND, &[0, 1, 2]), 2), Vec::<&Message>::new());
    let commands = table.wait(2 * SECOND, &[0, 1, 2]);
    assert!(!sent(&commands, 2).is_empty(), "it is told to follow");
    let mut commands = table.says(2, Message::CaughtUp { generation: 3, unreached: None });
    commands.extend(table.wait(SECOND, &[0, 1, 2]));
    assert_eq!(asked(&commands), [(0, 4, true), (1, 4, true), (2, 4, true)]);
}

#[test]
fn an_unconnected_follower_stays_excluded_and_is_told_to_follow_again() {
    let mut table = without_the_last();
    for _ in 0..3 {
        assert!(!sent(&table.wait(10 * SECOND, &[0, 1, 2]), 2).is_empty(), "it is told to follow");
        let mut commands = table.says(2, Message::CaughtUp { generation: 3, unreached: Some(0) });
        commands.extend(table.wait(9 * SECOND, &[0, 1, 2]));
        assert_eq!(sent(&commands, 2), Vec::<&Message>::new());
        assert_eq!(asked(&commands), [], "the group goes on without a change");
    }
    table.wait(2 * SECOND, &[0, 1, 2]);
    let mut commands = table.says(2, Message::CaughtUp { generation: 3, unreached: None });
    commands.extend(table.wait(SECOND, &[0, 1, 2]));
    assert_eq!(asked(&commands), [(0, 4, true), (1, 4, true), (2, 4, true)]);
}

#[test]
fn a_follower_without_proven_connections_does_not_delay_a_change() {
    let mut table = without_the_last();
    assert!(!sent(&table.wait(11 * SECOND, &[0, 1, 2]), 2).is_empty(), "it is told to follow");
    table.greets(10, super::replacement(0));
    let mut commands = table.wait(ms(200), &[1, 2, 10]);
    assert_eq!(asked(&commands), []);
    commands = table.reports(1, Some(3), state(6));
    commands.extend(table.reports(10, None, state(0)));
    assert_eq!(committed(&commands).0, [10, 1], "without the follower");
    commands.extend(table.wait(ms(200), &[1, 2, 10]));
    assert_eq!(sent(&commands, 2), [&Message::Seal { generation: 4 }], "it is told to follow the next group");
}

#[test]
fn a_newcomer_without_a_connection_to_all_members_is_not_let_in() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    table.reports(0, Some(1), state(5));
    table.greets(11, super::replacement(1));
    table.wait(ms(200), &[0, 11]);
    let mut commands = table.says(11, Message::CaughtUp { generation: 2, unreached: Some(0) });
    commands.extend(table.wait(9 * SECOND, &[0, 11]));
    assert_eq!(asked(&commands), []);
    assert!(!sent(&table.wait(2 * SECOND, &[0, 11]), 11).is_empty(), "it is told to follow again");
}

#[test]
fn a_second_exclusion_is_immediate_and_twice_as_long() {
    let mut table = without_the_last();
    table.wait(10 * SECOND, &[0, 1, 2]);
    table.says(2, Message::CaughtUp { generation: 3, unreached: None });
    table.wait(SECOND, &[0, 1, 2]);
    for member in 0..3 {
        table.reports(member, Some(3), state(5));
    }
    assert_eq!(asked(&again(&mut table, 4)), [(0, 5, false), (1, 5, false)]);
    table.reports(0, Some(3), state(5));
    assert_eq!(committed(&table.reports(1, Some(3), state(5))).0, [0, 1]);
    assert_eq!(sent(&table.wait(18 * SECOND, &[0, 1, 2]), 2), Vec::<&Message>::new());
    assert!(!sent(&table.wait(2 * SECOND, &[0, 1, 2]), 2).is_empty());
}

#[test]
fn a_member_that_the_group_needs_is_not_excluded() {
    let mut table = Table::running(3, 3);
    for generation in 1..5 {
        let next = generation + 1;
        let mut commands = again(&mut table, generation);
        commands.extend(table.wait(3 * SECOND, &[0, 1, 2]));
        assert_eq!(asked(&commands), [(0, next, false), (1, next, false), (2, next, false)]);
        for member in 0..3 {
            table.reports(member, Some(1), state(5));
        }
    }
}

#[test]
fn an_exclusion_does_not_apply_to_a_new_process_of_the_pod() {
    let mut table = without_the_last();
    table.closes(2);
    let commands = table.greets(12, super::replacement(2));
    let followed = table.wait(ms(200), &[0, 1, 12]);
    assert!(sent(&commands, 12).len() + sent(&followed, 12).len() > 0, "it is told to follow at once");
}

#[test]
fn the_only_holder_of_the_state_is_not_excluded() {
    let mut table = Table::running(2, 1);
    table.closes(0);
    table.greets(10, super::replacement(0));
    table.reports(10, None, state(2));
    assert_eq!(committed(&table.reports(1, Some(1), state(5))).1.sources, [1]);
    let mut commands = table.says(10, unreached(2, 1));
    commands.extend(table.wait(SECOND, &[1, 10]));
    assert_eq!(asked(&commands), [(1, 3, false)], "the member without the state is excluded");
}

#[test]
fn an_excluded_member_is_readmitted_if_the_others_are_too_few() {
    let mut table = without_the_last();
    let mut commands = table.closes(0);
    commands.extend(table.wait(ms(200), &[1, 2]));
    assert_eq!(asked(&commands), [(1, 4, false), (2, 4, false)]);
}
