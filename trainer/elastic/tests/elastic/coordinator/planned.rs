//! Changes without a loss: joining, leaving and events during such a change.

use std::time::Duration;

use lockstep_elastic::{
    Digest, FollowedGroup, Follower, HeldState, Hello, Message, Outcome, SealReport,
    coordinator::{Command, Config, ConnectionId, JOIN_PATIENCE, JOIN_WINDOW, LEAVE_WINDOW, Stage},
};

use super::{
    CLOSED, Store, Table, asked, broken, change, committed, drained, end, finished, hellos, is_committed, leave,
    original, pods, replacement, returning, sent, state,
};
use crate::fixtures::{NOTHING, config, ms, pod};

/// Returns a group of `members` that needs `least` of them. As many pods may join.
fn elastic(members: usize, least: usize) -> Table {
    let config = Config { replicas: members, least, ..config(2 * members) };
    let mut table = Table::with(config, None);
    table.form(&hellos(members), NOTHING);
    assert_eq!(table.stage(), Stage::Running);
    table
}

/// Returns two members at step 5 that are letting in a third process, which has sealed.
fn letting_in() -> Table {
    let mut table = letting_in_unreported();
    table.reports(2, None, NOTHING);
    table
}

/// Returns the same group before any process has sealed.
fn letting_in_unreported() -> Table {
    let mut table = elastic(2, 2);
    table.joins(2, original(2));
    assert_eq!(asked(&table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2])), [(0, 2, true), (1, 2, true), (2, 2, true)]);
    table
}

/// Returns the messages to a newcomer to generation 1, and to the members about it.
fn follow_messages(members: usize, newcomer: usize) -> Vec<Command> {
    let generation = 1;
    let Hello { member, address, .. } = original(newcomer);
    let lead = FollowedGroup { generation, addresses: (0..members).map(|index| original(index).address).collect() };
    let feed = Message::Feed(Follower { generation, member, address });
    let to_all = (0..members as u64).map(|member| Command::Send(ConnectionId(member), feed.clone()));
    [Command::Send(ConnectionId(newcomer as u64), Message::Follow(lead))].into_iter().chain(to_all).collect()
}

#[test]
fn a_planned_change_waits_for_the_store_while_the_group_trains() {
    let mut table = Table::running(2, 1);
    table.store = Store::IsAway;
    table.says(1, Message::Leave { reason: "asked to stop".into() });
    assert_eq!(table.wait(Duration::from_secs(600), &[0, 1]), []);
    assert_eq!(table.stage(), Stage::Running);
    table.store = Store::Agrees;
    let commands = table.wait(Duration::from_secs(10), &[0, 1]);
    assert!(sent(&commands, 0).contains(&&Message::Prepare { generation: 2, planned: true }), "{commands:?}");
}

#[test]
fn a_newcomer_catches_up_and_is_let_in_by_one_planned_change_after_the_window() {
    let mut table = elastic(2, 2);
    assert_eq!(table.greets(2, original(2)), follow_messages(2, 2));
    assert_eq!(table.wait(JOIN_WINDOW * 3, &[0, 1, 2]), [], "it catches up first");
    assert_eq!(table.says(2, Message::CaughtUp { generation: 1, unreached: None }), []);
    assert_eq!(table.wait(JOIN_WINDOW - ms(100), &[0, 1, 2]), [], "more newcomers may come");
    assert_eq!(asked(&table.wait(ms(200), &[0, 1, 2])), [(0, 2, true), (1, 2, true), (2, 2, true)]);
    table.reports(2, None, state(5));
    table.reports(0, Some(1), state(5));
    let commands = table.reports(1, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.base_step), (vec![0, 1, 2], 5));
    assert_eq!((active.sources, active.copiers), (vec![0, 1], vec![]));
    let change = change(&commands);
    assert_eq!((change.joined, change.lost, change.left), (vec![pod(2)], vec![], vec![]));
    assert!(change.took < ms(200), "the members trained until then: {:?}", change.took);
    assert_eq!(table.wait(JOIN_WINDOW * 3, &[0, 1, 2]), [], "no change is left to make");
}

