//! A restarted coordinator, and members that missed messages.

use std::time::Duration;

use lockstep_elastic::{
    Hello, Message, Outcome, Record, SealReport,
    coordinator::{Command, Config, ConnectionId, DEAD_AFTER, DESERTED_AFTER, Event, JOIN_WINDOW, RETURN_LIMIT, Stage},
};

use super::{
    CLOSED, Table, asked, change, committed, end, finished, is_committed, leave, original, replacement, returning,
    sent, state,
};
use crate::fixtures::{NOTHING, config, hello, ms, pod};

/// Returns a coordinator that finds generation 1 with this many members in the record, of which the
/// group needs `least`.
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
fn a_member_that_does_not_return_in_time_is_lost() {
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

/// Returns a coordinator that dropped all its members because it heard none of them for too long.
fn cut_off(members: usize, least: usize) -> Table {
    let mut table = Table::running(members, least);
    let alive: Vec<u64> = (1..members as u64).collect();
    table.wait(ms(500), &alive);
    let commands = table.wait(DEAD_AFTER + ms(500), &[]);
    let closed = |member| commands.contains(&Command::Close(ConnectionId(member)));
    assert!((0..members as u64).all(closed) && asked(&commands).is_empty(), "{commands:?}");
    table
}

#[test]
fn an_isolated_coordinator_takes_back_the_group_that_trains() {
    let mut table = cut_off(3, 1);
    for (connection, member) in [(11, 1), (10, 0), (12, 2)] {
        assert_eq!(committed(&table.greets(connection, returning(member, 1, false))).1.generation, 1);
    }
    assert_eq!(table.stage(), Stage::Running);
    assert_eq!(table.wait(RETURN_LIMIT * 2, &[10, 11, 12]), []);
    assert!(table.stored.iter().all(|record| record.alloc_generation == 1), "no new generation");
}

#[test]
fn a_coordinator_that_hears_no_member_for_long_ends_for_another_one() {
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
    assert_eq!(never_visited.wait(DESERTED_AFTER * 2, &[]), [], "the members may not have started yet");
}

#[test]
fn a_silent_member_is_not_lost_while_all_are_silent() {
    let mut table = Table::running(3, 1);
    table.wait(Duration::from_secs(1), &[0, 2]);
    // The last heartbeat of member 1 is 2.6 s old, those of the others are 1.6 s old.
    assert_eq!(table.wait(ms(1600), &[]), []);
    assert_eq!(asked(&table.wait(ms(100), &[0, 2])), [(0, 2, false), (2, 2, false)], "others are heard again");
}

#[test]
fn an_isolated_coordinator_announces_the_member_that_was_replaced_meanwhile() {
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
fn no_newcomer_is_let_in_before_all_members_have_returned() {
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
fn members_that_have_not_returned_yet_cause_no_drain() {
    let mut table = restarted(3, 2);
    table.greets(0, returning(0, 1, false));
    table.greets(1, returning(1, 1, false));
    assert_eq!(table.says(1, leave()), []);
    table.greets(2, returning(2, 1, false));
    assert_eq!(asked(&table.wait(JOIN_WINDOW * 2, &[0, 1, 2])).len(), 3);
}

#[test]
fn a_sealed_member_needs_a_new_generation() {
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
        assert_eq!(change(&commands).broken.as_deref(), Some("x-worker-1 has sealed"));
    }
}

#[test]
fn sealed_members_are_gathered_and_continue_from_their_step() {
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
            assert_eq!(change(&commands).joined, Vec::<String>::new(), "they belonged to the previous membership");
            let lost: Vec<_> = missing.iter().map(|gone| (pod(*gone), "it did not come back".to_owned())).collect();
            assert_eq!(change(&commands).lost, lost);
        }
    }
}

#[test]
fn new_processes_wait_for_the_holders_of_the_last_steps() {
    let mut table = restarted(3, 1);
    table.greets(10, replacement(0));
    table.greets(1, returning(1, 1, true));
    assert_eq!(asked(&table.wait(RETURN_LIMIT / 2, &[1, 10])), []);
    assert_eq!(asked(&table.greets(2, returning(2, 1, true))), [(1, 2, false), (2, 2, false), (10, 2, false)]);
}

#[test]
fn the_wait_for_the_holders_of_the_last_steps_happens_once() {
    let mut table = restarted(2, 1);
    table.greets(10, replacement(0));
    assert_eq!(asked(&table.wait(RETURN_LIMIT + ms(500), &[10])), [(10, 2, false)]);
    assert_eq!(committed(&table.reports(10, None, state(4))).1.base_step, 4);
}

/// Returns the record after generation 2 of members 0 and 1 was allocated, and after it was agreed
/// at step 5.
fn killed_while_changing() -> (Record, Record) {
    let mut table = Table::running(3, 2);
    table.closes(2);
    let allocated = table.record();
    table.reports(0, Some(1), state(5));
    table.reports(1, Some(1), state(4));
    (allocated, table.record())
}

