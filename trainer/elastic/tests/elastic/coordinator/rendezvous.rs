//! Admission of processes, and the first group.

use lockstep_elastic::{
    Digest, HeldState, Hello, Message, Outcome,
    coordinator::{Command, Config, ConnectionId, Event, RETURN_LIMIT, START_LIMIT, Stage},
    message::FrameError,
};

use super::{
    CLOSED, Store, Table, asked, change, committed, end, hellos, is_committed, mark, original, replacement, sent, state,
};
use crate::fixtures::{NOTHING, SAMPLER, config, hello, ms, pod};

fn refusal(commands: &[Command], to: u64) -> String {
    match sent(commands, to).as_slice() {
        [Message::Refuse { reason, .. }] => reason.clone(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn the_first_group_is_generation_one_with_ranks_in_pod_order() {
    let mut table = Table::new(11);
    let commands = table.form(&hellos(11), NOTHING);
    let (connections, active) = committed(&commands);
    assert_eq!(connections, (0..11).collect::<Vec<_>>());
    assert_eq!((active.generation, active.members[10].pod.as_str()), (1, "x-worker-10"));
    assert_eq!((active.base_step, active.base_digest, active.sampler), (0, Digest::NONE, SAMPLER));
    assert_eq!((active.sources.len(), active.rollback), (11, false));
    assert_eq!(change(&commands).joined, (0..11).map(pod).collect::<Vec<_>>());
    assert_eq!(table.record().active, Some(active));
}

#[test]
fn a_generation_is_prepared_only_after_it_was_allocated() {
    let mut table = Table::new(1);
    table.store = Store::IsSlow;
    assert_eq!(table.greets(0, original(0)), []);
    assert_eq!(asked(&table.store_answers()), [(0, 1, false)]);
}

#[test]
fn no_member_is_committed_before_the_membership_is_recorded() {
    let mut table = Table::new(1);
    table.greets(0, original(0));
    table.store = Store::IsSlow;
    assert_eq!(table.reports(0, None, NOTHING), []);
    assert!(is_committed(&table.store_answers()));
}

#[test]
fn the_first_group_waits_for_all_members_and_later_for_enough() {
    let later = START_LIMIT + ms(500);
    for (here, waited, forms) in
        [(4, ms(0), true), (3, START_LIMIT - ms(500), false), (3, later, true), (2, later, true), (1, later, false)]
    {
        let mut table = Table::with(Config { least: 2, ..config(4) }, None);
        let connections: Vec<u64> = (0..here).collect();
        let mut commands: Vec<_> =
            connections.iter().flat_map(|member| table.greets(*member, original(*member as usize))).collect();
        commands.extend(table.wait(waited, &connections));
        assert_eq!(!asked(&commands).is_empty(), forms, "{here} of 4 after {waited:?}");
    }
}

#[test]
fn the_first_group_does_not_wait_for_more_pods_than_replicas() {
    let mut table = Table::with(Config { replicas: 2, least: 2, ..config(4) }, None);
    table.greets(1, original(1));
    assert_eq!(asked(&table.greets(3, original(3))), [(1, 1, false), (3, 1, false)]);
}

#[test]
fn the_missing_worker_is_named() {
    let mut table = Table::new(4);
    for member in [0, 1, 3] {
        table.greets(member, original(member as usize));
    }
    assert_eq!(table.status(), "waiting for x-worker-2, with 3 workers here");
    table.closes(0);
    assert_eq!(table.status(), "waiting for 2 workers: x-worker-0, x-worker-2");
}

#[test]
fn a_process_that_does_not_belong_is_refused_by_name_without_harm() {
    let other_job = Hello { job: "other".into(), ..hello(1, 1) };
    let other_attempt = Hello { attempt: 7, ..hello(1, 1) };
    let other_workload = Hello { workload: Digest::of(b"mlp"), ..hello(1, 1) };
    let other_data = Hello { data: Digest::of(b"mnist"), ..hello(1, 1) };
    let (lenet, mlp) = (format!("{:.12}", Digest::of(b"lenet")), format!("{:.12}", Digest::of(b"mlp")));
    let (glyphs, mnist) = (format!("{:.12}", Digest::of(b"glyphs")), format!("{:.12}", Digest::of(b"mnist")));
    for (stranger, names) in [
        (other_job, vec!["other", "uid"]),
        (other_attempt, vec!["attempt is 7"]),
        (hello(5, 1), vec!["x-worker-5"]),
        (other_workload, vec!["x-worker-0", "x-worker-1", &lenet, &mlp]),
        (other_data, vec!["x-worker-0", "x-worker-1", &glyphs, &mnist]),
    ] {
        let mut table = Table::new(2);
        table.greets(0, original(0));
        let commands = table.greets(9, stranger);
        let reason = refusal(&commands, 9);
        assert!(names.iter().all(|name| reason.contains(name)), "{names:?} in {reason}");
        assert!(commands.contains(&Command::Close(ConnectionId(9))));
        assert_eq!(committed(&table.form(&hellos(2), NOTHING)).1.generation, 1);
    }
}

#[test]
fn a_process_refused_after_the_group_has_trained_may_be_replaced() {
    let mut table = Table::new(2);
    let stranger = || Hello { data: Digest::of(b"mnist"), ..hello(1, 7) };
    table.greets(0, original(0));
    let may_retry = |commands: &[Command], to| match sent(commands, to).as_slice() {
        [Message::Refuse { may_retry, .. }] => *may_retry,
        other => panic!("expected a refusal, got {other:?}"),
    };
    assert!(!may_retry(&table.greets(8, stranger()), 8), "no member has trained");
    table.form(&hellos(2), NOTHING);
    assert!(may_retry(&table.greets(9, stranger()), 9));
    let commands = table.handle(Event::Garbled(ConnectionId(10), FrameError::Version { theirs: 9 }));
    assert!(may_retry(&commands, 10));
}

#[test]
fn another_protocol_version_is_refused_with_its_number() {
    let commands = Table::new(2).handle(Event::Garbled(ConnectionId(4), FrameError::Version { theirs: 9 }));
    assert!(refusal(&commands, 4).contains("version 9"));
    assert!(commands.contains(&Command::Close(ConnectionId(4))));
}

#[test]
fn a_message_before_the_hello_closes_the_connection() {
    assert_eq!(Table::new(2).says(4, Message::Heartbeat), [Command::Close(ConnectionId(4))]);
}

#[test]
fn a_heartbeat_is_answered_with_a_heartbeat() {
    let mut table = Table::new(2);
    table.greets(0, original(0));
    assert_eq!(sent(&table.says(0, Message::Heartbeat), 0), [&Message::Heartbeat]);
}

#[test]
fn a_new_process_replaces_the_old_one_while_the_group_forms() {
    let mut table = Table::new(2);
    table.greets(0, original(0));
    let commands = table.greets(10, replacement(0));
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Abort { .. }]), "{commands:?}");
    assert!(commands.contains(&Command::Close(ConnectionId(0))));
    table.greets(1, original(1));
    table.reports(10, None, NOTHING);
    let (connections, active) = committed(&table.reports(1, None, NOTHING));
    assert_eq!((connections, active.members[0].id()), (vec![10, 1], replacement(0).member));
}