#[test]
fn a_newcomer_that_ends_with_another_state_copies_the_groups() {
    for held in [NOTHING, state(4), HeldState { digest: Digest::of(b"another"), ..state(5) }] {
        let mut table = letting_in();
        table.reports(2, None, held);
        table.reports(0, Some(1), state(5));
        let (_, active) = committed(&table.reports(1, Some(1), state(5)));
        assert_eq!((active.sources, active.copiers), (vec![0, 1], vec![2]), "{held:?}");
    }
}

#[test]
fn no_newcomer_follows_a_group_with_a_disconnected_member() {
    let mut table = Table::with(Config { replicas: 2, least: 2, ..config(3) }, Some(Table::running(2, 2).record()));
    table.greets(0, returning(0, 1, false));
    assert_eq!(table.greets(2, original(2)), []);
    assert_eq!(table.greets(1, returning(1, 1, false)).last(), follow_messages(2, 2).last());
}

#[test]
fn a_member_of_an_old_group_is_told_to_seal_and_then_to_follow() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    table.reports(0, Some(1), state(5));
    let commands = table.greets(7, returning(1, 1, false));
    assert_eq!(commands, [Command::Send(ConnectionId(7), Message::Seal { generation: 2 })]);
    let commands = table.greets(7, returning(1, 1, true));
    assert!(matches!(sent(&commands, 7).as_slice(), [Message::Follow(_)]), "{commands:?}");
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Feed(_)]), "{commands:?}");
}

#[test]
fn a_returning_member_is_told_again_about_the_followers() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    let commands = table.greets(11, returning(1, 1, false));
    assert!(matches!(sent(&commands, 11).as_slice(), [Message::Commit { .. }, Message::Feed(_)]), "{commands:?}");
    table.says(2, Message::CaughtUp { generation: 1, unreached: None });
    let commands = table.greets(21, returning(1, 1, false));
    assert!(matches!(sent(&commands, 21).as_slice(), [Message::Commit { .. }]), "{commands:?}");
}

#[test]
fn a_newcomer_that_seals_again_is_told_to_follow_again() {
    let mut table = elastic(2, 2);
    let first = table.greets(2, original(2));
    assert_eq!(table.greets(2, Hello { sealed: false, ..original(2) }), [], "it already follows");
    assert_eq!(table.greets(2, original(2)), first);
}

#[test]
fn a_ready_newcomer_waits_for_one_that_still_catches_up() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    table.joins(3, original(3));
    let everybody = [0, 1, 2, 3];
    assert_eq!(table.wait(JOIN_WINDOW * 3, &everybody), []);
    table.says(2, Message::CaughtUp { generation: 1, unreached: None });
    assert_eq!(asked(&table.wait(JOIN_WINDOW + ms(100), &everybody)).len(), 4);
}

#[test]
fn several_requests_become_one_change() {
    let mut table = elastic(3, 2);
    table.joins(4, original(4));
    table.wait(JOIN_WINDOW / 3, &[0, 1, 2, 4]);
    table.joins(3, original(3));
    table.says(1, leave());
    let everybody = [0, 1, 2, 3, 4];
    let commands = table.wait(JOIN_WINDOW, &everybody);
    assert_eq!(asked(&commands), [(0, 2, true), (1, 2, true), (2, 2, true), (3, 2, true), (4, 2, true)]);
    let mut commands = Vec::new();
    for member in everybody {
        commands = table.reports(member, (member < 3).then_some(1), if member < 3 { state(5) } else { NOTHING });
    }
    assert_eq!(committed(&commands).0, [0, 2, 3, 4]);
    let change = change(&commands);
    assert_eq!((change.joined, change.left), (vec![pod(3), pod(4)], vec![(pod(1), "SIGTERM".into())]));
}

#[test]
fn repeated_hellos_of_a_newcomer_delay_nothing() {
    let mut table = elastic(2, 2);
    let mut commands = Vec::new();
    for _ in 0..6 {
        commands.extend(table.joins(2, original(2)));
        commands.extend(table.wait(ms(100), &[0, 1]));
    }
    assert!(asked(&commands).contains(&(0, 2, true)), "{commands:?}");
}

