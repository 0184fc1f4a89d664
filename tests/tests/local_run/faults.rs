//! Processes that are killed or asked to stop.

use std::{fs, io, thread, time::Duration};

use lockstep_launch::metrics_log;
use lockstep_tests::samples;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{
    replay::assert_replayed,
    run::{Manifest, Run, alone, wait_for},
};

pub(crate) fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("the process is alive");
}

/// Checks that each step was done once, with the next samples of its epoch.
pub(crate) fn assert_each_step_once(run: &Run, last: u64) {
    let steps: Vec<u64> = run.steps().iter().map(|line| line.step).collect();
    assert_eq!(steps, (1..=last).collect::<Vec<_>>());
    let checked =
        samples::each_was_taken_once(&run.workload(), &run.metrics_log()).expect("each sample of an epoch once");
    assert!(checked > 0, "no step reports its samples");
}

#[test]
fn the_group_waits_for_the_replacement_of_a_killed_worker_and_loses_no_step() {
    let _alone = alone();
    let run = Run::of("kill-worker", &Manifest::glyphs(10_000, 20), &["--workers", "2"]);
    run.wait_for_step(60);
    let survivor = run.trainers("worker", "worker-0");
    kill(run.trainers("worker", "worker-1")[0]);
    run.wait_for_generation(2);
    assert_eq!(run.trainers("worker", "worker-0"), survivor, "the other process was replaced");
    let run = run.finished();
    let said = run.said();
    assert_eq!(run.code, Some(0), "{said}");
    assert!(said.contains("worker 1 was killed by signal 9; a new one takes its place"), "{said}");
    assert_each_step_once(&run, 20 * 141);
    let history = run.history();
    let [first, second] = &history[..] else { panic!("{history:?}") };
    assert_eq!((first.workers, second.workers, second.rollback), (2, 2, false));
    assert!(second.step >= 60 && second.lost[0].pod == "lenet-worker-1", "{second:?}");
    // The survivor did every step and knows its loss.
    let unseen: Vec<_> = run.steps().into_iter().filter(|line| line.world_size != 2 || line.loss.is_none()).collect();
    assert!(unseen.is_empty(), "steps with fewer workers or without a loss: {unseen:?}");
    assert_replayed(&run);
}

#[test]
#[should_panic(expected = "steps were taken back without a rollback")]
fn these_tests_notice_a_metrics_log_that_takes_steps_back() {
    let _alone = alone();
    let run = Run::of("forgetful", &Manifest::glyphs(10_000, 8), &[]);
    run.wait_for_step(50);
    let metrics_log = run.metrics_log();
    let first: Vec<&str> = metrics_log.lines().take(10).collect();
    let shorter = run.folder().join("shorter.jsonl");
    let header = serde_json::to_string(&metrics_log::Header::default()).expect("JSON");
    fs::write(&shorter, [&[header.as_str()], &first[..]].concat().join("\n")).expect("a shorter log");
    let newest = metrics_log::files(run.folder(), None).expect("a log").swap_remove(0);
    fs::rename(&shorter, newest.path).expect("moved");
    run.finished();
}

#[test]
fn workers_that_keep_crashing_fail_the_job_once_the_limit_is_reached() {
    let _alone = alone();
    let manifest = Manifest::glyphs(10_000, 2000).replaced("backoffLimit: 2", "backoffLimit: 1");
    let run = Run::of("crash-workers", &manifest, &["--workers", "2"]);
    run.wait_for_step(1);
    // SIGABRT looks like a fault of the process itself, unlike SIGKILL.
    let crash = |pid: Pid| kill_process(pid, Signal::ABORT).expect("the process is alive");
    crash(run.trainers("worker", "worker-0")[0]);
    run.wait_for_generation(2);
    crash(run.trainers("worker", "worker-0")[0]);
    let run = run.finished();
    let said = run.said();
    assert_eq!(run.code, Some(1), "{said}");
    assert!(said.contains("backoffLimit"), "{said}");
}

/// The slow worker is stopped for most of each step, but never for long. All steps are alike and
/// take far longer than one of its runs.
#[test]
fn a_slow_worker_is_named_as_long_as_it_is_slow() {
    let _alone = alone();
    let manifest = Manifest::glyphs(20_000, 1000).replaced("globalBatchSize: 64", "globalBatchSize: 6000");
    let run = Run::of("straggler", &manifest, &["--workers", "2"]);
    run.wait_for_step(1);
    let slow = run.trainers("worker", "worker-1")[0];
    run.wait_until("the name of the slow worker", || {
        for (signal, milliseconds) in [(Signal::STOP, 40), (Signal::CONT, 15)] {
            kill_process(slow, signal).expect("the process is alive");
            thread::sleep(Duration::from_millis(milliseconds));
        }
        run.said().contains("waits for lenet-worker-1 (")
    });
    let before = run.said().lines().count();
    let names_no_worker = |line: &str| line.contains("samples/s") && !line.contains("waits for");
    run.wait_until("a report without a slow worker", || run.said().lines().skip(before).any(names_no_worker));
}

