use std::time::Duration;

use lockstep_elastic::{
    Active, Digest, Hello, Member, Message, Report, Seat,
    member::{COORDINATOR_DEAD_AFTER, Command, Event, HEARTBEAT_EVERY, LastWord, REPEAT_AFTER},
};

use crate::given::{SAMPLER, hello, ms};

fn active(generation: u64, hello: &Hello) -> Active {
    Active {
        generation,
        members: vec![Seat {
            pod: hello.member.pod.clone(),
            incarnation: hello.member.incarnation,
            address: hello.address,
            rank: 0,
        }],
        base_step: 0,
        base_digest: Digest::NONE,
        shards: 64,
        sampler: SAMPLER,
        sources: vec![0],
        rollback: false,
    }
}

fn commit(generation: u64) -> Event {
    Event::Received(Message::Commit { rank: 0, active: active(generation, &hello(0, 1)) })
}

fn prepare(generation: u64) -> Event {
    Event::Received(Message::Prepare { generation })
}

fn handle(member: &mut Member, event: Event, at: u64) -> Vec<Command> {
    let mut commands = member.handle(event, ms(at));
    commands.retain(|c| !matches!(c, Command::WakeAt(_)));
    commands
}

fn connected() -> Member {
    let mut member = Member::new(hello(0, 1));
    handle(&mut member, Event::Connected, 0);
    member
}

fn running() -> Member {
    let mut member = connected();
    handle(&mut member, prepare(1), 1);
    assert!(entered(&handle(&mut member, commit(1), 2)));
    member
}

fn entered(commands: &[Command]) -> bool {
    commands.iter().any(|c| matches!(c, Command::Enter(_)))
}

#[test]
fn it_says_hello_first_and_again_until_it_is_answered() {
    let mut member = Member::new(hello(0, 1));
    let greeting = Command::Send(Message::Hello(hello(0, 1)));
    assert_eq!(handle(&mut member, Event::Connected, 0), std::slice::from_ref(&greeting));
    let later = REPEAT_AFTER.as_millis() as u64;
    assert!(handle(&mut member, Event::Tick, later).contains(&greeting));
    handle(&mut member, prepare(1), later + 1);
    assert!(!handle(&mut member, Event::Tick, 3 * later).contains(&greeting));
}

#[test]
fn it_seals_before_it_reports() {
    let report = Report {
        generation: 3,
        entered_generation: None,
        applied_step: 0,
        state_digest: Digest::NONE,
        holds_gradient: false,
    };
    let sealed = [Command::Seal { generation: 3 }, Command::Send(Message::Report(report))];
    assert_eq!(handle(&mut connected(), prepare(3), 1), sealed);
}

#[test]
fn a_running_member_reports_what_it_applied_under_which_generation() {
    let mut member = running();
    handle(&mut member, Event::Applied { step: 9, digest: Digest::of(b"nine"), holds_gradient: true }, 3);
    let commands = handle(&mut member, prepare(2), 4);
    let report = Report {
        generation: 2,
        entered_generation: Some(1),
        applied_step: 9,
        state_digest: Digest::of(b"nine"),
        holds_gradient: true,
    };
    assert_eq!(commands, [Command::Seal { generation: 2 }, Command::Send(Message::Report(report))]);
}

#[test]
fn it_enters_only_a_generation_that_is_newer_than_its_promises_and_names_this_process() {
    let situations = [
        ("what it promised", 2, commit(2), true),
        ("newer than it promised", 2, commit(3), true),
        ("older than it promised", 2, commit(1), false),
        (
            "another process of its pod",
            2,
            Event::Received(Message::Commit { rank: 0, active: active(2, &hello(0, 9)) }),
            false,
        ),
        (
            "a rank that is not its own",
            2,
            Event::Received(Message::Commit { rank: 1, active: active(2, &hello(0, 1)) }),
            false,
        ),
    ];
    for (situation, promised, event, enters) in situations {
        let mut member = connected();
        handle(&mut member, prepare(promised), 1);
        assert_eq!(entered(&handle(&mut member, event, 2)), enters, "{situation}");
    }
}

#[test]
fn a_repeated_commit_or_prepare_changes_nothing() {
    let mut member = running();
    assert_eq!(handle(&mut member, commit(1), 3), []);
    assert_eq!(handle(&mut member, prepare(1), 4), []);
}

#[test]
fn a_base_that_it_does_not_hold_is_fatal() {
    let mut member = connected();
    handle(&mut member, prepare(1), 1);
    let foreign = Active { base_step: 50, base_digest: Digest::of(b"state"), ..active(1, &hello(0, 1)) };
    let commands = handle(&mut member, Event::Received(Message::Commit { rank: 0, active: foreign }), 2);
    assert!(!entered(&commands));
    assert!(
        matches!(commands.as_slice(), [Command::Send(Message::Fatal { .. }), Command::Refused { .. }]),
        "{commands:?}"
    );
}

#[test]
fn it_returns_to_a_new_coordinator_with_its_generation_checkpoint_and_last_word() {
    let mut member = running();
    handle(&mut member, Event::Disconnected, 10);
    let progress = Event::Progress { step: 5, payload: vec![] };
    assert_eq!(handle(&mut member, progress, 11), [], "progress is dropped meanwhile");
    let mark = lockstep_elastic::CheckpointMark { step: 5, manifest_digest: Digest::of(b"manifest") };
    handle(&mut member, Event::Checkpoint(mark), 12);
    handle(&mut member, Event::LastWord(LastWord::Drained { step: 5 }), 13);
    let again = Hello { entered_generation: Some(1), ..hello(0, 1) };
    assert_eq!(
        handle(&mut member, Event::Connected, 20),
        [
            Command::Send(Message::Hello(again)),
            Command::Send(Message::Checkpoint(mark)),
            Command::Send(Message::Drained { step: 5 }),
        ]
    );
    assert_eq!(handle(&mut member, Event::Received(Message::Release), 21), [Command::Released]);
}

#[test]
fn a_release_without_a_last_word_is_none() {
    assert_eq!(handle(&mut running(), Event::Received(Message::Release), 3), []);
}

#[test]
fn it_beats_ten_times_a_second_and_looks_for_a_coordinator_that_is_silent() {
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

#[test]
fn after_the_end_it_says_nothing() {
    let mut member = running();
    let aborted = handle(&mut member, Event::Received(Message::Abort { reason: "x-worker-1 was lost".into() }), 3);
    assert_eq!(aborted, [Command::Abort { reason: "x-worker-1 was lost".into() }]);
    assert!(member.handle(Event::Connected, ms(4)).is_empty());
}