#[test]
fn a_newcomer_that_disappears_before_it_was_let_in_changes_nothing() {
    let mut table = elastic(2, 2);
    table.joins(2, original(2));
    table.closes(2);
    assert_eq!(table.wait(JOIN_WINDOW * 3, &[0, 1]), []);
}

#[test]
fn a_leaving_member_is_released_once_the_others_go_on_without_it() {
    let mut table = Table::running(3, 2);
    table.says(1, leave());
    assert_eq!(asked(&table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2])), [(0, 2, true), (1, 2, true), (2, 2, true)]);
    table.reports(0, Some(1), state(5));
    table.reports(1, Some(1), state(5));
    let commands = table.reports(2, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, pods(&active)), (vec![0, 2], vec!["x-worker-0", "x-worker-2"]));
    assert_eq!((active.base_step, active.sources), (5, vec![0, 1]));
    assert_eq!(sent(&commands, 1), [&Message::Release]);
    assert!(commands.contains(&Command::Close(ConnectionId(1))));
    let change = change(&commands);
    assert_eq!((change.left, change.lost), (vec![(pod(1), "SIGTERM".into())], vec![]));
    assert_eq!(table.closes(1), [], "this is not a loss any more");
}

#[test]
fn a_loss_meanwhile_releases_the_leaver_in_the_same_change() {
    let mut table = Table::running(3, 1);
    table.says(1, leave());
    assert_eq!(asked(&table.closes(2)), [(0, 2, false), (1, 2, false)]);
    table.reports(1, Some(1), state(5));
    let commands = table.reports(0, Some(1), state(5));
    assert_eq!((committed(&commands).0, sent(&commands, 1)), (vec![0], vec![&Message::Release]));
    let change = change(&commands);
    assert_eq!((change.left, change.lost), (vec![(pod(1), "SIGTERM".into())], vec![(pod(2), CLOSED.into())]));
}

#[test]
fn too_few_members_that_stay_keep_the_state_and_wait_for_another() {
    for (members, least) in [(2, 2), (3, 2)] {
        let mut table = Table::running(members, least);
        let all: Vec<u64> = (0..members as u64).collect();
        // Only the first one stays.
        for member in &all[1..] {
            assert_eq!(table.says(*member, leave()), []);
        }
        let all_asked: Vec<_> = all.iter().map(|member| (*member, 2, true)).collect();
        assert_eq!(asked(&table.wait(LEAVE_WINDOW + ms(100), &all)), all_asked);
        let mut commands = Vec::new();
        for member in &all {
            commands.extend(table.reports(*member, Some(1), state(5)));
        }
        for member in &all[1..] {
            assert_eq!(sent(&commands, *member), [&Message::Release]);
        }
        assert_eq!(sent(&commands, 0), Vec::<&Message>::new());
        assert_eq!(asked(&table.wait(10 * JOIN_WINDOW, &[0])), [], "one member is too few to train");
        assert_eq!(asked(&table.greets(11, replacement(1))), [(0, 3, false), (11, 3, false)]);
        table.reports(11, None, NOTHING);
        let commands = table.reports(0, Some(1), state(5));
        let (connections, active) = committed(&commands);
        assert_eq!((connections, active.base_step, active.sources), (vec![0, 11], 5, vec![0]));
        let change = change(&commands);
        assert_eq!((change.left.len(), change.lost.len()), (members - 1, 0), "{change:?}");
    }
}

#[test]
fn all_members_drain_if_no_member_that_stays_took_part() {
    let mut table = Table::running(2, 2);
    table.says(1, leave());
    table.wait(LEAVE_WINDOW + ms(100), &[0, 1]);
    table.reports(1, Some(1), state(5));
    let commands = table.reports(0, None, NOTHING);
    assert!(!sent(&commands, 1).contains(&&Message::Release), "it alone holds step 5: {commands:?}");
}

#[test]
fn all_members_drain_if_none_can_stay() {
    let mut table = Table::running(3, 2);
    table.says(0, leave());
    table.says(1, leave());
    let commands = table.says(2, leave());
    let drain = Message::Drain {
        reason: "x-worker-0 has to leave: SIGTERM; x-worker-1 has to leave: SIGTERM; x-worker-2 has to leave: SIGTERM"
            .into(),
    };
    for member in 0..3 {
        assert_eq!(sent(&commands, member), [&drain]);
    }
    assert_eq!(table.wait(JOIN_WINDOW * 2, &[0, 1, 2]), [], "there is no change to plan");
    table.says(0, drained(1, 30));
    table.says(1, drained(1, 30));
    assert_eq!(end(&table.says(2, drained(1, 30))), Some(&Outcome::Drained { step: 30 }));
}

