use std::time::Duration;

use lockstep_elastic::{
    Active, CheckpointMark, Coordinator, Digest, Hello, Message, Outcome, Record, Report, Sampler,
    coordinator::{Command, Connection, DEAD_AFTER, DRAIN_LIMIT, Event, RETURN_LIMIT, Stage},
    message::{Checkpoint, FrameError},
};

use crate::given::{SAMPLER, config, hello, ms, pod};

/// A coordinator whose store agrees at once, unless it is away; member `i` talks over connection `i`.
struct Table {
    coordinator: Coordinator,
    now: Duration,
    stored: Vec<Record>,
    store_is_away: bool,
}

impl Table {
    fn new(members: usize) -> Self {
        Self::with(config(members), None)
    }

    fn with(config: lockstep_elastic::coordinator::Config, record: Option<Record>) -> Self {
        let coordinator = Coordinator::new(config, record, Duration::ZERO);
        Self { coordinator, now: Duration::ZERO, stored: Vec::new(), store_is_away: false }
    }

    /// Commands except for the alarm clock, with swaps carried out.
    fn handle(&mut self, event: Event) -> Vec<Command> {
        self.now += ms(1);
        let mut commands = self.coordinator.handle(event, self.now);
        let mut done = Vec::new();
        while !commands.is_empty() {
            let (swaps, rest): (Vec<_>, Vec<_>) = commands.into_iter().partition(|c| matches!(c, Command::Swap(_)));
            done.extend(rest.into_iter().filter(|c| !matches!(c, Command::WakeAt(_))));
            commands = Vec::new();
            for swap in swaps {
                let Command::Swap(record) = swap else { continue };
                let answer = if self.store_is_away { Event::StoreFailed("no answer".into()) } else { Event::Swapped };
                if answer == Event::Swapped {
                    self.stored.push(record);
                }
                commands.extend(self.coordinator.handle(answer, self.now));
            }
        }
        done
    }

    fn says(&mut self, member: usize, message: Message) -> Vec<Command> {
        self.handle(Event::Received(Connection(member as u64), message))
    }

    /// Lets time pass in which these members send heartbeats.
    fn wait(&mut self, time: Duration, alive: &[usize]) -> Vec<Command> {
        let end = self.now + time;
        let mut commands = Vec::new();
        while self.now < end {
            self.now += ms(200);
            for member in alive {
                commands.extend(self.says(*member, Message::Heartbeat));
            }
            commands.extend(self.handle(Event::Tick));
        }
        commands.retain(|c| !matches!(c, Command::Send(_, Message::Heartbeat)));
        commands
    }

    /// All members join, report nothing but what they said, and the group runs.
    fn form(&mut self, hellos: &[Hello]) -> Vec<Command> {
        for (member, hello) in hellos.iter().enumerate() {
            self.says(member, Message::Hello(hello.clone()));
        }
        let generation = self.stored.last().expect("allocated").alloc_generation;
        let mut commands = Vec::new();
        for (member, hello) in hellos.iter().enumerate() {
            commands = self.says(member, Message::Report(report(generation, hello)));
        }
        commands
    }

    fn running(members: usize) -> Self {
        let mut table = Self::new(members);
        table.form(&hellos(members));
        assert_eq!(table.coordinator.status(table.now).stage, Stage::Running);
        table
    }

    fn record(&self) -> Record {
        self.stored.last().expect("something was stored").clone()
    }
}

fn hellos(members: usize) -> Vec<Hello> {
    (0..members).map(|index| hello(index, 100 + index as u128)).collect()
}

fn report(generation: u64, hello: &Hello) -> Report {
    let (applied_step, state_digest) = hello.checkpoint.map_or((0, Digest::NONE), |held| (held.step, held.digest));
    let (entered_generation, holds_gradient) = (None, false);
    Report { generation, entered_generation, applied_step, state_digest, holds_gradient }
}

fn finished(digest: &[u8]) -> Message {
    Message::Finished { step: 90, digest: Digest::of(digest), payload: Vec::new() }
}

fn end(commands: &[Command]) -> Option<&Outcome> {
    commands.iter().find_map(|c| if let Command::End(outcome) = c { Some(outcome) } else { None })
}

fn sent(commands: &[Command], to: u64) -> Vec<&Message> {
    let to_it = |c| {
        if let &Command::Send(connection, ref message) = c {
            (connection == Connection(to)).then_some(message)
        } else {
            None
        }
    };
    commands.iter().filter_map(to_it).collect()
}

