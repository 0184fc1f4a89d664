//! The tables in testdata/: how an end is called and whether it counts, and how jobs end.

mod endings;

use std::{fs, path::Path};

use endings::{How, Moment, Outcome, SECONDS_BETWEEN, Scenario, Who};
use jiff::{SignedDuration, Timestamp};
use lockstep_lifecycle::{
    Ended, Failures, Fault, JobFailure, Limits, Loss, Pauses, Role, Seen, Standing, Status, WorkerEnd, is_forgiven,
    is_own_failure,
};

#[test]
fn every_end_has_a_word_a_kind_and_an_effect() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/ends.txt");
    let table = fs::read_to_string(path).expect("the table");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let (facts, stated) = line.split_once(" ⇒ ").unwrap_or_else(|| panic!("no arrow in: {line}"));
        assert_eq!(effect(facts), stated, "{facts}");
    }
}

fn effect(facts: &str) -> String {
    let (mut seen, mut status, mut word) = (Seen::default(), None, None);
    let mut standing = Standing::Member;
    for fact in facts.split("; ") {
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("`{fact}` of `{facts}`"));
        match fact {
            "runs" => {}
            "deleted" => seen.is_deleted = true,
            "had yet to join" => standing = Standing::Awaited,
            "held nobody up" => standing = Standing::Newcomer,
            _ => match fact.rsplit_once(' ').unwrap_or_else(|| panic!("`{fact}` of `{facts}`")) {
                ("exits", code) => status = Some(Status::Code(number(code))),
                ("signal", signal) => status = Some(Status::Signal(number(signal))),
                ("container exits", code) => status = Some(Status::of_container(number(code))),
                ("says", said) => word = Some(said),
                ("disrupted", why) => seen.disrupted = Some(why),
                _ => panic!("`{fact}` of `{facts}`"),
            },
        }
    }
    seen.ended = (status.is_some() || word.is_some()).then_some(Ended { status, word });
    let Some(end) = WorkerEnd::of(&seen) else { return "takes part".to_owned() };
    let or_fails = if end.fails_the_job(Role::Worker, false) { ", or fails the job" } else { "" };
    let (name, kind) = (end.word().to_owned(), end.kind().name());
    let counts = match (Loss { worker: 0, end, standing, lived: None }).fault() {
        Fault::Job => "counts",
        Fault::Outside => "does not count",
    };
    format!("{name}; {kind}; {counts}{or_fails}")
}

#[test]
fn the_word_of_an_end_tells_whose_failure_it_is() {
    let taken = ["ContainerStatusUnknown", "Unknown", "Lost", "Disrupted", "Evicted", "Deleted"];
    let taken = taken.map(|word| WorkerEnd::TakenAway(word.to_owned()));
    let own = [WorkerEnd::Fatal, WorkerEnd::Retry, WorkerEnd::Crash, WorkerEnd::OutOfMemory, WorkerEnd::Hung];
    for end in own.into_iter().chain(taken).chain([WorkerEnd::Done, WorkerEnd::Drained]) {
        let loss = Loss { worker: 0, end, standing: Standing::Member, lived: None };
        assert_eq!(is_own_failure(loss.end.word()), loss.fault() == Fault::Job, "{loss:?}");
    }
}

#[test]
fn the_policy_follows_the_table_of_endings() {
    endings::check(outcome);
}

