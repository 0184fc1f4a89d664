//! Changes without a loss: who joins, who leaves, and what may come in between.

use std::time::Duration;

use lockstep_elastic::{
    Digest, Follower, Hello, Lead, Message, Outcome, Report, State,
    coordinator::{Command, Config, Connection, JOIN_PATIENCE, JOIN_WINDOW, LEAVE_WINDOW, Stage},
};

use super::{
    CLOSED, Store, Table, asked, broken, change, committed, drained, end, finished, hellos, is_committed, leave,
    original, pods, replacement, returning, sent, state,
};
use crate::given::{NOTHING, config, ms, pod};

/// A group of `members`, of which `least` are needed, where as many again may join.
fn elastic(members: usize, least: usize) -> Table {
    let config = Config { replicas: members, least, ..config(2 * members) };
    let mut table = Table::with(config, None);
    table.form(&hellos(members), NOTHING);
    assert_eq!(table.stage(), Stage::Running);
    table
}

/// Two members at step 5, asked to let a third one in, which stands.
fn letting_in() -> Table {
    let mut table = letting_in_unreported();
    table.reports(2, None, NOTHING);
    table
}

/// The same before anybody stands.
fn letting_in_unreported() -> Table {
    let mut table = elastic(2, 2);
    table.joins(2, original(2));
    assert_eq!(asked(&table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2])), [(0, 2, true), (1, 2, true), (2, 2, true)]);
    table
}

/// What a newcomer to generation 1 is told when it comes, and the members with it.
fn told(members: usize, newcomer: usize) -> Vec<Command> {
    let generation = 1;
    let Hello { member, address, .. } = original(newcomer);
    let lead = Lead { generation, addresses: (0..members).map(|index| original(index).address).collect() };
    let feed = Message::Feed(Follower { generation, member, address });
    let to_all = (0..members as u64).map(|member| Command::Send(Connection(member), feed.clone()));
    [Command::Send(Connection(newcomer as u64), Message::Follow(lead))].into_iter().chain(to_all).collect()
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
fn a_newcomer_follows_the_group_and_is_let_in_by_one_planned_change_after_the_window() {
    let mut table = elastic(2, 2);
    assert_eq!(table.greets(2, original(2)), told(2, 2));
    assert_eq!(table.wait(JOIN_WINDOW * 3, &[0, 1, 2]), [], "it takes over what they hold");
    assert_eq!(table.says(2, Message::CaughtUp { generation: 1, unreached: None }), []);
    assert_eq!(table.wait(JOIN_WINDOW - ms(100), &[0, 1, 2]), [], "others may come");
    assert_eq!(asked(&table.wait(ms(200), &[0, 1, 2])), [(0, 2, true), (1, 2, true), (2, 2, true)]);
    table.reports(2, None, state(5));
    table.reports(0, Some(1), state(5));
    let commands = table.reports(1, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.base_step), (vec![0, 1, 2], 5));
    assert_eq!((active.sources, active.copiers), (vec![0, 1], vec![]));
    let change = change(&commands);
    assert_eq!((change.joined, change.lost, change.left), (vec![pod(2)], vec![], vec![]));
    assert!(change.took < ms(200), "they trained until then: {:?}", change.took);
    assert_eq!(table.wait(JOIN_WINDOW * 3, &[0, 1, 2]), [], "nothing is left to do");
}

#[test]
fn a_newcomer_that_holds_another_state_in_the_end_copies_it() {
    for held in [NOTHING, state(4), State { digest: Digest::of(b"another"), ..state(5) }] {
        let mut table = letting_in();
        table.reports(2, None, held);
        table.reports(0, Some(1), state(5));
        let (_, active) = committed(&table.reports(1, Some(1), state(5)));
        assert_eq!((active.sources, active.copiers), (vec![0, 1], vec![2]), "{held:?}");
    }
}

#[test]
fn nobody_follows_a_group_of_which_a_member_cannot_be_told() {
    let mut table = Table::with(Config { replicas: 2, least: 2, ..config(3) }, Some(Table::running(2, 2).record()));
    table.greets(0, returning(0, 1, false));
    assert_eq!(table.greets(2, original(2)), []);
    assert_eq!(table.greets(1, returning(1, 1, false)).last(), told(2, 2).last());
}

#[test]
fn whoever_trains_in_a_group_that_is_over_is_told_to_stand_and_then_to_follow() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    table.reports(0, Some(1), state(5));
    let commands = table.greets(7, returning(1, 1, false));
    assert_eq!(commands, [Command::Send(Connection(7), Message::Stand { generation: 2 })]);
    let commands = table.greets(7, returning(1, 1, true));
    assert!(matches!(sent(&commands, 7).as_slice(), [Message::Follow(_)]), "{commands:?}");
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Feed(_)]), "{commands:?}");
}

