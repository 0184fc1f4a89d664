//! A coordinator that was started again, and members that missed what was said.

use std::time::Duration;

use lockstep_elastic::{
    Hello, Message, Outcome, Record, Report,
    coordinator::{Command, Config, Connection, DEAD_AFTER, DESERTED_AFTER, Event, JOIN_WINDOW, RETURN_LIMIT, Stage},
};

use super::{
    CLOSED, Table, asked, change, committed, end, finished, is_committed, leave, original, replacement, returning,
    sent, state,
};
use crate::given::{NOTHING, config, hello, ms, pod};

/// A coordinator that finds generation 1 of this many members, of which `least` are needed, in the record.
fn restarted(members: usize, least: usize) -> Table {
    let record = Table::running(members, least).record();
    Table::with(Config { least, ..config(members) }, Some(record))
}

#[test]
fn running_members_are_taken_back_without_a_new_generation() {
    let mut table = restarted(2, 2);
    for member in 0..2 {
        let commands = table.greets(member, returning(member as usize, 1, false));
        assert_eq!((committed(&commands).0, committed(&commands).1.generation), (vec![member], 1));
    }
    assert_eq!(table.stage(), Stage::Running);
    assert_eq!(table.wait(RETURN_LIMIT * 2, &[0, 1]), []);
    table.says(0, finished(1, b"model"));
    assert!(matches!(end(&table.says(1, finished(1, b"model"))), Some(Outcome::Finished { .. })));
    assert!(table.stored.iter().all(|record| record.alloc_generation == 1), "no new generation");
}

#[test]
fn a_member_that_does_not_return_is_lost_after_a_while() {
    let mut table = restarted(3, 2);
    table.greets(0, returning(0, 1, false));
    table.greets(2, returning(2, 1, false));
    assert_eq!(table.wait(RETURN_LIMIT - ms(500), &[0, 2]), []);
    assert_eq!(asked(&table.wait(ms(1000), &[0, 2])), [(0, 2, false), (2, 2, false)]);
    table.reports(0, Some(1), state(5));
    let commands = table.reports(2, Some(1), state(5));
    assert_eq!(change(&commands).lost, [(pod(1), "it is not connected".to_owned())]);
    assert_eq!(change(&commands).joined, Vec::<String>::new());
}

/// A coordinator that has heard none of its members for so long that it dropped them all.
fn cut_off(members: usize, least: usize) -> Table {
    let mut table = Table::running(members, least);
    let alive: Vec<u64> = (1..members as u64).collect();
    table.wait(ms(500), &alive);
    let commands = table.wait(DEAD_AFTER + ms(500), &[]);
    let closed = |member| commands.contains(&Command::Close(Connection(member)));
    assert!((0..members as u64).all(closed) && asked(&commands).is_empty(), "{commands:?}");
    table
}

#[test]
fn a_coordinator_that_was_cut_off_takes_back_the_group_that_trains() {
    let mut table = cut_off(3, 1);
    for (connection, member) in [(11, 1), (10, 0), (12, 2)] {
        assert_eq!(committed(&table.greets(connection, returning(member, 1, false))).1.generation, 1);
    }
    assert_eq!(table.stage(), Stage::Running);
    assert_eq!(table.wait(RETURN_LIMIT * 2, &[10, 11, 12]), []);
    assert!(table.stored.iter().all(|record| record.alloc_generation == 1), "no new generation");
}

#[test]
fn a_coordinator_that_heard_nobody_for_long_makes_room_for_one_that_may() {
    let deserted = |mut table: Table| {
        let waited = table.wait(DESERTED_AFTER - ms(1000), &[]);
        assert_eq!((end(&waited), asked(&waited)), (None, vec![]));
        assert_eq!(end(&table.wait(ms(1500), &[])), Some(&Outcome::Deserted));
    };
    deserted(cut_off(3, 1));
    let mut closed = Table::running(1, 1);
    closed.closes(0);
    deserted(closed);

    let mut found_again = cut_off(2, 1);
    found_again.wait(DESERTED_AFTER - ms(1000), &[]);
    found_again.greets(10, returning(0, 1, false));
    assert_eq!(end(&found_again.wait(DESERTED_AFTER * 2, &[10])), None);

    let mut never_visited = restarted(2, 1);
    assert_eq!(never_visited.wait(DESERTED_AFTER * 2, &[]), [], "they may have yet to be started");
}

