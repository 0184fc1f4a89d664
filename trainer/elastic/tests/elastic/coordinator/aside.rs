//! Members that reach the coordinator but not each other.

use std::time::Duration;

use lockstep_collective::{Loss, Origin, Position};
use lockstep_elastic::{Break, Message, coordinator::Command};

use super::{Table, asked, change, committed, sent, state};
use crate::given::{ms, pod};

const SECOND: Duration = Duration::from_secs(1);

fn did_not_reach(generation: u64, rank: u32) -> Message {
    Message::Broken { generation, broken: Break { unreached: Some(rank), ..Break::from("not formed") } }
}

/// The first and the last of three did not reach each other, and all were asked anew.
fn again(table: &mut Table, generation: u64) -> Vec<Command> {
    let mut commands = table.says(0, did_not_reach(generation, 2));
    commands.extend(table.says(2, did_not_reach(generation, 0)));
    commands.extend(table.wait(SECOND, &[0, 1, 2]));
    commands
}

/// All three hold step 5, and form the next generation.
fn all_report(table: &mut Table) {
    for member in 0..3 {
        table.reports(member, Some(1), state(5));
    }
}

/// Generation 3 trains without the last of three.
fn without_the_last() -> Table {
    let mut table = Table::running(3, 2);
    assert_eq!(
        asked(&again(&mut table, 1)),
        [(0, 2, false), (1, 2, false), (2, 2, false)],
        "it may have been a moment"
    );
    all_report(&mut table);
    assert_eq!(asked(&again(&mut table, 2)), [(0, 3, false), (1, 3, false)]);
    table.reports(0, Some(1), state(5));
    let commands = table.reports(1, Some(1), state(5));
    assert_eq!(committed(&commands).0, [0, 1]);
    let lost = change(&commands).lost;
    assert_eq!(lost, [(pod(2), format!("it and {} do not reach each other", pod(0)))]);
    table
}

#[test]
fn of_two_that_did_not_reach_each_other_twice_one_stands_aside() {
    without_the_last();
}

/// Of a step, nothing came from one rank to another, which told so, and all were asked anew.
fn silent(table: &mut Table, generation: u64, from: u32, to: u32) -> Vec<Command> {
    let position = Position { operation: 0, step: 6, bucket: 0, hop: 1, from, to, hops: 4 };
    let origin = Some(Origin { position, rank: from as usize, loss: Loss::Silent });
    let broken = Break { origin, ..Break::from("nothing came") };
    let mut commands = table.says(u64::from(to), Message::Broken { generation, broken });
    commands.extend(table.wait(SECOND, &[0, 1, 2]));
    commands
}

#[test]
fn of_two_between_which_nothing_came_twice_one_stands_aside() {
    let mut table = Table::running(3, 2);
    assert_eq!(asked(&silent(&mut table, 1, 0, 2)).len(), 3, "it may have been a pause");
    all_report(&mut table);
    assert_eq!(asked(&silent(&mut table, 2, 0, 2)), [(0, 3, false), (1, 3, false)]);
    table.reports(0, Some(1), state(5));
    let lost = change(&table.reports(1, Some(1), state(5))).lost.clone();
    assert_eq!(lost, [(pod(2), format!("it and {} do not reach each other", pod(0)))]);
}

#[test]
fn a_step_between_two_silences_shows_that_the_line_carries() {
    let mut table = Table::running(3, 2);
    silent(&mut table, 1, 0, 2);
    all_report(&mut table);
    table.says(0, Message::Progress { step: 6, payload: Vec::new() });
    assert_eq!(asked(&silent(&mut table, 2, 0, 2)).len(), 3);
}

#[test]
fn whoever_waited_for_two_without_a_line_between_them_is_not_held_to_lack_one() {
    let mut table = Table::running(3, 2);
    silent(&mut table, 1, 1, 0);
    all_report(&mut table);
    table.says(1, did_not_reach(2, 2));
    table.says(2, did_not_reach(2, 1));
    assert_eq!(asked(&table.wait(SECOND, &[0, 1, 2])), [(0, 3, false), (1, 3, false)]);
    table.reports(0, Some(1), state(5));
    let lost = change(&table.reports(1, Some(1), state(5))).lost.clone();
    assert_eq!(lost, [(pod(2), format!("it and {} do not reach each other", pod(1)))]);
}

