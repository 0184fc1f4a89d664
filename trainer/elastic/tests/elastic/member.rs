use std::time::Duration;

use lockstep_elastic::{
    Active, Assignment, Break, CheckpointMark, Digest, FollowedGroup, Follower, HeldState, Hello, Member, Message,
    PlanAgreement, RankedMember, SealReport,
    member::{COORDINATOR_DEAD_AFTER, Command, Event, FinalReport, HEARTBEAT_EVERY, REPEAT_AFTER},
};

use crate::fixtures::{NOTHING, SAMPLER, hello, ms};

fn active(generation: u64, hello: &Hello, base: HeldState) -> Active {
    let HeldState { step: base_step, digest: base_digest, sampler } = base;
    Active {
        generation,
        attempt: 0,
        members: vec![RankedMember {
            pod: hello.member.pod.clone(),
            incarnation: hello.member.incarnation,
            address: hello.address,
            rank: 0,
        }],
        base_step,
        base_digest,
        shards: 64,
        sampler,
        sources: vec![0],
        copiers: Vec::new(),
        rollback: false,
    }
}

fn state(step: u64) -> HeldState {
    HeldState { step, digest: Digest::of(&step.to_le_bytes()), sampler: SAMPLER }
}

fn commit_at(generation: u64, base: HeldState) -> Event {
    Event::Received(Message::Commit { rank: 0, active: active(generation, &hello(0, 1), base) })
}

fn commit(generation: u64) -> Event {
    commit_at(generation, NOTHING)
}

fn prepare(generation: u64) -> Event {
    Event::Received(Message::Prepare { generation, planned: false })
}

fn planned(generation: u64) -> Event {
    Event::Received(Message::Prepare { generation, planned: true })
}

fn sealed(step: u64) -> Event {
    Event::Sealed { held: Some(state(step)), broken: None }
}

fn hung_up() -> Break {
    Break::from("rank 2 hung up")
}

fn broken() -> Event {
    Event::Sealed { held: Some(state(5)), broken: Some(hung_up()) }
}

fn report(generation: u64, entered_generation: Option<u64>, held: HeldState) -> Command {
    Command::Send(Message::SealReport(SealReport {
        generation,
        entered_generation,
        followed: false,
        state: Some(held),
    }))
}

fn handle(member: &mut Member, event: Event, at: u64) -> Vec<Command> {
    let mut commands = member.handle(event, ms(at));
    commands.retain(|c| !matches!(c, Command::WakeAt(_)));
    commands
}

/// Returns the messages that follow from the passing time, without heartbeats.
fn later(member: &mut Member, at: u64) -> Vec<Command> {
    let mut commands = handle(member, Event::Tick, at);
    commands.retain(|c| *c != Command::Send(Message::Heartbeat));
    commands
}

fn connected() -> Member {
    let mut member = Member::new(hello(0, 1), NOTHING);
    handle(&mut member, Event::Connected, 0);
    member
}

/// Returns a member that is committed to generation 1 and holds its starting state.
fn running() -> Member {
    let mut member = connected();
    handle(&mut member, prepare(1), 1);
    assert!(entered(&handle(&mut member, commit(1), 2)));
    member
}

fn entered(commands: &[Command]) -> bool {
    commands.iter().any(|c| matches!(c, Command::Enter(_)))
}

const REPEAT_MS: u64 = REPEAT_AFTER.as_millis() as u64;

#[test]
fn a_hello_comes_first_and_repeats_until_a_request() {
    let mut member = Member::new(hello(0, 1), NOTHING);
    let greeting = Command::Send(Message::Hello(hello(0, 1)));
    assert_eq!(handle(&mut member, Event::Connected, 0), std::slice::from_ref(&greeting));
    assert_eq!(later(&mut member, REPEAT_MS - 1), []);
    assert_eq!(later(&mut member, REPEAT_MS), [greeting]);
    handle(&mut member, prepare(1), REPEAT_MS + 1);
    assert_eq!(later(&mut member, 3 * REPEAT_MS), [report(1, None, NOTHING)], "it waits for the commit now");
}