#[test]
fn a_loss_before_the_commit_starts_a_new_generation_that_waits_for_the_member() {
    let mut table = Table::new(2);
    table.greets(0, original(0));
    table.greets(1, original(1));
    table.reports(0, None, NOTHING);
    assert_eq!(table.closes(1), []);
    assert_eq!(table.stage(), Stage::Gathering);
    assert_eq!(asked(&table.greets(11, replacement(1))), [(0, 2, false), (11, 2, false)]);
    table.reports(0, None, NOTHING);
    assert_eq!(committed(&table.reports(11, None, NOTHING)).1.generation, 2);
}

#[test]
fn a_report_for_an_older_generation_does_not_count_and_is_requested_again() {
    let mut table = Table::new(2);
    table.greets(0, original(0));
    table.greets(1, original(1));
    table.closes(1);
    table.reports(0, None, NOTHING);
    table.greets(11, replacement(1));
    table.reports(11, None, NOTHING);
    let old =
        lockstep_elastic::SealReport { generation: 1, entered_generation: None, followed: false, state: Some(NOTHING) };
    let commands = table.says(0, Message::SealReport(old));
    assert_eq!((asked(&commands), is_committed(&commands)), (vec![(0, 2, false)], false));
}

#[test]
fn a_member_that_disappears_during_the_swap_is_lost_from_the_new_membership() {
    let mut table = Table::with(Config { least: 1, ..config(2) }, None);
    table.greets(0, original(0));
    table.greets(1, original(1));
    table.reports(0, None, NOTHING);
    table.store = Store::IsSlow;
    table.reports(1, None, NOTHING);
    table.closes(1);
    let commands = table.store_answers();
    assert_eq!((committed(&commands).0, asked(&commands)), (vec![0], vec![(0, 2, false)]));
    assert_eq!(change(&commands).lost, []);
    let commands = table.reports(0, Some(1), NOTHING);
    let lost = vec![(pod(1), "it disappeared while the group was formed".to_owned())];
    assert_eq!((committed(&commands).0, change(&commands).lost), (vec![0], lost));
}