#[test]
fn whoever_reaches_nobody_stands_aside_once_two_have_heard_nothing_of_it() {
    let mut table = Table::running(3, 1);
    silent(&mut table, 1, 0, 2);
    all_report(&mut table);
    assert_eq!(asked(&silent(&mut table, 2, 0, 2)), [(0, 3, false), (1, 3, false)]);
    table.reports(0, Some(1), state(5));
    table.reports(1, Some(1), state(5));
    assert_eq!(asked(&silent(&mut table, 3, 0, 1)), [(1, 4, false)]);
}

#[test]
fn whoever_stands_aside_is_let_in_as_a_newcomer_after_a_while() {
    let mut table = without_the_last();
    assert_eq!(sent(&table.wait(8 * SECOND, &[0, 1, 2]), 2), Vec::<&Message>::new());
    let commands = table.wait(2 * SECOND, &[0, 1, 2]);
    assert!(!sent(&commands, 2).is_empty(), "it is to follow");
    let mut commands = table.says(2, Message::CaughtUp { generation: 3, unreached: None });
    commands.extend(table.wait(SECOND, &[0, 1, 2]));
    assert_eq!(asked(&commands), [(0, 4, true), (1, 4, true), (2, 4, true)]);
}

#[test]
fn whoever_cannot_follow_for_want_of_a_line_stays_aside_and_is_told_to_follow_again() {
    let mut table = without_the_last();
    for _ in 0..3 {
        assert!(!sent(&table.wait(10 * SECOND, &[0, 1, 2]), 2).is_empty(), "it is to follow");
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
fn whoever_has_yet_to_show_that_it_reaches_all_does_not_hold_up_a_change() {
    let mut table = without_the_last();
    assert!(!sent(&table.wait(11 * SECOND, &[0, 1, 2]), 2).is_empty(), "it is to follow");
    table.greets(10, super::replacement(0));
    let mut commands = table.wait(ms(200), &[1, 2, 10]);
    assert_eq!(asked(&commands), []);
    commands = table.reports(1, Some(3), state(6));
    commands.extend(table.reports(10, None, state(0)));
    assert_eq!(committed(&commands).0, [10, 1], "without the one that follows");
    commands.extend(table.wait(ms(200), &[1, 2, 10]));
    assert_eq!(sent(&commands, 2), [&Message::Stand { generation: 4 }], "it is to follow the next group");
}

#[test]
fn a_newcomer_without_a_line_to_all_is_not_let_in_either() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    table.reports(0, Some(1), state(5));
    table.greets(11, super::replacement(1));
    table.wait(ms(200), &[0, 11]);
    let mut commands = table.says(11, Message::CaughtUp { generation: 2, unreached: Some(0) });
    commands.extend(table.wait(9 * SECOND, &[0, 11]));
    assert_eq!(asked(&commands), []);
    assert!(!sent(&table.wait(2 * SECOND, &[0, 11]), 11).is_empty(), "it is to follow again");
}

#[test]
fn whoever_is_not_reached_again_stands_aside_at_once_and_for_twice_as_long() {
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
fn nobody_stands_aside_whom_the_group_cannot_do_without() {
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
fn a_new_process_does_not_stand_aside_for_the_one_before() {
    let mut table = without_the_last();
    table.closes(2);
    let commands = table.greets(12, super::replacement(2));
    let followed = table.wait(ms(200), &[0, 1, 12]);
    assert!(sent(&commands, 12).len() + sent(&followed, 12).len() > 0, "it is to follow at once");
}

#[test]
fn whoever_alone_holds_the_state_does_not_stand_aside() {
    let mut table = Table::running(2, 1);
    table.closes(0);
    table.greets(10, super::replacement(0));
    table.reports(10, None, state(2));
    assert_eq!(committed(&table.reports(1, Some(1), state(5))).1.sources, [1]);
    let mut commands = table.says(10, did_not_reach(2, 1));
    commands.extend(table.wait(SECOND, &[1, 10]));
    assert_eq!(asked(&commands), [(1, 3, false)], "the one that has yet to copy stands aside");
}

#[test]
fn whoever_stands_aside_is_called_back_where_the_others_are_too_few() {
    let mut table = without_the_last();
    let mut commands = table.closes(0);
    commands.extend(table.wait(ms(200), &[1, 2]));
    assert_eq!(asked(&commands), [(1, 4, false), (2, 4, false)]);
}