#[test]
fn a_new_process_is_sealed_and_reports_its_state_at_once() {
    let mut member = Member::new(hello(0, 1), state(50));
    handle(&mut member, Event::Connected, 0);
    assert_eq!(handle(&mut member, prepare(3), 1), [report(3, None, state(50))]);
}

#[test]
fn a_training_member_reports_only_after_it_has_sealed() {
    for (event, planned) in [(prepare(2), false), (planned(2), true)] {
        let mut member = running();
        assert_eq!(handle(&mut member, event, 3), [Command::Seal { generation: 2, planned }]);
        assert_eq!(later(&mut member, 3 * REPEAT_MS), [], "it still trains");
        let sealed = handle(&mut member, sealed(9), 3 * REPEAT_MS + 1);
        assert_eq!(sealed, [report(2, Some(1), state(9))]);
        assert_eq!(
            later(&mut member, 5 * REPEAT_MS),
            [report(2, Some(1), state(9))],
            "it repeats the report until an answer"
        );
    }
}

#[test]
fn a_planned_seal_that_became_urgent_is_commanded_again() {
    let mut member = running();
    handle(&mut member, planned(2), 3);
    assert_eq!(handle(&mut member, planned(2), 4), [], "the worker already knows");
    assert_eq!(handle(&mut member, prepare(3), 5), [Command::Seal { generation: 3, planned: false }]);
}

#[test]
fn a_member_has_entered_only_once_it_holds_the_state_of_its_generation() {
    let held = state(5);
    for (situation, base, says_so, expected) in [
        ("it held the state before", held, false, Some(2)),
        ("it copied the state", state(7), true, Some(2)),
        ("it was still copying", state(7), false, Some(1)),
    ] {
        let mut member = running();
        handle(&mut member, prepare(2), 3);
        handle(&mut member, Event::Sealed { held: Some(held), broken: None }, 4);
        assert!(entered(&handle(&mut member, commit_at(2, base), 5)));
        if says_so {
            assert_eq!(handle(&mut member, Event::Entered, 6), []);
        }
        handle(&mut member, prepare(3), 7);
        assert_eq!(handle(&mut member, sealed(8), 8), [report(3, expected, state(8))], "{situation}");
    }
}

#[test]
fn a_member_holds_no_state_in_the_middle_of_a_copy() {
    let mut member = running();
    handle(&mut member, prepare(2), 3);
    let nothing = SealReport { generation: 2, entered_generation: None, followed: false, state: None };
    let commands = handle(&mut member, Event::Sealed { held: None, broken: None }, 4);
    assert_eq!(commands, [Command::Send(Message::SealReport(nothing))]);
}

#[test]
fn a_state_read_from_a_checkpoint_belongs_to_no_generation() {
    let mut member = running();
    handle(&mut member, prepare(2), 3);
    handle(&mut member, Event::Reloaded, 4);
    let held = Some(state(5));
    let commands = handle(&mut member, Event::Sealed { held, broken: None }, 5);
    let read = SealReport { generation: 2, entered_generation: None, followed: false, state: held };
    assert_eq!(commands, [Command::Send(Message::SealReport(read))]);
}

#[test]
fn a_failure_is_repeated_until_the_request_for_a_report() {
    let mut member = running();
    let says = Command::Send(Message::Broken { generation: 1, broken: hung_up() });
    assert_eq!(handle(&mut member, broken(), 3), std::slice::from_ref(&says));
    let hello = Hello { committed_generation: Some(1), ..hello(0, 1) };
    assert_eq!(later(&mut member, 3 + REPEAT_MS), [Command::Send(Message::Hello(hello)), says]);
    let reported = [report(2, Some(1), state(5))];
    assert_eq!(handle(&mut member, prepare(2), 4 + REPEAT_MS), reported);
    assert_eq!(later(&mut member, 4 + 2 * REPEAT_MS), reported);
}

#[test]
fn a_failure_after_the_request_is_sent_as_a_report() {
    let mut member = running();
    handle(&mut member, prepare(2), 3);
    assert_eq!(handle(&mut member, broken(), 4), [report(2, Some(1), state(5))]);
}