#[test]
fn a_repeated_request_to_leave_is_answered_with_the_drain_again() {
    let mut table = Table::running(1, 1);
    table.says(0, leave());
    let drain = Message::Drain { reason: "x-worker-0 has to leave: SIGTERM".into() };
    assert_eq!(sent(&table.says(0, leave()), 0), [&drain]);
}

#[test]
fn after_a_loss_any_number_of_survivors_goes_on_to_drain() {
    let mut table = Table::running(2, 2);
    table.says(1, leave());
    assert_eq!(asked(&table.closes(0)), [(1, 2, false)]);
    let commands = table.reports(1, Some(1), state(5));
    assert!(matches!(sent(&commands, 1).as_slice(), [Message::Commit { .. }, Message::Drain { .. }]), "{commands:?}");
    assert_eq!(end(&table.says(1, drained(2, 5))), Some(&Outcome::Drained { step: 5 }));
}

#[test]
fn too_few_members_wait_for_more_once_the_leaver_is_lost() {
    let mut table = Table::running(2, 2);
    table.says(1, leave());
    assert_eq!(asked(&table.closes(1)), []);
    assert_eq!(asked(&table.wait(10 * JOIN_WINDOW, &[0])), [], "one member is too few to train");
    assert_eq!(asked(&table.greets(11, replacement(1))), [(0, 2, false), (11, 2, false)]);
    table.reports(11, None, NOTHING);
    let commands = table.reports(0, Some(1), state(5));
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Commit { .. }]), "no member drains: {commands:?}");
}

#[test]
fn a_newcomer_may_replace_a_leaving_member() {
    let mut table = elastic(2, 2);
    table.joins(2, original(2));
    assert_eq!(table.says(1, leave()), [], "enough members can stay");
    table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2]);
    table.reports(2, None, NOTHING);
    table.reports(1, Some(1), state(5));
    let (connections, active) = committed(&table.reports(0, Some(1), state(5)));
    assert_eq!((connections, active.sources), (vec![0, 2], vec![0]));
}

/// Returns a group in which member 0 alone holds step 5 and has to leave. A newcomer is connected,
/// and both are asked for generation 2.
fn handing_over() -> Table {
    let mut table = Table::running(2, 1);
    table.store = Store::IsSlow;
    table.closes(1);
    table.greets(11, replacement(1));
    table.says(0, leave());
    assert_eq!(asked(&table.store_answers()), [(0, 2, false), (11, 2, false)]);
    table
}

#[test]
fn the_only_holder_of_the_state_hands_it_over_before_it_leaves() {
    let mut table = handing_over();
    table.reports(11, None, NOTHING);
    let commands = table.reports(0, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.base_step, active.sources), (vec![0, 11], 5, vec![0]));
    assert!(!sent(&commands, 0).contains(&&Message::Release), "{commands:?}");
    assert_eq!(change(&commands).left, []);
    assert_eq!(asked(&table.wait(JOIN_WINDOW + ms(100), &[0, 11])), [(0, 3, true), (11, 3, true)]);
    table.reports(0, Some(2), state(6));
    let commands = table.reports(11, Some(2), state(6));
    assert_eq!((committed(&commands).0, sent(&commands, 0)), (vec![11], vec![&Message::Release]));
    assert_eq!(change(&commands).left, [(pod(0), "SIGTERM".into())]);
}

#[test]
fn the_only_holder_of_the_state_hands_it_over_even_after_a_late_report() {
    let mut table = handing_over();
    table.reports(11, None, NOTHING);
    table.wait(lockstep_elastic::coordinator::RETURN_LIMIT * 2, &[0, 11]);
    let (_, active) = committed(&table.reports(0, Some(1), state(5)));
    assert_eq!((active.base_step, active.sources, active.rollback), (5, vec![0], false));
}