fn outcome(scenario: &Scenario) -> Outcome {
    let limits =
        Limits { backoff_limit: scenario.backoff_limit, active_deadline_seconds: None, startup_timeout_seconds: 600 };
    let (mut failures, mut now, mut lost_at) = (Failures::default(), Timestamp::UNIX_EPOCH, None);
    let (mut step, mut furthest) = (10, 0);
    let failed = |failures: &Failures, failure: JobFailure| Outcome {
        failures: failures.count,
        failed: Some((failure.reason().to_owned(), failure.message("it"))),
    };
    for moment in &scenario.moments {
        now += SignedDuration::from_secs(SECONDS_BETWEEN);
        let ends = match moment {
            Moment::Trains(minutes) | Moment::Repeats(minutes) => {
                now += SignedDuration::from_mins(*minutes);
                step += if matches!(moment, Moment::Trains(_)) { 100 } else { 0 };
                if lost_at.is_some_and(|at| is_forgiven(at, furthest, step, now)) {
                    failures.count = 0;
                }
                continue;
            }
            Moment::Ends(ends) => ends,
        };
        let lost: Vec<u32> = ends.iter().filter_map(|(who, _)| worker(*who)).collect();
        let others_hold = scenario.trains && lost.len() < endings::WORKERS as usize;
        for (who, how) in ends {
            let ended = match how {
                How::Exits(code) => Ended { status: Some(Status::Code(*code)), word: None },
                How::Killed(signal) => Ended { status: Some(Status::Signal(*signal)), word: None },
                How::OutOfMemory => WorkerEnd::out_of_memory(),
                How::TakenAway => Ended { status: None, word: Some("Evicted") },
            };
            let end = WorkerEnd::of(&Seen { ended: Some(ended), ..Seen::default() }).expect("it ended");
            let role = if *who == Who::Coordinator { Role::Coordinator } else { Role::Worker };
            if end.fails_the_job(role, others_hold) {
                return failed(&failures, JobFailure::InvalidInput);
            }
            if let Some(worker) = worker(*who) {
                let standing = if scenario.trains { Standing::Member } else { Standing::Awaited };
                failures.lost(&Loss { worker, end, standing, lived: None }, &Pauses::OF_PODS, now);
                (lost_at, furthest) = (Some(now), step);
            }
        }
        if let Some(failure) = limits.after(failures.count) {
            return failed(&failures, failure);
        }
        lost.into_iter().for_each(|worker| failures.joined(worker));
    }
    Outcome { failures: failures.count, failed: None }
}

fn worker(who: Who) -> Option<u32> {
    match who {
        Who::Coordinator => None,
        Who::Worker(worker) => Some(worker),
    }
}

#[test]
fn a_process_that_lived_shortly_is_replaced_after_a_pause() {
    let pause = |end, standing, lived, before| {
        let loss = Loss { worker: 1, end, standing, lived: Some(SignedDuration::from_secs(lived)) };
        let mut failures = Failures { count: before, recent: Vec::new() };
        failures.lost(&loss, &Pauses::OF_PODS, Timestamp::UNIX_EPOCH).pause.as_secs()
    };
    let taken = || WorkerEnd::TakenAway("Evicted".to_owned());
    assert_eq!(pause(WorkerEnd::Crash, Standing::Member, 9, 0), 10);
    assert_eq!(pause(WorkerEnd::Crash, Standing::Member, 10, 0), 0);
    assert_eq!(pause(WorkerEnd::Crash, Standing::Member, 100, 3), 7);
    assert_eq!(pause(taken(), Standing::Member, 9, 3), 10);
    assert_eq!(pause(taken(), Standing::Member, 100, 3), 0);
    assert_eq!([0, 1, 2].map(|before| pause(WorkerEnd::Retry, Standing::Awaited, 100, before)), [10, 20, 40]);
    assert_eq!(pause(WorkerEnd::Retry, Standing::Newcomer, 100, 6), 10, "an uncounted one waits as for a short life");
}

#[test]
fn a_job_fails_at_its_deadline_and_when_nobody_trains_in_time() {
    let limits = Limits { backoff_limit: 3, active_deadline_seconds: Some(60), startup_timeout_seconds: 30 };
    let at = |seconds| Timestamp::from_second(seconds).expect("a time");
    assert_eq!(limits.at_deadline(at(100), at(159)), None);
    let failure = limits.at_deadline(at(100), at(160)).expect("it fails");
    assert_eq!(failure.message(""), "not complete 60 s after its start, activeDeadlineSeconds");
    assert_eq!(limits.patience_ends(at(100), at(20)), at(130), "asked for workers later than it stopped");
    assert_eq!(limits.patience_ends(at(100), at(500)), at(530), "stopped after it had trained");
}