#[test]
fn a_member_enters_only_a_generation_that_is_newer_than_its_promises_and_names_it() {
    let stranger = Message::Commit { rank: 0, active: active(2, &hello(0, 9), NOTHING) };
    let other_rank = Message::Commit { rank: 1, active: active(2, &hello(0, 1), NOTHING) };
    let situations = [
        ("the promised generation", 2, commit(2), true),
        ("a newer generation", 2, commit(3), true),
        ("an older generation", 2, commit(1), false),
        ("a commit for another process of its pod", 2, Event::Received(stranger), false),
        ("a commit with another rank", 2, Event::Received(other_rank), false),
    ];
    for (situation, promised, event, enters) in situations {
        let mut member = connected();
        handle(&mut member, prepare(promised), 1);
        assert_eq!(entered(&handle(&mut member, event, 2)), enters, "{situation}");
    }
}

#[test]
fn a_member_enters_no_generation_before_it_has_sealed() {
    let mut member = running();
    handle(&mut member, prepare(2), 3);
    assert_eq!(handle(&mut member, commit(2), 4), []);
    handle(&mut member, sealed(0), 5);
    assert!(entered(&handle(&mut member, commit(2), 6)));
}

#[test]
fn the_assignment_contains_the_starting_state() {
    let mut member = connected();
    handle(&mut member, prepare(2), 1);
    let entered = handle(&mut member, commit_at(2, state(7)), 2);
    let me = hello(0, 1);
    let group = Assignment {
        generation: 2,
        rank: 0,
        world: 1,
        addresses: vec![me.address],
        pods: vec![me.member.pod],
        base: state(7),
        sources: vec![0],
        copiers: Vec::new(),
        shards: 64,
    };
    assert_eq!(entered, [Command::Enter(group)]);
}

#[test]
fn the_first_source_reports_for_the_group() {
    for (sources, reports) in [(vec![0], true), (vec![0, 2], true), (vec![1, 2], false)] {
        let mut member = connected();
        handle(&mut member, prepare(2), 1);
        let active = Active { sources: sources.clone(), ..active(2, &hello(0, 1), NOTHING) };
        let commands = handle(&mut member, Event::Received(Message::Commit { rank: 0, active }), 2);
        let [Command::Enter(group)] = commands.as_slice() else { panic!("{commands:?}") };
        assert_eq!(group.reports(), reports, "sources {sources:?}");
    }
}

#[test]
fn a_repeated_or_old_commit_or_prepare_changes_nothing() {
    let mut member = running();
    for event in [commit(1), prepare(1), planned(1), prepare(0)] {
        assert_eq!(handle(&mut member, event.clone(), 3), [], "{event:?}");
    }
}

#[test]
fn a_member_tells_a_new_coordinator_its_generation_checkpoint_and_final_report() {
    let mut member = running();
    handle(&mut member, Event::Disconnected, 10);
    let progress = Event::Progress { step: 5, payload: vec![] };
    assert_eq!(handle(&mut member, progress, 11), [], "progress is dropped while there is no coordinator");
    let mark = CheckpointMark { step: 5, manifest_digest: Digest::of(b"manifest") };
    handle(&mut member, Event::Checkpoint(mark), 12);
    handle(&mut member, Event::FinalReport(FinalReport::Drained { step: 5 }), 13);
    let again = Hello { committed_generation: Some(1), sealed: false, ..hello(0, 1) };
    assert_eq!(
        handle(&mut member, Event::Connected, 20),
        [
            Command::Send(Message::Hello(again)),
            Command::Send(Message::Checkpoint(mark)),
            Command::Send(Message::Drained { generation: 1, step: 5 }),
        ]
    );
    assert_eq!(handle(&mut member, Event::Received(Message::Release), 21), [Command::Released]);
}

#[test]
fn a_stuck_member_says_so_and_disconnects_and_returns_unchanged_once_it_moves() {
    let mut member = running();
    let reason = "its training thread has not moved for 5.0 s".to_owned();
    let stuck = Event::Stuck { reason: reason.clone() };
    assert_eq!(handle(&mut member, stuck, 3), [Command::Send(Message::Stuck { reason }), Command::Reconnect]);
    handle(&mut member, Event::Disconnected, 4);
    let training = Hello { committed_generation: Some(1), sealed: false, ..hello(0, 1) };
    assert_eq!(handle(&mut member, Event::Connected, 9), [Command::Send(Message::Hello(training))]);
}

