//! The end of a group, and what the record keeps of it: result, progress and checkpoints.

use std::time::Duration;

use lockstep_elastic::{
    Digest, Message, Outcome, PlanAgreement,
    coordinator::{Command, Event},
};

use super::{
    Store, Table, asked, committed, drained, end, finished, leave, mark, original, replacement, returning, sent, state,
};
use crate::fixtures::{config, ms, pod};

#[test]
fn all_members_finish_before_any_is_released() {
    let mut table = Table::running(2, 1);
    assert!(table.says(0, finished(1, b"model")).is_empty());
    let commands =
        table.says(1, Message::Finished { generation: 1, step: 90, digest: Digest::of(b"model"), payload: vec![7] });
    for member in 0..2 {
        assert_eq!(sent(&commands, member), [&Message::Release]);
    }
    assert_eq!(end(&commands), Some(&Outcome::Finished { step: 90, digest: Digest::of(b"model"), payload: vec![7] }));
    assert!(table.says(0, Message::Heartbeat).is_empty(), "nothing happens after the end");
}

#[test]
fn a_member_may_disappear_after_its_final_report() {
    let mut table = Table::running(2, 2);
    table.says(0, finished(1, b"model"));
    assert_eq!(table.closes(0), []);
    assert!(matches!(end(&table.says(1, finished(1, b"model"))), Some(Outcome::Finished { .. })));
}

#[test]
fn different_final_models_are_fatal_and_both_members_are_named() {
    let mut table = Table::running(2, 1);
    table.says(0, finished(1, b"model"));
    let commands = table.says(1, finished(1, b"another"));
    let Some(Outcome::Fatal { message, .. }) = end(&commands) else { panic!("{commands:?}") };
    assert!(message.contains("x-worker-0") && message.contains("x-worker-1"), "{message}");
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Abort { .. }]));
}

#[test]
fn a_loss_after_the_reporters_result_does_not_matter() {
    let mut table = Table::running(3, 3);
    table.says(0, finished(1, b"model"));
    table.says(1, finished(1, b"model"));
    assert!(matches!(end(&table.closes(2)), Some(Outcome::Finished { step: 90, .. })));
}

#[test]
fn the_survivors_repeat_the_result_if_the_reporter_is_lost_before_its_report() {
    let mut table = Table::running(3, 3);
    table.says(1, finished(1, b"model"));
    table.says(2, finished(1, b"model"));
    assert_eq!(asked(&table.closes(0)), [(1, 2, false), (2, 2, false)], "although a group needs three to train");
    table.reports(1, Some(1), state(90));
    assert_eq!(committed(&table.reports(2, Some(1), state(90))).0, [1, 2]);
    table.says(1, finished(2, b"model"));
    assert!(matches!(end(&table.says(2, finished(2, b"model"))), Some(Outcome::Finished { .. })));
}

#[test]
fn the_reporter_is_the_first_member_that_did_not_copy_the_state() {
    for (lost, finishes) in [(10, true), (1, false)] {
        let mut table = Table::running(3, 2);
        table.greets(10, replacement(0));
        table.reports(10, None, state(4));
        table.reports(1, Some(1), state(5));
        table.reports(2, Some(1), state(5));
        for member in [1, 2, 10] {
            if member != lost {
                assert_eq!(end(&table.says(member, finished(2, b"model"))), None);
            }
        }
        let commands = table.closes(lost);
        assert_eq!(end(&commands).is_some(), finishes, "without the one on connection {lost}");
    }
}

#[test]
fn a_result_that_arrives_during_a_pause_ends_the_pause() {
    let mut table = Table::running(2, 2);
    table.closes(0);
    assert_eq!(asked(&table.says(1, finished(1, b"model"))), [(1, 2, false)]);
    assert_eq!(committed(&table.reports(1, Some(1), state(90))).0, [1]);
    assert!(matches!(end(&table.says(1, finished(2, b"model"))), Some(Outcome::Finished { .. })));
}

#[test]
fn a_loss_during_the_last_step_of_another_member_needs_one_more_generation() {
    let mut table = Table::running(3, 3);
    table.says(0, finished(1, b"model"));
    assert_eq!(asked(&table.closes(2)), [(0, 2, false), (1, 2, false)]);
    table.reports(0, Some(1), state(90));
    let (_, active) = committed(&table.reports(1, Some(1), state(89)));
    assert_eq!((active.base_step, active.sources), (90, vec![0]));
    table.says(0, finished(2, b"model"));
    assert!(matches!(end(&table.says(1, finished(2, b"model"))), Some(Outcome::Finished { .. })));
}