#[test]
fn a_killed_coordinator_does_not_lose_the_job() {
    let _alone = alone();
    let run = Run::of("kill-coordinator", &Manifest::glyphs(10_000, 20), &["--workers", "2"]);
    run.wait_for_checkpoint();
    kill(run.trainers("coordinator", "")[0]);
    let run = run.finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(&run, 20 * 141);
    assert_replayed(&run);
}

#[test]
fn a_run_with_unread_output_trains_and_replaces_lost_workers() {
    let _alone = alone();
    let (run, mut unread) = Run::unread("unread", &Manifest::glyphs(640, 10_000));
    run.wait_for_step(20);
    kill(run.trainers("worker", "worker-1")[0]);
    run.wait_for_workers_again(2);
    let reading = thread::spawn(move || io::copy(&mut unread, &mut io::sink()));
    run.signal(Signal::INT);
    let run = run.finished();
    assert_eq!(run.code, Some(130), "{}", run.said());
    reading.join().expect("no panic").expect("read to its end");
}

#[test]
fn ctrl_c_keeps_the_checkpoint_and_the_resumed_run_reaches_the_same_weights() {
    let _alone = alone();
    let manifest = Manifest::glyphs(10_000, 10);
    let whole = Run::of("whole", &manifest, &["--workers", "2"]).finished();
    let run = Run::of("ctrl-c", &manifest, &["--workers", "2"]);
    run.wait_for_step(60);
    run.signal(Signal::INT);
    let run = run.finished();
    let said = run.said();
    assert_eq!(run.code, Some(130), "{said}");
    assert!(said.contains("--output"), "the output does not say how to continue:\n{said}");
    for worker in ["worker-0", "worker-1"] {
        let log = run.log(worker);
        let drained = "s of the 60 s after which it would have been killed";
        assert!(log.contains(": drained in ") && log.contains(drained), "{log}");
    }
    assert!(run.checkpoints() > 0 && !run.folder().join("model.safetensors").exists());
    let stopped_at = run.steps().last().map_or(0, |line| line.step);
    let last = whole.steps().last().map_or(0, |line| line.step);
    assert!(stopped_at < last, "the run ended by itself, at step {stopped_at} of {last}");

    let run = run.again(&manifest, &["--workers", "2"]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(&run, last);
    assert!(run.model() == whole.model(), "a stop and a restart changed the weights");
}

#[test]
fn a_grace_period_too_short_for_a_drain_causes_one_warning_in_the_log_and_on_the_terminal() {
    let _alone = alone();
    let template = "template: {spec: {terminationGracePeriodSeconds: 0, containers: [{name: trainer}]}}";
    let manifest =
        Manifest::glyphs(10_000, 2000).replaced("  failurePolicy", &format!("  {template}\n  failurePolicy"));
    let run = Run::of("grace", &manifest, &["--workers", "2"]);
    let newest = || {
        fs::read_dir(run.folder().join("checkpoints")).map_or(0, |entries| {
            let step = |name: std::ffi::OsString| name.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
            entries.flatten().filter_map(|entry| step(entry.file_name())).max().unwrap_or(0)
        })
    };
    run.wait_for_checkpoint();
    let first = newest();
    run.wait_until("another checkpoint", || newest() > first);
    let warning = "is killed after 0 s";
    run.wait_until("the warning", || run.said().contains(warning));
    let log = run.log("worker-0");
    assert_eq!((log.matches(warning).count(), run.log("worker-1").matches(warning).count()), (1, 0), "{log}");
    assert_eq!(run.said().matches(warning).count(), 1, "{}", run.said());
}

#[test]
fn a_resumed_run_sums_by_the_plan_that_was_measured_at_its_beginning() {
    let _alone = alone();
    let manifest = Manifest::glyphs(10_000, 20).replaced("bucketBytes: 64Ki", "backend: tcp");
    let run = Run::of("plan", &manifest, &["--workers", "3"]);
    run.wait_for_checkpoint();
    run.signal(Signal::INT);
    let run = run.finished();
    assert_eq!(run.code, Some(130), "{}", run.said());
    let measured = run.communication();
    assert_eq!((&measured["world"], &measured["words"][0]), (&3.into(), &0.into()), "{measured}");
    assert_eq!(measured["settled"], true, "the plan is not settled: {measured}");

    let run = run.again(&manifest, &["--workers", "3"]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    // New measurements would hardly give the same costs to the last bit.
    assert_eq!(run.communication(), measured);
}

#[test]
fn killing_the_command_line_leaves_no_process_behind() {
    let _alone = alone();
    let run = Run::of("kill-cli", &Manifest::glyphs(10_000, 2000), &["--workers", "2"]);
    run.wait_for_step(1);
    let mut children = run.trainers("worker", "");
    children.extend(run.trainers("coordinator", ""));
    assert_eq!(children.len(), 3);
    run.signal(Signal::KILL);
    wait_for("the children to end", || children.iter().all(|pid| test_kill_process(*pid).is_err()));
}