fn drain() -> Message {
    Message::Drain { reason: "x-worker-0 has to leave: SIGTERM".into() }
}

#[test]
fn a_member_repeats_unanswered_messages_to_the_next_coordinator() {
    let sealed_hello = Command::Send(Message::Hello(Hello { committed_generation: Some(1), ..hello(0, 1) }));
    let training = Hello { committed_generation: Some(1), sealed: false, ..hello(0, 1) };
    let leave = Command::Send(Message::Leave { reason: "SIGTERM".into() });
    for (situation, events, expected) in [
        ("its report", vec![prepare(2), sealed(5)], vec![sealed_hello.clone(), report(2, Some(1), state(5))]),
        (
            "its failure",
            vec![broken()],
            vec![sealed_hello, Command::Send(Message::Broken { generation: 1, broken: hung_up() })],
        ),
        (
            "its request to leave",
            vec![Event::Leave { reason: "SIGTERM".into() }],
            vec![Command::Send(Message::Hello(training.clone())), leave.clone()],
        ),
        (
            "its request to leave, although all were told to drain",
            vec![Event::Leave { reason: "SIGTERM".into() }, Event::Received(drain())],
            vec![Command::Send(Message::Hello(training.clone())), leave],
        ),
        ("nothing", vec![], vec![Command::Send(Message::Hello(training))]),
    ] {
        let mut member = running();
        for event in events {
            handle(&mut member, event, 3);
        }
        handle(&mut member, Event::Disconnected, 4);
        assert_eq!(handle(&mut member, Event::Connected, 5), expected, "{situation}");
    }
}

#[test]
fn a_final_report_is_repeated_until_the_release() {
    let mut member = running();
    let says = Command::Send(Message::Drained { generation: 1, step: 5 });
    assert_eq!(
        handle(&mut member, Event::FinalReport(FinalReport::Drained { step: 5 }), 3),
        std::slice::from_ref(&says)
    );
    assert_eq!(later(&mut member, 3 + REPEAT_MS), [says]);
    assert_eq!(handle(&mut member, Event::Received(Message::Release), 4 + REPEAT_MS), [Command::Released]);
}

#[test]
fn sealing_for_another_generation_withdraws_the_final_report() {
    let mut member = running();
    handle(&mut member, Event::FinalReport(FinalReport::Drained { step: 5 }), 3);
    let asked = handle(&mut member, prepare(2), 4);
    assert_eq!(asked, [Command::Seal { generation: 2, planned: false }]);
    assert_eq!(handle(&mut member, sealed(5), 5), [report(2, Some(1), state(5))]);
    assert_eq!(later(&mut member, 5 + REPEAT_MS), [report(2, Some(1), state(5))]);
}

#[test]
fn a_member_that_seals_instead_of_draining_repeats_its_request_to_leave() {
    let mut member = running();
    handle(&mut member, Event::Leave { reason: "SIGTERM".into() }, 3);
    handle(&mut member, Event::Received(drain()), 4);
    let leave = Command::Send(Message::Leave { reason: "SIGTERM".into() });
    let said = handle(&mut member, broken(), 5);
    assert!(said.contains(&leave), "{said:?}");
}

#[test]
fn a_request_to_leave_is_repeated_until_a_drain_or_a_release() {
    let mut member = running();
    let leave = Command::Send(Message::Leave { reason: "SIGTERM".into() });
    let wishes = Event::Leave { reason: "SIGTERM".into() };
    assert_eq!(handle(&mut member, wishes, 3), std::slice::from_ref(&leave));
    assert_eq!(later(&mut member, 3 + REPEAT_MS), [leave]);
    let told = [Command::Drain { reason: "x-worker-0 has to leave: SIGTERM".into() }];
    assert_eq!(handle(&mut member, Event::Received(drain()), 4 + REPEAT_MS), told);
    assert_eq!(handle(&mut member, Event::Received(drain()), 5 + REPEAT_MS), [], "once");
    assert_eq!(later(&mut member, 5 + 3 * REPEAT_MS), []);
}