#[test]
fn a_member_that_returns_hears_again_of_newcomers_that_wait_for_it() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    let commands = table.greets(11, returning(1, 1, false));
    assert!(matches!(sent(&commands, 11).as_slice(), [Message::Commit { .. }, Message::Feed(_)]), "{commands:?}");
    table.says(2, Message::CaughtUp { generation: 1, unreached: None });
    let commands = table.greets(21, returning(1, 1, false));
    assert!(matches!(sent(&commands, 21).as_slice(), [Message::Commit { .. }]), "{commands:?}");
}

#[test]
fn a_newcomer_that_stands_again_is_told_again() {
    let mut table = elastic(2, 2);
    let first = table.greets(2, original(2));
    assert_eq!(table.greets(2, Hello { stands: false, ..original(2) }), [], "it follows");
    assert_eq!(table.greets(2, original(2)), first);
}

#[test]
fn one_newcomer_waits_for_another_that_still_takes_over_what_the_group_holds() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    table.joins(3, original(3));
    let everybody = [0, 1, 2, 3];
    assert_eq!(table.wait(JOIN_WINDOW * 3, &everybody), []);
    table.says(2, Message::CaughtUp { generation: 1, unreached: None });
    assert_eq!(asked(&table.wait(JOIN_WINDOW + ms(100), &everybody)).len(), 4);
}

#[test]
fn several_wishes_become_one_change() {
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
fn a_newcomer_that_says_hello_again_and_again_delays_nothing() {
    let mut table = elastic(2, 2);
    let mut commands = Vec::new();
    for _ in 0..6 {
        commands.extend(table.joins(2, original(2)));
        commands.extend(table.wait(ms(100), &[0, 1]));
    }
    assert!(asked(&commands).contains(&(0, 2, true)), "{commands:?}");
}

#[test]
fn a_newcomer_that_went_before_it_was_let_in_changes_nothing() {
    let mut table = elastic(2, 2);
    table.joins(2, original(2));
    table.closes(2);
    assert_eq!(table.wait(JOIN_WINDOW * 3, &[0, 1]), []);
}

#[test]
fn whoever_has_to_go_is_released_once_the_others_go_on_without_it() {
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
    assert!(commands.contains(&Command::Close(Connection(1))));
    let change = change(&commands);
    assert_eq!((change.left, change.lost), (vec![(pod(1), "SIGTERM".into())], vec![]));
    assert_eq!(table.closes(1), [], "that is no loss any more");
}

#[test]
fn a_loss_meanwhile_lets_the_leaver_go_with_the_same_change() {
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
fn where_too_few_can_stay_those_who_do_keep_the_state_and_wait_for_another() {
    for (members, least) in [(2, 2), (3, 2)] {
        let mut table = Table::running(members, least);
        let all: Vec<u64> = (0..members as u64).collect();
        // Only the first one stays.
        for member in &all[1..] {
            assert_eq!(table.says(*member, leave()), []);
        }
        let everybody: Vec<_> = all.iter().map(|member| (*member, 2, true)).collect();
        assert_eq!(asked(&table.wait(LEAVE_WINDOW + ms(100), &all)), everybody);
        let mut commands = Vec::new();
        for member in &all {
            commands.extend(table.reports(*member, Some(1), state(5)));
        }
        for member in &all[1..] {
            assert_eq!(sent(&commands, *member), [&Message::Release]);
        }
        assert_eq!(sent(&commands, 0), Vec::<&Message>::new());
        assert_eq!(asked(&table.wait(10 * JOIN_WINDOW, &[0])), [], "one is too few to train");
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
fn where_nobody_who_stays_took_part_all_drain_together() {
    let mut table = Table::running(2, 2);
    table.says(1, leave());
    table.wait(LEAVE_WINDOW + ms(100), &[0, 1]);
    table.reports(1, Some(1), state(5));
    let commands = table.reports(0, None, NOTHING);
    assert!(!sent(&commands, 1).contains(&&Message::Release), "it alone holds step 5: {commands:?}");
}

#[test]
fn where_nobody_can_stay_all_drain_together() {
    let mut table = Table::running(3, 2);
    table.says(0, leave());
    table.says(1, leave());
    let commands = table.says(2, leave());
    let drain = Message::Drain {
        reason: "x-worker-0 has to go: SIGTERM; x-worker-1 has to go: SIGTERM; x-worker-2 has to go: SIGTERM".into(),
    };
    for member in 0..3 {
        assert_eq!(sent(&commands, member), [&drain]);
    }
    assert_eq!(table.wait(JOIN_WINDOW * 2, &[0, 1, 2]), [], "there is nothing to plan");
    table.says(0, drained(1, 30));
    table.says(1, drained(1, 30));
    assert_eq!(end(&table.says(2, drained(1, 30))), Some(&Outcome::Drained { step: 30 }));
}

#[test]
fn whoever_asks_to_leave_again_is_told_again_that_all_drain() {
    let mut table = Table::running(1, 1);
    table.says(0, leave());
    let drain = Message::Drain { reason: "x-worker-0 has to go: SIGTERM".into() };
    assert_eq!(sent(&table.says(0, leave()), 0), [&drain]);
}

#[test]
fn a_loss_while_all_drain_leaves_the_survivors_to_drain_however_few() {
    let mut table = Table::running(2, 2);
    table.says(1, leave());
    assert_eq!(asked(&table.closes(0)), [(1, 2, false)]);
    let commands = table.reports(1, Some(1), state(5));
    assert!(matches!(sent(&commands, 1).as_slice(), [Message::Commit { .. }, Message::Drain { .. }]), "{commands:?}");
    assert_eq!(end(&table.says(1, drained(2, 5))), Some(&Outcome::Drained { step: 5 }));
}

#[test]
fn too_few_wait_for_company_once_whoever_had_to_go_is_lost() {
    let mut table = Table::running(2, 2);
    table.says(1, leave());
    assert_eq!(asked(&table.closes(1)), []);
    assert_eq!(asked(&table.wait(10 * JOIN_WINDOW, &[0])), [], "one is too few to train");
    assert_eq!(asked(&table.greets(11, replacement(1))), [(0, 2, false), (11, 2, false)]);
    table.reports(11, None, NOTHING);
    let commands = table.reports(0, Some(1), state(5));
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Commit { .. }]), "nobody drains: {commands:?}");
}

#[test]
fn a_newcomer_may_take_the_place_of_whoever_has_to_go() {
    let mut table = elastic(2, 2);
    table.joins(2, original(2));
    assert_eq!(table.says(1, leave()), [], "enough can stay");
    table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2]);
    table.reports(2, None, NOTHING);
    table.reports(1, Some(1), state(5));
    let (connections, active) = committed(&table.reports(0, Some(1), state(5)));
    assert_eq!((connections, active.sources), (vec![0, 2], vec![0]));
}