#[test]
fn a_group_needs_enough_members_again_if_the_result_is_lost() {
    let mut table = Table::running(2, 2);
    table.says(1, finished(1, b"model"));
    table.closes(0);
    table.closes(1);
    assert_eq!(asked(&table.greets(10, replacement(0))), [(10, 3, false)]);
    table.greets(11, replacement(1));
    table.reports(10, None, state(80));
    let (_, active) = committed(&table.reports(11, None, state(80)));
    assert!(active.rollback);
    table.closes(11);
    assert_eq!(table.wait(Duration::from_secs(5), &[10]), [], "one member alone does not train");
}

#[test]
fn a_fatal_error_of_one_member_ends_the_group_and_is_acknowledged() {
    let mut table = Table::running(2, 1);
    let commands = table.says(1, Message::Fatal { message: "labels out of range".into() });
    assert_eq!(sent(&commands, 0), [&Message::Abort { reason: "x-worker-1 failed: labels out of range".into() }]);
    assert_eq!(sent(&commands, 1), [&Message::Release]);
    let fatal = Outcome::Fatal { member: original(1).member, message: "labels out of range".into() };
    assert_eq!(end(&commands), Some(&fatal));
}

#[test]
fn a_divergence_ends_the_group_and_is_acknowledged_but_is_not_fatal() {
    let mut table = Table::running(2, 1);
    let commands = table.says(1, Message::Diverged { message: "other weights".into() });
    assert_eq!(sent(&commands, 0), [&Message::Abort { reason: "other weights".into() }]);
    assert_eq!(sent(&commands, 1), [&Message::Release]);
    let diverged = Outcome::Diverged { member: original(1).member, message: "other weights".into() };
    assert_eq!(end(&commands), Some(&diverged));
}

#[test]
fn a_fatal_error_ends_the_group_during_a_change_as_well() {
    let mut table = Table::running(3, 1);
    table.closes(2);
    let commands = table.says(1, Message::Fatal { message: "labels out of range".into() });
    assert!(matches!(end(&commands), Some(Outcome::Fatal { member, .. }) if member.pod == pod(1)), "{commands:?}");
}

#[test]
fn a_group_trains_on_while_its_store_is_away() {
    let mut table = Table::running(2, 1);
    table.store = Store::IsAway;
    assert_eq!(table.says(0, Message::Checkpoint(mark(20))), []);
    assert_eq!(table.wait(Duration::from_secs(60), &[0, 1]), []);
    table.store = Store::Agrees;
    assert_eq!(table.wait(Duration::from_secs(10), &[0, 1]), []);
    assert_eq!(table.record().last_durable_checkpoint, Some(mark(20)));
}

#[test]
fn a_result_is_announced_after_the_record_shows_that_no_other_group_goes_on() {
    let mut table = Table::running(2, 1);
    table.store = Store::IsAway;
    table.says(0, Message::Checkpoint(mark(20)));
    table.says(0, finished(1, b"model"));
    assert_eq!(end(&table.says(1, finished(1, b"model"))), None);
    assert_eq!(end(&table.wait(Duration::from_secs(60), &[0, 1])), None);
    table.store = Store::Agrees;
    let commands = table.wait(Duration::from_secs(10), &[0, 1]);
    assert!(matches!(end(&commands), Some(Outcome::Finished { .. })), "{commands:?}");
    assert_eq!(table.record().last_durable_checkpoint, Some(mark(20)));
}

#[test]
fn a_drained_member_is_released_after_the_record_shows_that_no_other_group_goes_on() {
    let mut table = Table::running(2, 2);
    table.says(0, leave());
    table.says(0, Message::Checkpoint(mark(20)));
    table.store = Store::IsAway;
    table.says(0, drained(1, 20));
    assert_eq!(end(&table.says(1, drained(1, 20))), None);
    table.closes(0);
    table.closes(1);
    assert_eq!(end(&table.wait(Duration::from_secs(60), &[])), None);
    table.store = Store::Agrees;
    assert_eq!(end(&table.wait(Duration::from_secs(10), &[])), Some(&Outcome::Drained { step: 20 }));
    assert_eq!(table.record().rested, Some(20));
}