#[test]
fn the_next_coordinator_repeats_a_change_whose_coordinator_died_after_its_request() {
    type Situation = (&'static str, [bool; 2]);
    let situations: [Situation; 3] =
        [("one sealed", [true, false]), ("the other sealed", [false, true]), ("both sealed", [true, true])];
    for (situation, sealed_members) in situations {
        let mut table = Table::with(Config { least: 2, ..config(3) }, Some(killed_while_changing().0));
        let mut commands = Vec::new();
        for (member, sealed) in (0..).zip(sealed_members) {
            commands.extend(table.greets(member, returning(member as usize, 1, sealed)));
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
fn a_membership_that_was_recorded_but_not_announced_is_followed_by_another() {
    let mut table = Table::with(Config { least: 2, ..config(3) }, Some(killed_while_changing().1));
    table.greets(0, returning(0, 1, true));
    assert_eq!(asked(&table.greets(1, returning(1, 1, true))), [(0, 3, false), (1, 3, false)]);
    table.reports(1, Some(1), state(4));
    let (_, active) = committed(&table.reports(0, Some(1), state(5)));
    assert_eq!((active.generation, active.base_step, active.sources), (3, 5, vec![0]));
    assert!(!active.rollback);
}

#[test]
fn a_membership_that_some_members_know_is_sent_to_the_others() {
    let record = killed_while_changing().1;
    let mut table = Table::with(Config { least: 2, ..config(3) }, Some(record));
    table.greets(0, returning(0, 2, false));
    let commands = table.greets(1, returning(1, 1, true));
    assert_eq!((committed(&commands).0, committed(&commands).1.generation), (vec![1], 2));
    assert!(table.stored.is_empty(), "no new generation");
}

#[test]
fn a_member_that_missed_its_commit_gets_it_again() {
    let report = SealReport { generation: 1, entered_generation: None, followed: false, state: Some(NOTHING) };
    let never_committed = original(1);
    for (how, connection, message) in [
        ("after its report", 1, Message::SealReport(report)),
        ("after a hello on the same connection", 1, Message::Hello(never_committed.clone())),
        ("after a hello on another connection", 7, Message::Hello(never_committed)),
    ] {
        let mut table = Table::running(2, 1);
        let commands = table.says(connection, message);
        assert_eq!((committed(&commands).0, asked(&commands)), (vec![connection], vec![]), "{how}");
    }
}

#[test]
fn a_member_that_sealed_for_an_unformed_generation_needs_a_new_one() {
    let mut table = restarted(2, 2);
    for member in 0..2 {
        table.greets(member, returning(member as usize, 1, false));
    }
    let report = SealReport { generation: 2, entered_generation: Some(1), followed: false, state: Some(state(5)) };
    assert_eq!(asked(&table.says(1, Message::SealReport(report))), [(0, 2, false), (1, 2, false)]);
}

#[test]
fn a_member_that_only_lost_its_connection_keeps_its_rank() {
    let mut table = Table::running(2, 2);
    let commands = table.greets(7, returning(1, 1, false));
    assert_eq!((committed(&commands).0, sent(&commands, 0)), (vec![7], vec![]));
    assert_eq!(table.closes(1), [], "the old connection does not matter");
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
fn a_coordinator_that_lost_a_swap_ends_without_stopping_the_training() {
    let mut table = Table::running(2, 2);
    let commands = table.handle(Event::Conflict);
    assert_eq!(end(&commands), Some(&Outcome::Superseded));
    assert!(sent(&commands, 0).is_empty(), "{commands:?}");
    assert!(table.says(0, Message::Heartbeat).is_empty(), "nothing happens after the end");
}

#[test]
fn known_members_are_not_announced_as_joined_again() {
    let mut table = restarted(2, 1);
    table.greets(0, Hello { sealed: false, ..returning(0, 1, false) });
    table.greets(1, returning(1, 1, false));
    table.closes(1);
    let commands = table.reports(0, Some(1), state(5));
    assert_eq!((change(&commands).joined, change(&commands).lost), (vec![], vec![(pod(1), CLOSED.into())]));
}

#[test]
fn a_coordinator_that_hears_its_allocated_generation_from_a_member_is_superseded() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    assert_eq!(table.record().alloc_generation, 2);
    assert_eq!(end(&table.greets(7, returning(1, 2, false))), Some(&Outcome::Superseded));
}

/// Returns true if the process on connection `7` is sent away as replaced.
fn sent_away(commands: &[Command]) -> bool {
    commands.contains(&Command::Close(ConnectionId(7)))
        && matches!(sent(commands, 7).as_slice(), [Message::Abort { reason }] if reason.contains("took its place"))
}

#[test]
fn an_isolated_process_does_not_replace_its_successor() {
    let mut table = Table::running(3, 1);
    table.closes(2);
    table.reports(0, Some(1), state(7));
    table.reports(1, Some(1), state(7));
    table.greets(12, replacement(2));
    assert!(sent_away(&table.greets(7, returning(2, 1, false))), "the new process is connected");
    table.joins(12, replacement(2));
    table.wait(JOIN_WINDOW + ms(500), &[0, 1, 12]);
    for (connection, entered) in [(0, Some(2)), (1, Some(2)), (12, None)] {
        table.reports(connection, entered, state(9));
    }
    assert_eq!((table.record().active.expect("a group").members.len(), table.stage()), (3, Stage::Running));
    for sealed in [false, true] {
        assert!(sent_away(&table.greets(7, returning(2, 1, sealed))), "the new process trains");
    }
    assert_eq!(table.stage(), Stage::Running);
}

#[test]
fn another_coordinator_knows_replaced_processes_from_the_record() {
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
fn a_replaced_process_that_never_trained_does_not_return_either() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    table.reports(0, Some(1), state(7));
    table.greets(11, replacement(1));
    table.greets(21, hello(1, 300));
    assert!(sent_away(&table.greets(7, replacement(1))));
    assert_eq!(table.stage(), Stage::Running);
}