fn refusal(commands: &[Command], to: u64) -> String {
    match sent(commands, to).as_slice() {
        [Message::Refuse { reason }] => reason.clone(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn committed(commands: &[Command], to: u64) -> (u32, Active) {
    match sent(commands, to).as_slice() {
        [Message::Commit { rank, active }] => (*rank, active.clone()),
        other => panic!("expected a commit, got {other:?}"),
    }
}

#[test]
fn the_first_group_is_generation_one_with_ranks_in_pod_order() {
    let mut table = Table::new(11);
    let commands = table.form(&hellos(11));
    for member in 0..11 {
        let (rank, active) = committed(&commands, member);
        assert_eq!((u64::from(rank), active.generation), (member, 1));
        assert_eq!(active.members[10].pod, "x-worker-10");
        assert_eq!((active.base_step, active.base_digest, active.sampler), (0, Digest::NONE, SAMPLER));
        assert!(!active.rollback);
    }
    assert_eq!(table.record().active.map(|active| active.generation), Some(1));
}

#[test]
fn a_generation_is_prepared_only_after_it_was_allocated() {
    let mut coordinator = Coordinator::new(config(1), None, Duration::ZERO);
    let greeted = coordinator.handle(Event::Received(Connection(0), Message::Hello(hello(0, 1))), ms(1));
    assert!(sent(&greeted, 0).is_empty(), "{greeted:?}");
    let swapped = coordinator.handle(Event::Swapped, ms(2));
    assert_eq!(sent(&swapped, 0), [&Message::Prepare { generation: 1 }]);
}

#[test]
fn the_missing_worker_is_named() {
    let mut table = Table::new(4);
    for member in [0, 1, 3] {
        table.says(member, Message::Hello(hello(member, 1)));
    }
    assert_eq!(table.coordinator.status(table.now).to_string(), "waiting for worker 3 of 4: x-worker-2");
    table.handle(Event::Closed(Connection(0), "closed its connection".into()));
    assert_eq!(table.coordinator.status(table.now).to_string(), "waiting for 2 of 4 workers: x-worker-0, x-worker-2");
}

#[test]
fn whoever_does_not_belong_is_refused_by_name_and_harms_nobody() {
    let other_job = Hello { job: "other".into(), ..hello(1, 1) };
    let other_attempt = Hello { attempt: 7, ..hello(1, 1) };
    let other_workload = Hello { workload: Digest::of(b"mlp"), ..hello(1, 1) };
    let other_data = Hello { data: Digest::of(b"mnist"), ..hello(1, 1) };
    let of_the_past = Hello { entered_generation: Some(3), ..hello(1, 1) };
    let (lenet, mlp) = (format!("{:.12}", Digest::of(b"lenet")), format!("{:.12}", Digest::of(b"mlp")));
    let (glyphs, mnist) = (format!("{:.12}", Digest::of(b"glyphs")), format!("{:.12}", Digest::of(b"mnist")));
    for (stranger, names) in [
        (other_job, vec!["other", "uid"]),
        (other_attempt, vec!["attempt is 7"]),
        (hello(5, 1), vec!["x-worker-5"]),
        (other_workload, vec!["x-worker-0", "x-worker-1", &lenet, &mlp]),
        (other_data, vec!["x-worker-0", "x-worker-1", &glyphs, &mnist]),
        (of_the_past, vec!["generation 3", "x-worker-1"]),
    ] {
        let mut table = Table::new(2);
        table.says(0, Message::Hello(hello(0, 1)));
        let commands = table.says(9, Message::Hello(stranger));
        let reason = refusal(&commands, 9);
        assert!(names.iter().all(|name| reason.contains(name)), "{names:?} in {reason}");
        assert!(commands.contains(&Command::Close(Connection(9))));
        let commands = table.form(&hellos(2));
        assert_eq!(committed(&commands, 1).1.generation, 1);
    }
}

#[test]
fn another_protocol_version_is_refused_by_name() {
    let commands = Table::new(2).handle(Event::Garbled(Connection(4), FrameError::Version { theirs: 9 }));
    assert!(refusal(&commands, 4).contains("version 9"));
    assert!(commands.contains(&Command::Close(Connection(4))));
}

#[test]
fn a_new_process_replaces_the_old_one_while_the_group_forms() {
    let mut table = Table::new(2);
    table.says(0, Message::Hello(hello(0, 1)));
    let commands = table.says(5, Message::Hello(hello(0, 2)));
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Abort { .. }]), "{commands:?}");
    assert!(commands.contains(&Command::Close(Connection(0))));
    table.says(1, Message::Hello(hello(1, 3)));
    table.says(5, Message::Report(report(1, &hello(0, 2))));
    let commands = table.says(1, Message::Report(report(1, &hello(1, 3))));
    assert_eq!(committed(&commands, 5).1.members[0].id(), hello(0, 2).member);
}