#[test]
fn a_newcomer_that_has_to_leave_before_it_was_let_in_is_released() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    assert_eq!(sent(&table.says(2, leave()), 2), [&Message::Release]);
    assert_eq!(table.wait(JOIN_WINDOW * 2, &[0, 1]), []);
}

#[test]
fn a_loss_before_the_seal_makes_a_planned_change_unplanned() {
    type Situation = (&'static str, fn(&mut Table) -> Vec<Command>, Vec<(u64, u64, bool)>);
    let situations: [Situation; 5] = [
        // The others wait for it at the step after which all should seal.
        ("a member that had not sealed", |table| table.closes(1), vec![(0, 3, false), (2, 3, false)]),
        (
            "an unsealed member that a new process replaced",
            |table| table.greets(11, replacement(1)),
            vec![(0, 3, false), (2, 3, false), (11, 3, false)],
        ),
        ("a broken collective", |table| table.says(0, broken(1)), vec![(0, 3, false), (1, 3, false), (2, 3, false)]),
        (
            "a member that had sealed",
            |table| {
                table.reports(1, Some(1), state(5));
                table.closes(1)
            },
            vec![],
        ),
        ("the newcomer", |table| table.closes(2), vec![]),
    ];
    for (situation, happens, expected) in situations {
        let mut table = letting_in();
        let asked: Vec<_> =
            asked(&happens(&mut table)).into_iter().filter(|(_, generation, _)| *generation == 3).collect();
        assert_eq!(asked, expected, "{situation}");
    }
}

#[test]
fn after_the_loss_of_a_sealed_member_the_planned_change_happens_without_it() {
    let mut table = letting_in();
    table.reports(1, Some(1), state(5));
    table.closes(1);
    let commands = table.reports(0, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.generation, active.sources), (vec![0, 2], 2, vec![0]));
    assert_eq!(change(&commands).lost, [(pod(1), CLOSED.into())]);
}

#[test]
fn after_the_loss_of_an_unsealed_member_the_others_are_committed_only_to_a_newer_generation() {
    let mut table = letting_in();
    table.closes(1);
    table.reports(2, None, NOTHING);
    let commands = table.reports(0, Some(1), state(4));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.generation, active.base_step), (vec![0, 2], 3, 4));
}

#[test]
fn a_newcomer_that_connects_during_the_reports_follows_the_new_group() {
    let mut table = elastic(3, 2);
    table.joins(3, original(3));
    table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2, 3]);
    assert_eq!(table.greets(4, original(4)), [], "the others are enough without it");
    for member in 0..3 {
        table.reports(member, Some(1), state(5));
    }
    let commands = table.reports(3, None, NOTHING);
    assert_eq!(committed(&commands).0, [0, 1, 2, 3]);
    assert!(matches!(sent(&commands, 4).as_slice(), [Message::Follow(lead)] if lead.generation == 2), "{commands:?}");
}

#[test]
fn a_change_does_not_disturb_a_newcomer_that_it_does_not_need() {
    let mut table = elastic(3, 2);
    table.greets(3, original(3));
    table.says(1, leave());
    let everybody = [0, 1, 2, 3];
    let asked_to = asked(&table.wait(JOIN_WINDOW + ms(100), &everybody));
    assert_eq!(asked_to, [(0, 2, true), (1, 2, true), (2, 2, true)]);
    for member in 0..3 {
        table.reports(member, Some(1), state(5));
    }
    assert_eq!(table.wait(ms(100), &[0, 2, 3]), [], "it was told to seal");
    assert_eq!(table.record().active.map(|active| active.members.len()), Some(2));
    let commands = table.greets(3, original(3));
    assert!(matches!(sent(&commands, 3).as_slice(), [Message::Follow(lead)] if lead.generation == 2), "{commands:?}");
}

#[test]
fn a_change_waits_for_a_newcomer_that_the_group_needs() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    table.says(1, leave());
    assert_eq!(asked(&table.wait(JOIN_WINDOW * 3, &[0, 1, 2])), []);
    let commands = table.says(2, Message::CaughtUp { generation: 1, unreached: None });
    assert_eq!(asked(&commands), [(0, 2, true), (1, 2, true), (2, 2, true)]);
}