#[test]
fn who_is_silent_is_not_lost_while_nobody_is_heard() {
    let mut table = Table::running(3, 1);
    table.wait(Duration::from_secs(1), &[0, 2]);
    // Of member 1 nothing was heard for 2.6 s, of the others for 1.6 s.
    assert_eq!(table.wait(ms(1600), &[]), []);
    assert_eq!(asked(&table.wait(ms(100), &[0, 2])), [(0, 2, false), (2, 2, false)], "others are heard again");
}

#[test]
fn of_a_group_that_a_coordinator_lost_sight_of_whoever_was_replaced_is_told() {
    let mut table = cut_off(2, 1);
    table.greets(10, returning(0, 1, true));
    assert_eq!(asked(&table.greets(11, replacement(1))), [(10, 2, false), (11, 2, false)]);
    table.reports(10, Some(1), state(5));
    let change = change(&table.reports(11, None, NOTHING));
    assert_eq!(change.lost, [(pod(1), "a new process took its place".to_owned())]);
}

#[test]
fn a_member_that_was_replaced_meanwhile_is_lost_although_another_has_not_returned_yet() {
    let mut table = restarted(3, 2);
    table.greets(12, replacement(2));
    let commands = table.greets(1, returning(1, 1, false));
    assert_eq!(asked(&commands), [(1, 2, false), (12, 2, false)]);
}

#[test]
fn nobody_is_let_in_before_all_have_returned() {
    let record = Table::running(2, 2).record();
    let mut table = Table::with(Config { replicas: 2, least: 2, ..config(3) }, Some(record));
    table.greets(0, returning(0, 1, false));
    table.greets(2, original(2));
    assert_eq!(table.wait(JOIN_WINDOW * 4, &[0, 2]), []);
    table.greets(1, returning(1, 1, false));
    table.says(2, Message::CaughtUp { generation: 1, unreached: None });
    let commands = table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2]);
    assert_eq!(asked(&commands), [(0, 2, true), (1, 2, true), (2, 2, true)]);
}

#[test]
fn nobody_drains_because_others_have_not_returned_yet() {
    let mut table = restarted(3, 2);
    table.greets(0, returning(0, 1, false));
    table.greets(1, returning(1, 1, false));
    assert_eq!(table.says(1, leave()), []);
    table.greets(2, returning(2, 1, false));
    assert_eq!(asked(&table.wait(JOIN_WINDOW * 2, &[0, 1, 2])).len(), 3);
}

#[test]
fn one_that_stands_still_needs_a_new_generation() {
    for order in [[0, 1], [1, 0]] {
        let mut table = restarted(2, 2);
        let mut commands = Vec::new();
        for member in order {
            commands = table.greets(member, returning(member as usize, 1, member == 1));
        }
        assert_eq!(asked(&commands), [(0, 2, false), (1, 2, false)], "in the order {order:?}");
        table.reports(1, Some(1), state(5));
        let commands = table.reports(0, Some(1), state(6));
        assert_eq!(committed(&commands).1.base_step, 6);
        assert_eq!(change(&commands).broken.as_deref(), Some("x-worker-1 stands still"));
    }
}

#[test]
fn members_that_all_stand_are_gathered_and_go_on_where_they_were() {
    for (missing, waited, forms) in
        [(None, ms(0), true), (Some(2), RETURN_LIMIT - ms(500), false), (Some(2), RETURN_LIMIT + ms(500), true)]
    {
        let mut table = restarted(3, 2);
        let here: Vec<u64> = (0..3).filter(|member| Some(*member as usize) != missing).collect();
        let mut commands: Vec<_> =
            here.iter().flat_map(|member| table.greets(*member, returning(*member as usize, 1, true))).collect();
        commands.extend(table.wait(waited, &here));
        assert_eq!(!asked(&commands).is_empty(), forms, "without {missing:?} after {waited:?}");
        if forms {
            let commands: Vec<_> = here.iter().flat_map(|member| table.reports(*member, Some(1), state(5))).collect();
            let (connections, active) = committed(&commands);
            assert_eq!((connections, active.base_step, active.rollback), (here, 5, false));
            assert_eq!(change(&commands).joined, Vec::<String>::new(), "they belonged to the one before");
            let lost: Vec<_> = missing.iter().map(|gone| (pod(*gone), "it did not come back".to_owned())).collect();
            assert_eq!(change(&commands).lost, lost);
        }
    }
}