#[test]
fn a_member_that_goes_before_the_commit_is_waited_for_under_a_new_generation() {
    let mut table = Table::new(2);
    for member in 0..2 {
        table.says(member, Message::Hello(hello(member, 1)));
    }
    table.says(0, Message::Report(report(1, &hello(0, 1))));
    assert_eq!(end(&table.handle(Event::Closed(Connection(1), "closed its connection".into()))), None);
    let commands = table.says(2, Message::Hello(hello(1, 2)));
    assert_eq!(sent(&commands, 0), [&Message::Prepare { generation: 2 }]);
    let commands = table.says(0, Message::Report(report(1, &hello(0, 1))));
    assert_eq!(sent(&commands, 0), [&Message::Prepare { generation: 2 }], "an old report counts nothing");
    table.says(0, Message::Report(report(2, &hello(0, 1))));
    let commands = table.says(2, Message::Report(report(2, &hello(1, 2))));
    assert_eq!(committed(&commands, 0).1.generation, 2);
}

#[test]
fn a_member_that_goes_while_the_commit_is_stored_is_lost() {
    let mut coordinator = Coordinator::new(config(2), None, Duration::ZERO);
    let handle = |c: &mut Coordinator, event| c.handle(event, ms(1));
    for member in 0..2 {
        handle(&mut coordinator, Event::Received(Connection(member), Message::Hello(hello(member as usize, 1))));
    }
    handle(&mut coordinator, Event::Swapped);
    for member in 0..2 {
        let report = report(1, &hello(member as usize, 1));
        handle(&mut coordinator, Event::Received(Connection(member), Message::Report(report)));
    }
    handle(&mut coordinator, Event::Closed(Connection(1), "closed its connection".into()));
    let commands = handle(&mut coordinator, Event::Swapped);
    assert!(matches!(end(&commands), Some(Outcome::Lost { member, .. }) if member.pod == pod(1)), "{commands:?}");
}

#[test]
fn all_start_from_the_checkpoint_that_all_see() {
    let sampler = Sampler { seed: 42, epoch: 1, cursor: 640 };
    let checkpoint = Some(Checkpoint { step: 50, digest: Digest::of(b"state"), sampler });
    let hellos: Vec<_> = hellos(2).into_iter().map(|hello| Hello { checkpoint, ..hello }).collect();
    let mut former = Table::running(2);
    former.says(0, Message::Checkpoint(CheckpointMark { step: 50, manifest_digest: Digest::of(b"manifest") }));
    let mut table = Table::with(config(2), Some(former.record()));
    let (_, active) = committed(&table.form(&hellos), 0);
    assert_eq!((active.generation, active.base_step, active.base_digest), (2, 50, Digest::of(b"state")));
    assert_eq!((active.sampler, active.rollback), (sampler, true));
}

#[test]
fn members_that_see_different_checkpoints_are_named_with_what_they_see() {
    let seen = |step, digest: &[u8]| Some(Checkpoint { step, digest: Digest::of(digest), sampler: SAMPLER });
    for (first, second) in [(seen(50, b"a"), None), (seen(50, b"a"), seen(60, b"b")), (seen(50, b"a"), seen(50, b"b"))]
    {
        let mut hellos = hellos(2);
        (hellos[0].checkpoint, hellos[1].checkpoint) = (first, second);
        let commands = Table::new(2).form(&hellos);
        let Some(Outcome::Fatal { message, .. }) = end(&commands) else { panic!("{commands:?}") };
        assert!(message.contains("x-worker-0 would start from step 50"), "{message}");
        assert!(message.contains("x-worker-1 from "), "{message}");
        assert!(sent(&commands, 0).iter().any(|m| matches!(m, Message::Abort { .. })), "{commands:?}");
    }
}

#[test]
fn a_closed_connection_ends_the_group_at_once_and_the_others_hear_who_was_lost() {
    let mut table = Table::running(3);
    let commands = table.handle(Event::Closed(Connection(1), "closed its connection".into()));
    for other in [0, 2] {
        assert_eq!(
            sent(&commands, other),
            [&Message::Abort { reason: "x-worker-1 was lost: closed its connection".into() }]
        );
    }
    assert!(matches!(end(&commands), Some(Outcome::Lost { member, .. }) if *member == hello(1, 101).member));
    assert!(table.says(0, Message::Heartbeat).is_empty(), "nothing happens after the end");
}