#[test]
fn an_unplanned_change_lets_in_a_newcomer_that_still_catches_up() {
    let mut table = elastic(2, 1);
    table.greets(2, original(2));
    assert_eq!(asked(&table.closes(1)), [(0, 2, false), (2, 2, false)]);
}

#[test]
fn a_newcomer_that_misses_the_last_steps_is_let_in_with_its_state() {
    let mut table = letting_in_unreported();
    table.reports(0, Some(1), state(5));
    table.reports(1, Some(1), state(5));
    let commands = table.wait(Duration::from_secs(12), &[0, 1, 2]);
    assert!(asked(&commands).contains(&(2, 3, false)), "{commands:?}");
    // The same holds if a member that feeds the newcomer is lost.
    let mut table = letting_in_unreported();
    table.reports(1, Some(1), state(5));
    assert!(asked(&table.closes(1)).contains(&(2, 3, false)));
}

#[test]
fn newcomers_do_not_wait_for_each_other_for_ever() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    table.joins(3, original(3));
    let everybody = [0, 1, 2, 3];
    assert_eq!(asked(&table.wait(JOIN_PATIENCE - ms(100), &everybody)), []);
    let commands = table.wait(ms(200), &everybody);
    assert_eq!(asked(&commands), [(0, 2, true), (1, 2, true), (3, 2, true)]);
}

#[test]
fn a_newcomer_that_sealed_for_a_generation_without_it_is_let_in_by_the_next() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    let mut commands = Vec::new();
    for _ in 0..6 {
        let report = SealReport { generation: 1, entered_generation: None, followed: false, state: Some(NOTHING) };
        table.says(2, Message::SealReport(report));
        commands.extend(table.wait(ms(100), &[0, 1]));
    }
    assert!(asked(&commands).contains(&(0, 2, true)), "{commands:?}");
}

#[test]
fn a_newcomer_that_connects_during_the_swap_is_let_in_by_the_next_generation() {
    let mut table = letting_in();
    table.reports(0, Some(1), state(5));
    table.store = Store::IsSlow;
    table.reports(1, Some(1), state(5));
    table.greets(3, original(3));
    assert_eq!(committed(&table.store_answers()).0, [0, 1, 2]);
    table.says(3, Message::CaughtUp { generation: 2, unreached: None });
    let commands = table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2, 3]);
    assert_eq!(asked(&commands), [(0, 3, true), (1, 3, true), (2, 3, true), (3, 3, true)]);
}

#[test]
fn a_loss_before_the_planned_generation_is_allocated_makes_it_unplanned() {
    let mut table = elastic(2, 2);
    table.joins(2, original(2));
    table.store = Store::IsSlow;
    table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2]);
    table.closes(1);
    assert_eq!(asked(&table.store_answers()), [(0, 2, false), (2, 2, false)]);
}

#[test]
fn no_newcomer_is_let_in_once_a_member_is_done() {
    let mut table = elastic(2, 2);
    table.says(0, finished(1, b"model"));
    table.greets(2, original(2));
    assert_eq!(table.wait(JOIN_WINDOW * 3, &[0, 1, 2]), []);
    let commands = table.says(1, finished(1, b"model"));
    assert!(matches!(end(&commands), Some(Outcome::Finished { .. })));
    assert_eq!(sent(&commands, 2), [&Message::Release], "it is not needed any more");
}

#[test]
fn a_member_that_finished_during_the_allocation_has_to_seal_and_report_again() {
    let mut table = elastic(2, 2);
    table.joins(2, original(2));
    table.store = Store::IsSlow;
    table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2]);
    table.says(0, finished(1, b"model"));
    assert_eq!(asked(&table.store_answers()), [(0, 2, true), (1, 2, true), (2, 2, true)]);
    table.reports(0, Some(1), state(90));
    table.reports(1, Some(1), state(90));
    assert!(is_committed(&table.reports(2, None, NOTHING)));
    assert_eq!(end(&table.says(0, finished(2, b"model"))), None);
    table.says(1, finished(2, b"model"));
    assert!(matches!(end(&table.says(2, finished(2, b"model"))), Some(Outcome::Finished { step: 90, .. })));
}