#[test]
fn new_processes_alone_wait_for_those_that_hold_the_last_steps() {
    let mut table = restarted(3, 1);
    table.greets(10, replacement(0));
    table.greets(1, returning(1, 1, true));
    assert_eq!(asked(&table.wait(RETURN_LIMIT / 2, &[1, 10])), []);
    assert_eq!(asked(&table.greets(2, returning(2, 1, true))), [(1, 2, false), (2, 2, false), (10, 2, false)]);
}

#[test]
fn those_that_hold_the_last_steps_and_did_not_return_are_not_waited_for_twice() {
    let mut table = restarted(2, 1);
    table.greets(10, replacement(0));
    assert_eq!(asked(&table.wait(RETURN_LIMIT + ms(500), &[10])), [(10, 2, false)]);
    assert_eq!(committed(&table.reports(10, None, state(4))).1.base_step, 4);
}

/// The record after generation 2 of members 0 and 1 was allocated, and after it was agreed at step 5.
fn killed_while_changing() -> (Record, Record) {
    let mut table = Table::running(3, 2);
    table.closes(2);
    let allocated = table.record();
    table.reports(0, Some(1), state(5));
    table.reports(1, Some(1), state(4));
    (allocated, table.record())
}

#[test]
fn a_change_whose_coordinator_died_after_it_asked_is_done_again_by_the_next() {
    type Situation = (&'static str, [bool; 2]);
    let situations: [Situation; 3] =
        [("one sealed", [true, false]), ("the other sealed", [false, true]), ("both sealed", [true, true])];
    for (situation, stand) in situations {
        let mut table = Table::with(Config { least: 2, ..config(3) }, Some(killed_while_changing().0));
        let mut commands = Vec::new();
        for (member, stands) in (0..).zip(stand) {
            commands.extend(table.greets(member, returning(member as usize, 1, stands)));
        }
        commands.extend(table.greets(12, replacement(2)));
        assert_eq!(asked(&commands), [(0, 3, false), (1, 3, false), (12, 3, false)], "{situation}");
        table.reports(0, Some(1), state(5));
        table.reports(1, Some(1), state(4));
        let (_, active) = committed(&table.reports(12, None, NOTHING));
        assert_eq!((active.generation, active.base_step, active.sources), (3, 5, vec![0]), "{situation}");
    }
}

#[test]
fn a_membership_that_was_recorded_and_never_told_is_followed_by_another() {
    let mut table = Table::with(Config { least: 2, ..config(3) }, Some(killed_while_changing().1));
    table.greets(0, returning(0, 1, true));
    assert_eq!(asked(&table.greets(1, returning(1, 1, true))), [(0, 3, false), (1, 3, false)]);
    table.reports(1, Some(1), state(4));
    let (_, active) = committed(&table.reports(0, Some(1), state(5)));
    assert_eq!((active.generation, active.base_step, active.sources), (3, 5, vec![0]));
    assert!(!active.rollback);
}

#[test]
fn a_membership_that_was_told_to_some_is_told_to_the_others() {
    let record = killed_while_changing().1;
    let mut table = Table::with(Config { least: 2, ..config(3) }, Some(record));
    table.greets(0, returning(0, 2, false));
    let commands = table.greets(1, returning(1, 1, true));
    assert_eq!((committed(&commands).0, committed(&commands).1.generation), (vec![1], 2));
    assert!(table.stored.is_empty(), "no new generation");
}

#[test]
fn a_member_that_missed_its_commit_gets_it_again() {
    let report = Report { generation: 1, entered_generation: None, followed: false, state: Some(NOTHING) };
    let never_committed = original(1);
    for (how, connection, message) in [
        ("by its report", 1, Message::Report(report)),
        ("by a hello on the same connection", 1, Message::Hello(never_committed.clone())),
        ("by a hello on another connection", 7, Message::Hello(never_committed)),
    ] {
        let mut table = Table::running(2, 1);
        let commands = table.says(connection, message);
        assert_eq!((committed(&commands).0, asked(&commands)), (vec![connection], vec![]), "{how}");
    }
}

#[test]
fn a_member_that_stands_for_a_generation_that_never_came_needs_a_new_one() {
    let mut table = restarted(2, 2);
    for member in 0..2 {
        table.greets(member, returning(member as usize, 1, false));
    }
    let report = Report { generation: 2, entered_generation: Some(1), followed: false, state: Some(state(5)) };
    assert_eq!(asked(&table.says(1, Message::Report(report))), [(0, 2, false), (1, 2, false)]);
}

#[test]
fn a_member_that_only_lost_its_connection_keeps_its_seat() {
    let mut table = Table::running(2, 2);
    let commands = table.greets(7, returning(1, 1, false));
    assert_eq!((committed(&commands).0, sent(&commands, 0)), (vec![7], vec![]));
    assert_eq!(table.closes(1), [], "the old connection is of no interest");
    assert_eq!(table.wait(RETURN_LIMIT, &[0, 7]), []);
}

#[test]
fn a_member_that_lost_its_connection_while_it_sealed_is_asked_again() {
    let mut table = Table::running(3, 2);
    table.closes(2);
    assert_eq!(asked(&table.greets(7, returning(1, 1, false))), [(7, 2, false)]);
    table.reports(0, Some(1), state(5));
    assert!(is_committed(&table.reports(7, Some(1), state(5))));
}

#[test]
fn a_coordinator_that_lost_the_swap_gives_up_without_stopping_the_training() {
    let mut table = Table::running(2, 2);
    let commands = table.handle(Event::Conflict);
    assert_eq!(end(&commands), Some(&Outcome::Superseded));
    assert!(sent(&commands, 0).is_empty(), "{commands:?}");
    assert!(table.says(0, Message::Heartbeat).is_empty(), "nothing happens after the end");
}

#[test]
fn what_was_told_before_is_not_told_again_as_joined() {
    let mut table = restarted(2, 1);
    table.greets(0, Hello { stands: false, ..returning(0, 1, false) });
    table.greets(1, returning(1, 1, false));
    table.closes(1);
    let commands = table.reports(0, Some(1), state(5));
    assert_eq!((change(&commands).joined, change(&commands).lost), (vec![], vec![(pod(1), CLOSED.into())]));
}

#[test]
fn a_coordinator_that_allocated_and_hears_of_a_group_under_that_number_knows_that_another_one_formed_it() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    assert_eq!(table.record().alloc_generation, 2);
    assert_eq!(end(&table.greets(7, returning(1, 2, false))), Some(&Outcome::Superseded));
}