/// Member 0 alone holds step 5 and has to go; a newcomer is here, and both are asked for generation 2.
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
fn whoever_alone_holds_the_state_hands_it_over_before_it_goes() {
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
fn the_last_holder_of_the_state_hands_it_over_however_late_it_reports() {
    let mut table = handing_over();
    table.reports(11, None, NOTHING);
    table.wait(lockstep_elastic::coordinator::RETURN_LIMIT * 2, &[0, 11]);
    let (_, active) = committed(&table.reports(0, Some(1), state(5)));
    assert_eq!((active.base_step, active.sources, active.rollback), (5, vec![0], false));
}

#[test]
fn a_newcomer_that_has_to_go_before_it_was_let_in_is_released() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    assert_eq!(sent(&table.says(2, leave()), 2), [&Message::Release]);
    assert_eq!(table.wait(JOIN_WINDOW * 2, &[0, 1]), []);
}

#[test]
fn what_a_loss_on_the_way_to_a_planned_change_means() {
    type Situation = (&'static str, fn(&mut Table) -> Vec<Command>, Vec<(u64, u64, bool)>);
    let situations: [Situation; 5] = [
        // The others wait for it at the step after which all were to seal.
        ("a member that had not sealed", |table| table.closes(1), vec![(0, 3, false), (2, 3, false)]),
        (
            "a member that replaced itself unsealed",
            |table| table.greets(11, replacement(1)),
            vec![(0, 3, false), (2, 3, false), (11, 3, false)],
        ),
        (
            "a collective that broke",
            |table| table.says(0, broken(1)),
            vec![(0, 3, false), (1, 3, false), (2, 3, false)],
        ),
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
fn after_the_loss_of_a_sealed_member_the_planned_change_comes_about_without_it() {
    let mut table = letting_in();
    table.reports(1, Some(1), state(5));
    table.closes(1);
    let commands = table.reports(0, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.generation, active.sources), (vec![0, 2], 2, vec![0]));
    assert_eq!(change(&commands).lost, [(pod(1), CLOSED.into())]);
}

#[test]
fn after_the_loss_of_an_unsealed_member_the_rest_is_committed_to_the_newer_generation_only() {
    let mut table = letting_in();
    table.closes(1);
    table.reports(2, None, NOTHING);
    let commands = table.reports(0, Some(1), state(4));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.generation, active.base_step), (vec![0, 2], 3, 4));
}

