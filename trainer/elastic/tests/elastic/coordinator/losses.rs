//! Losses: the survivors go on from the last step that any member did.

use std::time::Duration;

use lockstep_elastic::{
    Digest, HeldState, Message, Outcome, SealReport,
    coordinator::{Command, Config, DEAD_AFTER, Event, RETURN_LIMIT, Stage},
    member::REPEAT_AFTER,
};

use super::{
    CLOSED, Store, Table, asked, broken, change, committed, end, is_committed, mark, pods, replacement, returning,
    sent, state,
};
use crate::fixtures::{NOTHING, hello, ms, pod};

#[test]
fn after_a_loss_enough_survivors_form_the_next_generation_at_once() {
    let mut table = Table::running(3, 2);
    let commands = table.closes(1);
    assert_eq!(asked(&commands), [(0, 2, false), (2, 2, false)]);
    assert_eq!(table.record().alloc_generation, 2);
    table.reports(0, Some(1), state(5));
    let commands = table.reports(2, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, pods(&active)), (vec![0, 2], vec!["x-worker-0", "x-worker-2"]));
    assert_eq!((active.generation, active.base_step, active.rollback), (2, 5, false));
    let change = change(&commands);
    assert_eq!((change.lost, change.left, change.joined), (vec![(pod(1), CLOSED.into())], vec![], vec![]));
    assert_eq!(change.broken, None);
    assert_eq!(table.record().active, Some(active));
}

#[test]
fn all_start_from_the_most_advanced_survivor_and_its_equals_are_sources() {
    for (steps, base, sources) in [([5, 5, 5], 5, vec![0, 1, 2]), ([5, 6, 5], 6, vec![1]), ([6, 5, 6], 6, vec![0, 2])] {
        let mut table = Table::running(4, 2);
        table.closes(3);
        let commands: Vec<_> =
            (0..3).zip(steps).flat_map(|(member, step)| table.reports(member, Some(1), state(step))).collect();
        let (_, active) = committed(&commands);
        assert_eq!((active.base_step, active.base_digest), (base, state(base).digest), "{steps:?}");
        assert_eq!((active.sampler, active.sources), (state(base).sampler, sources), "{steps:?}");
    }
}

#[test]
fn with_too_few_members_training_pauses_until_a_replacement_copies_the_survivor() {
    for newcomer_holds in [NOTHING, state(20), state(99)] {
        let mut table = Table::running(2, 2);
        assert_eq!(asked(&table.closes(1)), []);
        assert_eq!(table.stage(), Stage::Gathering);
        assert_eq!(table.wait(RETURN_LIMIT * 2, &[0]), []);
        assert_eq!(asked(&table.greets(11, replacement(1))), [(0, 2, false), (11, 2, false)]);
        table.reports(11, None, newcomer_holds);
        let commands = table.reports(0, Some(1), state(30));
        let (connections, active) = committed(&commands);
        assert_eq!((connections, active.base_step), (vec![0, 11], 30), "with a newcomer that holds {newcomer_holds:?}");
        assert_eq!(
            (active.sources, active.rollback),
            (vec![0], false),
            "with a newcomer that holds {newcomer_holds:?}"
        );
        let change = change(&commands);
        assert_eq!((change.lost, change.joined), (vec![(pod(1), CLOSED.into())], vec![pod(1)]));
        assert!(change.took > RETURN_LIMIT * 2, "the time includes the pause: {:?}", change.took);
    }
}

#[test]
fn a_loss_during_the_pause_is_announced_too() {
    let mut table = Table::running(3, 3);
    table.closes(1);
    table.closes(2);
    table.greets(11, replacement(1));
    table.greets(12, replacement(2));
    table.reports(11, None, NOTHING);
    table.reports(12, None, NOTHING);
    let lost = change(&table.reports(0, Some(1), state(4))).lost;
    assert_eq!(lost, [(pod(1), CLOSED.into()), (pod(2), CLOSED.into())]);
}