/// What a process is told that comes over connection `7`, if it is sent away.
fn sent_away(commands: &[Command]) -> bool {
    commands.contains(&Command::Close(Connection(7)))
        && matches!(sent(commands, 7).as_slice(), [Message::Abort { reason }] if reason.contains("took its place"))
}

#[test]
fn a_process_that_was_cut_off_does_not_take_the_place_of_the_one_that_follows_it() {
    let mut table = Table::running(3, 1);
    table.closes(2);
    table.reports(0, Some(1), state(7));
    table.reports(1, Some(1), state(7));
    table.greets(12, replacement(2));
    assert!(sent_away(&table.greets(7, returning(2, 1, false))), "the new one is connected");
    table.joins(12, replacement(2));
    table.wait(JOIN_WINDOW + ms(500), &[0, 1, 12]);
    for (connection, entered) in [(0, Some(2)), (1, Some(2)), (12, None)] {
        table.reports(connection, entered, state(9));
    }
    assert_eq!((table.record().active.expect("a group").members.len(), table.stage()), (3, Stage::Running));
    for stands in [false, true] {
        assert!(sent_away(&table.greets(7, returning(2, 1, stands))), "the new one trains");
    }
    assert_eq!(table.stage(), Stage::Running);
}

#[test]
fn another_coordinator_knows_from_the_record_whose_place_was_taken() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    table.reports(0, Some(1), state(7));
    table.joins(11, replacement(1));
    table.wait(JOIN_WINDOW + ms(500), &[0, 11]);
    table.reports(0, Some(2), state(9));
    table.reports(11, None, state(9));
    assert_eq!(table.record().active.expect("a group").generation, 3);
    let mut later = Table::with(Config { name: "later".into(), ..config(2) }, Some(table.record()));
    assert!(sent_away(&later.greets(7, returning(1, 1, false))));
}

#[test]
fn a_process_that_never_trained_takes_back_no_place_either() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    table.reports(0, Some(1), state(7));
    table.greets(11, replacement(1));
    table.greets(21, hello(1, 300));
    assert!(sent_away(&table.greets(7, replacement(1))));
    assert_eq!(table.stage(), Stage::Running);
}