#[test]
fn a_newcomer_that_comes_while_others_report_follows_the_group_that_they_form() {
    let mut table = elastic(3, 2);
    table.joins(3, original(3));
    table.wait(JOIN_WINDOW + ms(100), &[0, 1, 2, 3]);
    assert_eq!(table.greets(4, original(4)), [], "they are enough without it");
    for member in 0..3 {
        table.reports(member, Some(1), state(5));
    }
    let commands = table.reports(3, None, NOTHING);
    assert_eq!(committed(&commands).0, [0, 1, 2, 3]);
    assert!(matches!(sent(&commands, 4).as_slice(), [Message::Follow(lead)] if lead.generation == 2), "{commands:?}");
}

#[test]
fn a_newcomer_that_still_takes_over_the_state_is_left_to_it_by_a_change_that_does_not_need_it() {
    let mut table = elastic(3, 2);
    table.greets(3, original(3));
    table.says(1, leave());
    let everybody = [0, 1, 2, 3];
    let asked_to = asked(&table.wait(JOIN_WINDOW + ms(100), &everybody));
    assert_eq!(asked_to, [(0, 2, true), (1, 2, true), (2, 2, true)]);
    for member in 0..3 {
        table.reports(member, Some(1), state(5));
    }
    assert_eq!(table.wait(ms(100), &[0, 2, 3]), [], "it was told to stand");
    assert_eq!(table.record().active.map(|active| active.members.len()), Some(2));
    let commands = table.greets(3, original(3));
    assert!(matches!(sent(&commands, 3).as_slice(), [Message::Follow(lead)] if lead.generation == 2), "{commands:?}");
}

#[test]
fn a_change_waits_for_a_newcomer_without_whom_too_few_would_be_left() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    table.says(1, leave());
    assert_eq!(asked(&table.wait(JOIN_WINDOW * 3, &[0, 1, 2])), []);
    let commands = table.says(2, Message::CaughtUp { generation: 1, unreached: None });
    assert_eq!(asked(&commands), [(0, 2, true), (1, 2, true), (2, 2, true)]);
}

#[test]
fn a_newcomer_that_still_takes_over_the_state_is_let_in_with_a_change_that_was_not_planned() {
    let mut table = elastic(2, 1);
    table.greets(2, original(2));
    assert_eq!(asked(&table.closes(1)), [(0, 2, false), (2, 2, false)]);
}

#[test]
fn a_newcomer_that_does_not_come_to_the_last_steps_is_let_in_as_it_is() {
    let mut table = letting_in_unreported();
    table.reports(0, Some(1), state(5));
    table.reports(1, Some(1), state(5));
    let commands = table.wait(Duration::from_secs(12), &[0, 1, 2]);
    assert!(asked(&commands).contains(&(2, 3, false)), "{commands:?}");
    // So it is where one of those that hand them over is lost.
    let mut table = letting_in_unreported();
    table.reports(1, Some(1), state(5));
    assert!(asked(&table.closes(1)).contains(&(2, 3, false)));
}

#[test]
fn newcomers_wait_for_no_other_one_for_ever() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    table.joins(3, original(3));
    let everybody = [0, 1, 2, 3];
    assert_eq!(asked(&table.wait(JOIN_PATIENCE - ms(100), &everybody)), []);
    let commands = table.wait(ms(200), &everybody);
    assert_eq!(asked(&commands), [(0, 2, true), (1, 2, true), (3, 2, true)]);
}

#[test]
fn a_newcomer_that_was_asked_for_a_generation_that_came_about_without_it_is_let_in_by_the_next() {
    let mut table = elastic(2, 2);
    table.greets(2, original(2));
    let mut commands = Vec::new();
    for _ in 0..6 {
        let report = Report { generation: 1, entered_generation: None, followed: false, state: Some(NOTHING) };
        table.says(2, Message::Report(report));
        commands.extend(table.wait(ms(100), &[0, 1]));
    }
    assert!(asked(&commands).contains(&(0, 2, true)), "{commands:?}");
}

#[test]
fn a_newcomer_that_comes_while_the_membership_is_stored_is_let_in_by_the_next() {
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
fn nobody_is_let_in_once_a_member_is_done() {
    let mut table = elastic(2, 2);
    table.says(0, finished(1, b"model"));
    table.greets(2, original(2));
    assert_eq!(table.wait(JOIN_WINDOW * 3, &[0, 1, 2]), []);
    let commands = table.says(1, finished(1, b"model"));
    assert!(matches!(end(&commands), Some(Outcome::Finished { .. })));
    assert_eq!(sent(&commands, 2), [&Message::Release], "it is needed no more");
}

#[test]
fn a_member_that_finished_while_the_change_was_allocated_has_to_stand_and_say_it_again() {
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