#[test]
fn survivors_with_different_states_of_one_step_are_named_and_restart_from_a_checkpoint() {
    let other = HeldState { digest: Digest::of(b"a bit flipped"), ..state(5) };
    let mut table = Table::running(3, 2);
    table.closes(2);
    table.reports(0, Some(1), state(5));
    let commands = table.reports(1, Some(1), other);
    let Some(Outcome::Diverged { message, .. }) = end(&commands) else { panic!("{commands:?}") };
    for name in ["x-worker-0", "x-worker-1", "step 5"] {
        assert!(message.contains(name), "{name} in {message}");
    }
    for survivor in [0, 1] {
        assert!(matches!(sent(&commands, survivor).as_slice(), [Message::Abort { .. }]), "{commands:?}");
    }
}

#[test]
fn a_member_that_does_not_report_is_asked_again() {
    let mut table = Table::running(3, 2);
    table.closes(2);
    table.reports(0, Some(1), state(5));
    assert_eq!(asked(&table.wait(REPEAT_AFTER + ms(100), &[0, 1])), [(1, 2, false)]);
}

#[test]
fn a_member_lost_during_the_reports_is_left_out_of_the_same_generation() {
    let mut table = Table::running(4, 2);
    table.closes(3);
    table.reports(0, Some(1), state(5));
    table.reports(2, Some(1), state(6));
    table.closes(2);
    let commands = table.reports(1, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.generation, active.base_step), (vec![0, 1], 2, 5));
    assert_eq!(change(&commands).lost, [(pod(3), CLOSED.into()), (pod(2), CLOSED.into())]);
}

#[test]
fn a_silent_member_is_suspected_and_later_lost() {
    let mut table = Table::running(2, 1);
    assert_eq!(table.wait(Duration::from_secs(2), &[0]), []);
    assert_eq!(table.coordinator.status(table.now).suspected, [pod(1)]);
    assert_eq!(asked(&table.wait(DEAD_AFTER - Duration::from_secs(1), &[0])), [(0, 2, false)]);
    let commands = table.reports(0, Some(1), state(5));
    assert_eq!(change(&commands).lost, [(pod(1), "sent nothing for 2.5 s".to_owned())]);
}

#[test]
fn a_stuck_member_is_lost_at_once_with_its_reason_and_may_return() {
    let mut table = Table::running(3, 2);
    let reason = "its training thread has not moved for 5.0 s".to_owned();
    let commands = table.says(1, Message::Stuck { reason: reason.clone() });
    assert_eq!(asked(&commands), [(0, 2, false), (2, 2, false)]);
    table.reports(0, Some(1), state(5));
    assert_eq!(change(&table.reports(2, Some(1), state(5))).lost, [(pod(1), reason)]);
    table.joins(7, returning(1, 1, false));
    assert_eq!(asked(&table.wait(ms(600), &[0, 2, 7])), [(0, 3, true), (2, 3, true), (7, 3, true)]);
}

#[test]
fn a_slow_member_joins_again_with_its_state() {
    let mut table = Table::running(2, 1);
    table.wait(DEAD_AFTER + ms(500), &[0]);
    table.reports(0, Some(1), state(5));
    table.joins(7, returning(1, 1, true));
    assert_eq!(asked(&table.wait(ms(600), &[0, 7])), [(0, 3, true), (7, 3, true)]);
    table.reports(7, Some(1), state(5));
    let (connections, active) = committed(&table.reports(0, Some(2), state(5)));
    assert_eq!((connections, active.sources), (vec![0, 7], vec![0]), "its steps before the loss do not qualify");
}

#[test]
fn a_member_that_returns_before_the_next_generation_keeps_its_rank() {
    let mut table = Table::running(2, 2);
    table.closes(1);
    assert_eq!(asked(&table.greets(7, returning(1, 1, false))), [(0, 2, false), (7, 2, false)]);
    table.reports(7, Some(1), state(6));
    let commands = table.reports(0, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.base_step, active.sources), (vec![0, 7], 6, vec![1]));
    assert_eq!(change(&commands).joined, Vec::<String>::new());
}