#[test]
fn a_silent_member_is_suspected_and_later_lost() {
    let mut table = Table::running(2);
    assert_eq!(end(&table.wait(Duration::from_secs(2), &[0])), None);
    assert_eq!(table.coordinator.status(table.now).suspected, [pod(1)]);
    let commands = table.wait(DEAD_AFTER, &[0]);
    let Some(Outcome::Lost { member, reason }) = end(&commands) else { panic!("{commands:?}") };
    assert_eq!((member.pod.as_str(), reason.as_str()), ("x-worker-1", "sent nothing for 10 s"));
}

#[test]
fn a_coordinator_that_slept_blames_nobody() {
    let mut table = Table::running(2);
    table.now += DEAD_AFTER * 3;
    assert_eq!(end(&table.handle(Event::Tick)), None);
    assert_eq!(end(&table.wait(Duration::from_secs(5), &[0, 1])), None);
}

#[test]
fn a_new_process_of_a_running_member_means_that_the_old_one_is_lost() {
    let mut table = Table::running(2);
    let commands = table.says(7, Message::Hello(hello(1, 999)));
    assert!(matches!(end(&commands), Some(Outcome::Lost { member, .. }) if member.pod == pod(1)), "{commands:?}");
    assert!(matches!(sent(&commands, 7).as_slice(), [Message::Abort { .. }]), "{commands:?}");
}

#[test]
fn the_group_is_finished_when_all_are_and_only_then_released() {
    let mut table = Table::running(2);
    assert!(table.says(0, finished(b"model")).is_empty());
    let commands = table.says(1, Message::Finished { step: 90, digest: Digest::of(b"model"), payload: vec![7] });
    for member in 0..2 {
        assert_eq!(sent(&commands, member), [&Message::Release]);
    }
    assert_eq!(end(&commands), Some(&Outcome::Finished { step: 90, digest: Digest::of(b"model"), payload: vec![7] }));
}

#[test]
fn a_member_may_go_after_its_last_word() {
    let mut table = Table::running(2);
    table.says(0, finished(b"model"));
    assert_eq!(end(&table.handle(Event::Closed(Connection(0), "closed its connection".into()))), None);
    assert!(matches!(end(&table.says(1, finished(b"model"))), Some(Outcome::Finished { .. })));
}

#[test]
fn different_final_models_are_fatal_and_both_members_are_named() {
    let mut table = Table::running(2);
    table.says(0, finished(b"model"));
    let commands = table.says(1, finished(b"another"));
    let Some(Outcome::Fatal { message, .. }) = end(&commands) else { panic!("{commands:?}") };
    assert!(message.contains("x-worker-0") && message.contains("x-worker-1"), "{message}");
    assert!(matches!(sent(&commands, 0).as_slice(), [Message::Abort { .. }]));
}

#[test]
fn a_fatal_error_of_one_ends_all_and_is_acknowledged() {
    let mut table = Table::running(2);
    let commands = table.says(1, Message::Fatal { message: "labels out of range".into() });
    assert_eq!(sent(&commands, 0), [&Message::Abort { reason: "x-worker-1 failed: labels out of range".into() }]);
    assert_eq!(sent(&commands, 1), [&Message::Release]);
    let fatal = Outcome::Fatal { member: hello(1, 101).member, message: "labels out of range".into() };
    assert_eq!(end(&commands), Some(&fatal));
}

#[test]
fn when_one_has_to_leave_all_drain_together() {
    let mut table = Table::running(2);
    let commands = table.says(1, Message::Leave { reason: "SIGTERM".into() });
    let drain = Message::Drain { reason: "x-worker-1 has to go: SIGTERM".into() };
    assert_eq!((sent(&commands, 0), sent(&commands, 1)), (vec![&drain], vec![&drain]));
    table.says(0, Message::Drained { step: 30 });
    assert_eq!(end(&table.says(1, Message::Drained { step: 30 })), Some(&Outcome::Drained { step: 30 }));
}

#[test]
fn a_group_that_trains_does_without_the_store_until_it_is_back() {
    let mut table = Table::running(2);
    let mark = CheckpointMark { step: 20, manifest_digest: Digest::of(b"manifest") };
    table.store_is_away = true;
    assert_eq!(table.says(0, Message::Checkpoint(mark)), []);
    assert_eq!(table.wait(Duration::from_secs(60), &[0, 1]), []);
    table.store_is_away = false;
    assert_eq!(table.wait(Duration::from_secs(10), &[0, 1]), []);
    assert_eq!(table.record().last_durable_checkpoint, Some(mark));
}