#[test]
fn a_checkpoint_enters_the_record_and_an_older_one_does_not_replace_it() {
    let mut table = Table::running(2, 1);
    table.says(0, Message::Checkpoint(mark(20)));
    table.says(1, Message::Checkpoint(mark(10)));
    assert_eq!(table.record().last_durable_checkpoint, Some(mark(20)));
}

#[test]
fn a_checkpoint_during_a_change_is_recorded_afterwards() {
    let mut table = Table::running(3, 1);
    table.closes(2);
    table.says(0, Message::Checkpoint(mark(20)));
    assert_eq!(table.record().last_durable_checkpoint, None);
    table.reports(0, Some(1), state(20));
    table.reports(1, Some(1), state(20));
    assert_eq!(table.record().last_durable_checkpoint, Some(mark(20)));
    assert_eq!(table.record().active.map(|active| active.generation), Some(2));
}

#[test]
fn only_newer_progress_is_published() {
    let mut table = Table::running(2, 1);
    let progress = |step| Message::Progress { step, payload: vec![1] };
    for (who, step, expected) in [(0, 5, true), (0, 4, false), (1, 6, true), (0, 5, false), (0, 7, true)] {
        let published = table.says(who, progress(step)).iter().any(|c| matches!(c, Command::Publish { .. }));
        assert_eq!(published, expected, "member {who} at step {step}");
    }
}

#[test]
fn a_group_whose_store_failed_saves_its_state_and_ends() {
    let failed = Outcome::StoreFailed { message: "no record".into() };
    let drain = |commands: &[Command]| {
        let said = |member| matches!(sent(commands, member).as_slice(), [Message::Drain { reason }] if reason.contains("no record"));
        said(0) && said(1)
    };
    let mut table = Table::running(2, 2);
    table.store = Store::Fails;
    let commands = table.says(1, Message::Checkpoint(mark(40)));
    assert!(drain(&commands) && end(&commands).is_none(), "{commands:?}");
    // The checkpoint at the end is not recorded either.
    assert_eq!(table.says(0, Message::Checkpoint(mark(44))), []);
    assert_eq!(end(&table.says(0, drained(1, 44))), None);
    let commands = table.says(1, drained(1, 44));
    assert_eq!(end(&commands), Some(&failed));
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Abort { .. }]), "{commands:?}");

    let mut changing = Table::running(2, 1);
    changing.store = Store::Fails;
    changing.says(1, Message::Leave { reason: "asked to stop".into() });
    let commands = changing.wait(ms(600), &[0, 1]);
    assert!(drain(&commands) && end(&commands).is_none(), "{commands:?}");
    // The remaining members have no agreed state. The newest checkpoint has one.
    assert_eq!(end(&changing.closes(1)), Some(&failed));

    let mut done = Table::running(2, 2);
    done.store = Store::Fails;
    done.says(1, Message::Checkpoint(mark(88)));
    done.says(0, finished(1, b"model"));
    assert!(
        matches!(end(&done.says(1, finished(1, b"model"))), Some(Outcome::Finished { .. })),
        "a result counts even without a record"
    );
}

#[test]
fn a_coordinator_without_a_training_group_stops_at_once() {
    assert_eq!(end(&Table::new(2).handle(Event::Stop)), Some(&Outcome::Stopped));

    let mut gathering = Table::new(2);
    gathering.greets(0, original(0));
    assert_eq!(end(&gathering.handle(Event::Stop)), Some(&Outcome::Stopped));

    let mut deserted = Table::running(1, 1);
    deserted.closes(0);
    assert_eq!(end(&deserted.handle(Event::Stop)), Some(&Outcome::Stopped));
}

#[test]
fn a_coordinator_whose_group_changes_or_pauses_stops_after_its_limit_without_an_abort() {
    for least in [1, 2] {
        let mut table = Table::running(2, least);
        table.closes(1);
        assert_eq!(end(&table.handle(Event::Stop)), None);
        let commands = table.wait(config(1).drain_limit + ms(500), &[0]);
        let aborted = commands.iter().any(|c| matches!(c, Command::Send(_, Message::Abort { .. })));
        assert_eq!((end(&commands), aborted), (Some(&Outcome::Stopped), false), "at least {least}");
    }
}