#[test]
fn a_new_process_of_a_pod_replaces_the_old_one_as_a_loss() {
    let mut table = Table::running(2, 2);
    let commands = table.greets(11, replacement(1));
    assert!(matches!(sent(&commands, 1).as_slice(), [Message::Abort { .. }]), "{commands:?}");
    assert_eq!(asked(&commands), [(0, 2, false), (11, 2, false)]);
    table.reports(11, None, NOTHING);
    let commands = table.reports(0, Some(1), state(5));
    assert_eq!((committed(&commands).0, committed(&commands).1.sources), (vec![0, 11], vec![0]));
    let change = change(&commands);
    assert!(change.lost[0].1.contains("replaced by a new process of x-worker-1"), "{:?}", change.lost);
    assert_eq!(change.joined, [pod(1)]);
}

#[test]
fn a_group_that_broke_without_a_loss_is_formed_again_with_the_same_members() {
    let mut table = Table::running(3, 2);
    assert_eq!(asked(&table.says(0, broken(1))), [(0, 2, false), (1, 2, false), (2, 2, false)]);
    for member in 0..2 {
        table.reports(member, Some(1), state(5));
    }
    let commands = table.reports(2, Some(1), state(5));
    assert_eq!(committed(&commands).0, [0, 1, 2]);
    let change = change(&commands);
    assert_eq!((change.lost, change.broken.as_deref()), (vec![], Some("x-worker-0: rank 2 hung up")));
}

#[test]
fn a_failure_in_an_older_generation_is_ignored() {
    let mut table = Table::running(2, 1);
    assert_eq!(table.says(0, broken(7)), []);
    table.closes(1);
    table.reports(0, Some(1), state(5));
    assert_eq!(table.says(0, broken(1)), []);
}

#[test]
fn a_group_that_keeps_breaking_without_a_step_is_formed_after_growing_pauses() {
    let mut table = Table::running(2, 2);
    let mut breaks = |step: Option<u64>| {
        let generation = table.record().alloc_generation;
        if let Some(step) = step {
            table.says(0, Message::Progress { step, payload: vec![] });
        }
        let begun = table.now;
        let mut commands = table.says(1, broken(generation));
        while asked(&commands).is_empty() {
            commands = table.wait(ms(50), &[0, 1]);
        }
        let paused = table.now - begun;
        table.reports(0, Some(generation), state(5));
        table.reports(1, Some(generation), state(5));
        paused
    };
    let pauses: Vec<_> = (0..4).map(|_| breaks(None)).collect();
    for (paused, expected) in pauses.iter().zip([0, 250, 500, 1000]) {
        assert!(*paused >= ms(expected) && *paused < ms(expected + 100), "{pauses:?}");
    }
    assert!((0..6).map(|_| breaks(None)).all(|paused| paused < Duration::from_secs(11)), "the pauses have a limit");
    assert!(breaks(Some(6)) < ms(100), "a step resets the pause");
}

#[test]
fn a_half_copied_state_is_not_a_source() {
    let mut table = Table::running(3, 2);
    table.closes(2);
    let copying = SealReport { generation: 2, entered_generation: Some(1), followed: false, state: None };
    table.says(0, Message::SealReport(copying));
    let (_, active) = committed(&table.reports(1, Some(1), state(5)));
    assert_eq!((active.base_step, active.sources), (5, vec![1]));
}

/// Returns a group that lost all its processes at step 30, the last one while it was asked for a
/// report.
fn all_lost() -> Table {
    let mut table = Table::running(2, 1);
    table.closes(0);
    table.closes(1);
    assert_eq!(table.stage(), Stage::Gathering);
    table
}

#[test]
fn a_group_of_new_processes_rolls_back_to_its_checkpoint() {
    let mut table = all_lost();
    table.greets(10, replacement(0));
    assert!(!is_committed(&table.reports(10, None, state(20))), "the other process may return with a later state");
    table.greets(11, replacement(1));
    let commands = table.reports(11, None, state(20));
    let (_, active) = committed(&commands);
    assert_eq!(table.record().active.as_ref(), Some(&active));
    assert_eq!((active.base_step, active.sources, active.rollback), (20, vec![0, 1], true));
}