#[test]
fn a_release_ends_the_membership_at_any_time() {
    let sealed = || {
        let mut member = running();
        handle(&mut member, prepare(2), 3);
        handle(&mut member, sealed(5), 4);
        member
    };
    for (situation, mut member) in [("new", connected()), ("training", running()), ("sealed", sealed())] {
        assert_eq!(handle(&mut member, Event::Received(Message::Release), 5), [Command::Released], "{situation}");
        assert!(member.handle(Event::Connected, ms(6)).is_empty(), "{situation}");
    }
}

#[test]
fn a_member_sends_nothing_after_the_end() {
    for (mut member, message, command) in [
        (running(), Message::Abort { reason: "given up".into() }, Command::Abort { reason: "given up".into() }),
        (
            connected(),
            Message::Refuse { reason: "other data".into(), may_retry: true },
            Command::Refused { reason: "other data".into(), may_retry: true },
        ),
    ] {
        assert_eq!(handle(&mut member, Event::Received(message), 3), [command]);
        assert!(member.handle(Event::Connected, ms(4)).is_empty());
    }
}

#[test]
fn a_member_that_has_trained_looks_for_another_coordinator_after_a_refusal() {
    let mut member = running();
    let refused = Message::Refuse { reason: "another job".into(), may_retry: false };
    let commands = handle(&mut member, Event::Received(refused), 3);
    assert_eq!(commands.first(), Some(&Command::Reconnect), "{commands:?}");
    let greeted = member.handle(Event::Connected, ms(4));
    assert!(matches!(greeted.first(), Some(Command::Send(Message::Hello(_)))), "{greeted:?}");
}

#[test]
fn a_member_sends_ten_heartbeats_a_second_and_leaves_a_silent_coordinator() {
    let mut member = running();
    let mut beats = 0;
    let mut at = 2;
    let silent = COORDINATOR_DEAD_AFTER + Duration::from_millis(10);
    loop {
        at += 10;
        let commands = handle(&mut member, Event::Tick, at);
        beats += commands.iter().filter(|c| **c == Command::Send(Message::Heartbeat)).count();
        if ms(at) > silent {
            assert!(commands.contains(&Command::Reconnect), "{commands:?}");
            break;
        }
        assert!(!commands.contains(&Command::Reconnect), "after {at} ms");
    }
    assert_eq!(beats as u128, COORDINATOR_DEAD_AFTER.as_millis() / HEARTBEAT_EVERY.as_millis());
}

fn follow(generation: u64) -> Event {
    Event::Received(Message::Follow(lead(generation)))
}

fn lead(generation: u64) -> FollowedGroup {
    FollowedGroup { generation, addresses: vec![hello(1, 2).address] }
}

fn caught_up(generation: u64) -> Command {
    Command::Send(Message::CaughtUp { generation, unreached: None })
}

#[test]
fn a_newcomer_follows_and_is_let_in_with_the_state_that_it_received() {
    let mut member = connected();
    assert_eq!(handle(&mut member, follow(3), 1), [Command::Follow(lead(3))]);
    assert_eq!(handle(&mut member, follow(3), 2), [], "it already follows");
    assert_eq!(handle(&mut member, Event::CaughtUp, 3), [caught_up(3)]);
    assert_eq!(handle(&mut member, planned(4), 4), [Command::Seal { generation: 4, planned: true }]);
    let commands = handle(&mut member, sealed(9), 5);
    assert_eq!(commands, [report(4, None, state(9)), caught_up(3)]);
    assert!(entered(&handle(&mut member, commit_at(4, state(9)), 6)));
    assert_eq!(later(&mut member, 6 + REPEAT_MS), [], "it is a member now");
}