#[test]
fn a_member_lost_during_the_swap_is_announced_as_lost_once() {
    let mut table = Table::running(3, 1);
    table.closes(2);
    table.reports(0, Some(1), NOTHING);
    table.store = Store::IsSlow;
    table.reports(1, Some(1), NOTHING);
    table.closes(1);
    let commands = table.store_answers();
    assert_eq!(change(&commands).lost, [(pod(2), CLOSED.to_owned())]);
    let lost: Vec<_> = change(&table.reports(0, Some(2), NOTHING)).lost.into_iter().map(|(pod, _)| pod).collect();
    assert_eq!(lost, [pod(1)]);
}

#[test]
fn the_newest_of_different_checkpoints_counts_and_the_others_copy_it() {
    let mut table = Table::new(3);
    for member in 0..3 {
        table.greets(member, original(member as usize));
    }
    table.reports(0, None, state(50));
    table.reports(1, None, state(60));
    let (_, active) = committed(&table.reports(2, None, state(60)));
    assert_eq!((active.base_step, active.base_digest, active.sampler), (60, state(60).digest, state(60).sampler));
    assert_eq!((active.sources, active.rollback), (vec![1, 2], false));
}

#[test]
fn members_with_different_checkpoints_of_one_step_are_named_with_their_digests() {
    let other = HeldState { digest: Digest::of(b"other"), ..state(50) };
    let mut table = Table::new(2);
    table.greets(0, original(0));
    table.greets(1, original(1));
    table.reports(0, None, state(50));
    let commands = table.reports(1, None, other);
    let Some(Outcome::Fatal { message, .. }) = end(&commands) else { panic!("{commands:?}") };
    let (one, two) = (format!("{:.12}", state(50).digest), format!("{:.12}", other.digest));
    for name in ["x-worker-0", "x-worker-1", "step 50", &one, &two] {
        assert!(message.contains(name), "{name} in {message}");
    }
    for member in [0, 1] {
        assert!(matches!(sent(&commands, member).as_slice(), [Message::Abort { .. }]), "{commands:?}");
    }
}

#[test]
fn a_later_attempt_starts_from_its_checkpoint_without_a_wait_for_old_processes() {
    let record = Table::running(2, 2).record();
    let mut table = Table::with(Config { attempt: 1, ..config(2) }, Some(record));
    let hellos: Vec<_> = (0..2).map(|index| Hello { attempt: 1, ..replacement(index) }).collect();
    let (_, active) = committed(&table.form(&hellos, state(50)));
    assert_eq!((active.generation, active.attempt), (2, 1));
    assert_eq!((active.base_step, active.sources, active.rollback), (50, vec![0, 1], true));
    assert!(table.now < RETURN_LIMIT);
}

#[test]
fn a_later_attempt_starts_at_once_behind_a_recorded_checkpoint_that_no_process_could_read() {
    let record = Table::running(2, 2).record().mark(mark(60));
    let mut table = Table::with(Config { attempt: 1, ..config(2) }, Some(record));
    let hellos: Vec<_> = (0..2).map(|index| Hello { attempt: 1, ..replacement(index) }).collect();
    let (_, active) = committed(&table.form(&hellos, state(50)));
    assert_eq!((active.base_step, active.rollback), (50, true));
    assert_eq!(table.record().last_durable_checkpoint, None, "the record drops the unreadable checkpoint");
}

#[test]
fn a_group_that_forms_ends_if_its_store_fails() {
    let mut table = Table::new(1);
    table.store = Store::Fails;
    let commands = table.greets(0, original(0));
    assert_eq!(end(&commands), Some(&Outcome::StoreFailed { message: "no record".into() }));
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Abort { .. }]), "{commands:?}");
}