#[test]
fn steps_of_a_recorded_checkpoint_are_given_up_only_if_no_process_can_read_it() {
    for (found, still_recorded) in [(24, Some(mark(24))), (20, None)] {
        let mut table = Table::running(2, 1);
        table.says(0, Message::Checkpoint(mark(24)));
        table.closes(0);
        table.closes(1);
        table.greets(10, replacement(0));
        table.reports(10, None, state(20));
        let is_stopped = |commands: &[Command], connection| matches!(sent(commands, connection).as_slice(), [Message::Abort { reason }] if reason.contains("step 24"));
        assert!(
            is_stopped(&table.wait(RETURN_LIMIT + ms(500), &[10]), 10),
            "it started before the checkpoint was stored"
        );
        table.greets(20, replacement(0));
        assert!(is_stopped(&table.reports(20, None, state(20)), 20), "this process missed the checkpoint, too");
        table.greets(30, hello(0, 300));
        let (_, active) = committed(&table.reports(30, None, state(found)));
        assert_eq!((active.base_step, active.rollback), (found, true));
        assert_eq!(table.record().last_durable_checkpoint, still_recorded);
    }
}

#[test]
fn processes_with_different_checkpoints_of_one_step_read_again_before_the_job_ends() {
    let other = HeldState { digest: Digest::of(b"other"), ..state(20) };
    for differ_again in [false, true] {
        let mut table = all_lost();
        table.greets(10, replacement(0));
        table.reports(10, None, state(20));
        table.greets(11, replacement(1));
        let commands = table.reports(11, None, other);
        for connection in [10, 11] {
            let sent = sent(&commands, connection);
            assert!(
                matches!(sent.as_slice(), [.., Message::Abort { reason }] if reason.contains("step 20")),
                "{sent:?}"
            );
        }
        assert_eq!(end(&commands), None);
        table.greets(20, hello(0, 300));
        table.greets(21, hello(1, 301));
        table.reports(20, None, state(20));
        let commands = table.reports(21, None, if differ_again { other } else { state(20) });
        match differ_again {
            true => assert!(matches!(end(&commands), Some(Outcome::Fatal { .. })), "{commands:?}"),
            false => assert_eq!(committed(&commands).1.base_step, 20),
        }
    }
}

#[test]
fn a_process_that_may_hold_the_last_steps_is_given_up_after_a_limit() {
    let mut table = all_lost();
    table.greets(10, replacement(0));
    table.reports(10, None, state(20));
    assert_eq!(table.wait(RETURN_LIMIT - ms(500), &[10]), []);
    let (connections, active) = committed(&table.wait(Duration::from_secs(1), &[10]));
    assert_eq!((connections, active.base_step, active.rollback), (vec![10], 20, true));
}

#[test]
fn the_last_steps_survive_if_their_holder_returns() {
    let mut table = all_lost();
    table.greets(10, replacement(0));
    table.reports(10, None, state(20));
    table.wait(RETURN_LIMIT / 2, &[10]);
    assert_eq!(asked(&table.greets(1, returning(1, 1, true))), [(1, 3, false)]);
    let (_, active) = committed(&table.reports(1, Some(1), state(30)));
    assert_eq!((active.base_step, active.sources, active.rollback), (30, vec![1], false));
}

/// Returns a group whose members were all replaced and read step 20. Member 2 disappeared a moment
/// ago with step 30.
fn replaced_without_two() -> Table {
    let mut table = Table::running(3, 1);
    table.wait(RETURN_LIMIT * 2, &[0, 1, 2]);
    table.closes(2);
    table.reports(0, Some(1), state(30));
    table.reports(1, Some(1), state(30));
    table.closes(0);
    table.closes(1);
    table.greets(10, replacement(0));
    table.greets(11, replacement(1));
    table.reports(10, None, state(20));
    assert!(!is_committed(&table.reports(11, None, state(20))), "member 2 may return with a later state");
    table
}

#[test]
fn the_state_of_an_older_group_survives_if_its_holder_returns_soon() {
    let mut table = replaced_without_two();
    table.greets(2, returning(2, 1, true));
    let (_, active) = committed(&table.reports(2, Some(1), state(30)));
    assert_eq!((active.base_step, active.sources, active.rollback), (30, vec![2], true));
}