#[test]
fn a_newcomer_that_could_not_follow_asks_until_it_is_let_in() {
    let mut member = connected();
    handle(&mut member, follow(3), 1);
    assert_eq!(handle(&mut member, sealed(0), 2), [caught_up(3)]);
    assert_eq!(handle(&mut member, follow(3), 3), [caught_up(3)], "it has tried already");
    let commands = later(&mut member, 3 + REPEAT_MS);
    assert_eq!(commands, [Command::Send(Message::Hello(hello(0, 1))), caught_up(3)]);
    assert_eq!(
        handle(&mut member, follow(4), 4 + REPEAT_MS),
        [Command::Follow(lead(4))],
        "it may follow the next group"
    );
}

#[test]
fn an_unconnected_newcomer_says_so_once_and_follows_again_on_request() {
    let mut member = connected();
    handle(&mut member, follow(3), 1);
    let broken = Some(Break { unreached: Some(1), ..Break::from("no connection") });
    let told = Command::Send(Message::CaughtUp { generation: 3, unreached: Some(1) });
    assert_eq!(handle(&mut member, Event::Sealed { held: Some(state(0)), broken }, 2), [told]);
    let commands = later(&mut member, 2 + REPEAT_MS);
    assert_eq!(
        commands,
        [Command::Send(Message::Hello(hello(0, 1)))],
        "a repeated message would count for the next attempt"
    );
    assert_eq!(handle(&mut member, follow(3), 3 + REPEAT_MS), [Command::Follow(lead(3))]);
    assert_eq!(handle(&mut member, Event::CaughtUp, 4 + REPEAT_MS), [caught_up(3)]);
}

#[test]
fn a_process_that_has_reported_its_state_is_let_in_with_it() {
    let mut member = connected();
    handle(&mut member, prepare(3), 1);
    assert_eq!(handle(&mut member, follow(4), 2), [caught_up(4)]);
}

#[test]
fn a_member_of_an_old_group_seals_before_it_follows_another() {
    let told = |generation| Event::Received(Message::Seal { generation });
    let mut member = running();
    assert_eq!(handle(&mut member, told(1), 3), [], "it trains in this group");
    assert_eq!(handle(&mut member, told(3), 3), [Command::Seal { generation: 3, planned: false }]);
    let hello = Command::Send(Message::Hello(Hello { committed_generation: Some(1), ..hello(0, 1) }));
    assert_eq!(handle(&mut member, sealed(5), 4), std::slice::from_ref(&hello), "at once");
    assert_eq!(handle(&mut member, told(3), 5), [hello]);
    assert_eq!(handle(&mut member, follow(3), 6), [Command::Follow(lead(3))]);
    assert_eq!(handle(&mut member, told(3), 7), []);
}

#[test]
fn a_received_state_belongs_to_the_followed_generation() {
    let mut member = running();
    handle(&mut member, sealed(5), 3);
    handle(&mut member, follow(3), 4);
    handle(&mut member, Event::TookOver, 5);
    handle(&mut member, planned(4), 6);
    let held = Some(state(9));
    let report = SealReport { generation: 4, entered_generation: Some(3), followed: true, state: held };
    assert_eq!(handle(&mut member, sealed(9), 7), [Command::Send(Message::SealReport(report)), caught_up(3)]);
}

#[test]
fn a_member_is_told_to_feed_a_newcomer() {
    let mut member = running();
    let Hello { member: newcomer, address, .. } = hello(1, 2);
    let follower = Follower { generation: 1, member: newcomer, address };
    let commands = handle(&mut member, Event::Received(Message::Feed(follower.clone())), 3);
    assert_eq!(commands, [Command::Feed(follower)]);
}

#[test]
fn every_coordinator_hears_the_groups_plans() {
    let mut member = running();
    let [first, second] = [(0, b"ring"), (20, b"tree")].map(|(after, plan)| {
        let summing = PlanAgreement { after, plan: Digest::of(plan) };
        let said = Command::Send(Message::Agreed { generation: 1, summing });
        assert_eq!(handle(&mut member, Event::Agreed(summing), 3), std::slice::from_ref(&said));
        said
    });
    handle(&mut member, Event::Disconnected, 4);
    let said = handle(&mut member, Event::Connected, 5);
    let again: Vec<_> = said.into_iter().filter(|command| [&first, &second].contains(&command)).collect();
    assert_eq!(again, [first, second]);
}