#[test]
fn a_coordinator_with_a_group_lets_it_drain_before_it_stops() {
    let mut asked_to_stop = Table::running(1, 1);
    assert_eq!(end(&asked_to_stop.handle(Event::Stop)), None);
    assert_eq!(end(&asked_to_stop.says(0, drained(1, 8))), Some(&Outcome::Drained { step: 8 }));

    let mut abandoned = Table::running(1, 1);
    abandoned.handle(Event::Stop);
    assert_eq!(end(&abandoned.wait(config(1).drain_limit + ms(500), &[0])), Some(&Outcome::Stopped));
}

#[test]
fn a_final_report_of_an_older_generation_does_not_count_for_the_newest() {
    for late in [finished(1, b"model"), drained(1, 5)] {
        let mut table = Table::running(3, 1);
        table.closes(2);
        table.reports(0, Some(1), state(5));
        table.reports(1, Some(1), state(5));
        assert_eq!(table.says(0, late.clone()), []);
        assert_eq!(asked(&table.closes(0)), [(1, 3, false)], "it trained on and is lost: {late:?}");
    }
}

#[test]
fn the_furthest_step_counts_if_members_drained_at_different_steps() {
    let mut table = Table::running(2, 1);
    table.says(0, drained(1, 9));
    assert_eq!(end(&table.says(1, drained(1, 8))), Some(&Outcome::Drained { step: 9 }));
}

#[test]
fn the_checkpoint_of_a_drained_group_holds_its_whole_state() {
    let mut table = Table::running(2, 2);
    table.says(0, Message::Checkpoint(mark(9)));
    table.says(0, drained(1, 9));
    table.says(1, drained(1, 9));
    assert_eq!(table.record().rested, Some(9), "the next group need not wait for these members");
}

fn agreement(after: u64, plan: &[u8]) -> PlanAgreement {
    PlanAgreement { after, plan: Digest::of(plan) }
}

fn agreed(after: u64, plan: &[u8]) -> Message {
    Message::Agreed { generation: 1, summing: agreement(after, plan) }
}

#[test]
fn the_plans_of_a_group_are_part_of_its_history() {
    let (ring, tree) = ((0, &b"ring"[..]), (20, &b"tree"[..]));
    let histories = [vec![], vec![ring], vec![ring, tree]].map(|plans| {
        let mut table = Table::running(2, 2);
        for member in 0..2 {
            // One of them is ahead of the other.
            plans.iter().for_each(|(after, plan)| drop(table.says(member, agreed(*after, plan))));
        }
        table.says(0, Message::Agreed { generation: 7, summing: agreement(0, b"another generation's") });
        table.says(0, finished(1, b"model"));
        table.says(1, finished(1, b"model"));
        table.record().history
    });
    let without = Table::running(2, 2).record();
    let with_one = without.summed_by(&agreement(0, b"ring"));
    let with_both = with_one.summed_by(&agreement(20, b"tree"));
    assert_eq!(histories, [without, with_one, with_both].map(|record| record.history));
}

#[test]
fn plans_are_recorded_once_although_the_next_coordinator_hears_them_again() {
    let say_all = |table: &mut Table| {
        for member in 0..2 {
            table.says(member, agreed(0, b"ring"));
        }
        for member in 0..2 {
            table.says(member, finished(1, b"model"));
        }
    };
    let mut table = Table::running(2, 2);
    say_all(&mut table);
    let record = table.record();
    // It died before it released the members.
    let mut table = Table::with(config(2), Some(record.clone()));
    for member in 0..2 {
        table.greets(member, returning(member as usize, 1, false));
    }
    say_all(&mut table);
    assert_eq!(table.record().history, record.history);
}

#[test]
fn members_with_different_plans_are_stopped() {
    let mut table = Table::running(2, 2);
    assert_eq!(table.says(0, agreed(20, b"ring")), []);
    assert_eq!(table.says(1, agreed(0, b"tree")), [], "the other member's plan at that step is not known");
    let commands = table.says(1, agreed(20, b"tree"));
    let Some(Outcome::Fatal { member, message }) = end(&commands) else { panic!("{commands:?}") };
    assert!(member.pod == pod(1) && message.contains("but others of generation 1"), "{message}");
}