#[test]
fn a_process_of_an_older_group_is_given_up_after_a_limit() {
    let mut table = replaced_without_two();
    assert_eq!(table.wait(RETURN_LIMIT - ms(500), &[10, 11]), []);
    assert_eq!(committed(&table.wait(ms(500), &[10, 11])).1.base_step, 20);
}

#[test]
fn only_a_new_coordinator_waits_for_pods_that_never_connected() {
    for (age, waits) in [(ms(2000), true), (ms(4000), false)] {
        let config = Config { replicas: 2, least: 1, ..crate::fixtures::config(3) };
        let mut table = Table::with(config, None);
        table.form(&super::hellos(2), NOTHING);
        table.wait(age, &[0, 1]);
        table.closes(0);
        table.closes(1);
        table.greets(10, replacement(0));
        table.reports(10, None, state(20));
        table.greets(11, replacement(1));
        assert_eq!(is_committed(&table.reports(11, None, state(20))), !waits);
    }
}

#[test]
fn a_process_of_an_old_generation_is_not_a_source_despite_more_steps() {
    let mut table = Table::running(2, 1);
    table.closes(1);
    table.reports(0, Some(1), state(5));
    table.closes(0);
    table.greets(1, returning(1, 1, true));
    assert!(!is_committed(&table.reports(1, Some(1), state(6))), "generation 2 may have continued from step 5");
    table.greets(0, lockstep_elastic::Hello { committed_generation: Some(2), ..hello(0, 100) });
    let (_, active) = committed(&table.reports(0, Some(2), state(5)));
    assert_eq!((active.base_step, active.sources, active.rollback), (5, vec![0], false));
}

#[test]
fn a_group_with_a_loss_waits_until_its_store_is_back() {
    let mut table = Table::running(2, 1);
    table.store = Store::IsAway;
    assert_eq!(table.closes(1), []);
    assert_eq!(table.wait(Duration::from_secs(600), &[0]), []);
    table.store = Store::Agrees;
    let commands = table.wait(Duration::from_secs(10), &[0]);
    assert!(sent(&commands, 0).contains(&&Message::Prepare { generation: 2, planned: false }), "{commands:?}");
    table.store = Store::IsAway;
    assert_eq!(table.reports(0, Some(1), state(7)), []);
    table.store = Store::Agrees;
    let commands = table.wait(Duration::from_secs(10), &[0]);
    assert_eq!(committed(&commands).1.base_step, 7);
    assert_eq!(change(&commands).lost.len(), 1);
}

#[test]
fn a_member_lost_while_a_membership_cannot_be_stored_is_lost_from_the_previous_one() {
    let mut table = Table::running(3, 1);
    table.closes(2);
    table.reports(0, Some(1), state(7));
    table.store = Store::IsSlow;
    table.reports(1, Some(1), state(7));
    table.closes(1);
    table.store = Store::Agrees;
    table.handle(Event::StoreAway);
    let commands = table.wait(Duration::from_secs(10), &[0]);
    let lost: Vec<_> = change(&commands).lost.iter().map(|(pod, _)| pod.clone()).collect();
    assert_eq!((committed(&commands).1.members.len(), lost), (1, vec![pod(2), pod(1)]));
}

#[test]
fn the_status_of_a_pause_names_the_missing_pods() {
    let mut table = Table::running(3, 3);
    table.closes(1);
    assert_eq!(table.status(), "waiting for x-worker-1, with 2 workers here");
}

#[test]
fn a_pod_that_never_connected_may_replace_a_lost_one() {
    let config = Config { replicas: 2, least: 2, ..crate::fixtures::config(3) };
    let mut table = Table::with(config, None);
    table.form(&super::hellos(2), NOTHING);
    table.closes(0);
    table.greets(2, super::original(2));
    table.reports(2, None, NOTHING);
    let commands = table.reports(1, Some(1), state(5));
    let (connections, active) = committed(&commands);
    assert_eq!((connections, active.sources, change(&commands).joined), (vec![1, 2], vec![0], vec![pod(2)]));
}