#[test]
fn the_result_does_not_wait_for_a_store_that_is_away() {
    let mut table = Table::running(2);
    table.store_is_away = true;
    table.says(0, Message::Checkpoint(CheckpointMark { step: 20, manifest_digest: Digest::of(b"manifest") }));
    table.says(0, finished(b"model"));
    assert!(matches!(end(&table.says(1, finished(b"model"))), Some(Outcome::Finished { .. })));
}

#[test]
fn a_group_that_forms_ends_with_its_store() {
    let mut table = Table::new(1);
    table.store_is_away = true;
    let commands = table.says(0, Message::Hello(hello(0, 100)));
    assert_eq!(end(&commands), Some(&Outcome::StoreFailed { message: "no answer".into() }));
}

#[test]
fn a_checkpoint_enters_the_record_and_an_older_one_does_not_replace_it() {
    let mut table = Table::running(2);
    let mark = |step| CheckpointMark { step, manifest_digest: Digest::of(b"manifest") };
    table.says(0, Message::Checkpoint(mark(20)));
    table.says(1, Message::Checkpoint(mark(10)));
    assert_eq!(table.record().last_durable_checkpoint, Some(mark(20)));
}

#[test]
fn only_newer_progress_is_published() {
    let mut table = Table::running(2);
    let progress = |step| Message::Progress { step, payload: vec![1] };
    let published = |commands: Vec<Command>| commands.iter().any(|c| matches!(c, Command::Publish { .. }));
    assert!(published(table.says(0, progress(5))));
    assert!(!published(table.says(0, progress(4))));
    assert!(published(table.says(0, progress(6))));
}

#[test]
fn a_coordinator_that_lost_the_swap_gives_up_without_stopping_the_training() {
    let mut table = Table::running(2);
    let commands = table.handle(Event::Conflict);
    assert_eq!(end(&commands), Some(&Outcome::Superseded));
    assert!(sent(&commands, 0).is_empty(), "{commands:?}");
}

#[test]
fn a_restarted_coordinator_takes_its_running_members_back() {
    let record = Table::running(2).record();
    let mut table = Table::with(config(2), Some(record.clone()));
    for member in 0..2 {
        let returning = Hello { entered_generation: Some(1), ..hello(member, 100 + member as u128) };
        let commands = table.says(member, Message::Hello(returning));
        assert_eq!(committed(&commands, member as u64).1, record.active.clone().expect("active"));
    }
    table.says(0, finished(b"model"));
    assert!(matches!(end(&table.says(1, finished(b"model"))), Some(Outcome::Finished { .. })));
    assert!(table.stored.is_empty(), "no new generation");
}

#[test]
fn a_member_that_does_not_return_to_a_restarted_coordinator_is_lost() {
    let mut table = Table::with(config(2), Some(Table::running(2).record()));
    table.says(0, Message::Hello(Hello { entered_generation: Some(1), ..hello(0, 100) }));
    assert_eq!(end(&table.wait(RETURN_LIMIT / 2, &[0])), None);
    let commands = table.wait(RETURN_LIMIT, &[0]);
    assert!(matches!(end(&commands), Some(Outcome::Lost { member, .. }) if member.pod == pod(1)), "{commands:?}");
}

#[test]
fn a_coordinator_without_group_stops_at_once_and_one_with_a_group_lets_it_drain() {
    assert_eq!(end(&Table::new(2).handle(Event::Stop)), Some(&Outcome::Stopped));

    let mut drained = Table::running(1);
    assert_eq!(end(&drained.handle(Event::Stop)), None);
    assert_eq!(end(&drained.says(0, Message::Drained { step: 8 })), Some(&Outcome::Drained { step: 8 }));

    let mut abandoned = Table::running(1);
    abandoned.handle(Event::Stop);
    assert_eq!(end(&abandoned.wait(DRAIN_LIMIT + ms(500), &[0])), Some(&Outcome::Stopped));
}

#[test]
fn whoever_never_comes_up_is_named_after_the_limit() {
    let limit = Some(Duration::from_secs(60));
    let mut table = Table::with(lockstep_elastic::coordinator::Config { join_limit: limit, ..config(2) }, None);
    table.says(0, Message::Hello(hello(0, 1)));
    let commands = table.wait(Duration::from_secs(61), &[0]);
    assert!(
        matches!(end(&commands), Some(Outcome::Incomplete { missing, .. }) if *missing == [pod(1)]),
        "{commands:?}"
    );
}
