//! Checkpoints that the workers write part by part while they train. They are whole or absent,
//! whatever is killed and whatever the storage does.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use lockstep_tests::{
    checkpoints::{damage, folder_of},
    metrics::value,
    skip,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    faults::{assert_each_step_once, kill},
    metrics::metrics,
    run::{Manifest, Run, alone, lockstep, wait_for},
};

/// Steps of an epoch: 9,000 samples in batches of 64.
const EPOCH_STEPS: u64 = 141;

/// Returns a job whose bits do not depend on its workers. Its state has eight blocks, so three
/// workers have parts of it.
fn manifest(epochs: u32) -> Manifest {
    Manifest::glyphs(10_000, epochs)
        .replaced("bucketBytes: 64Ki", "algorithm: canonicalTree")
        .replaced("replicas: 2", "replicas: 3\n  elastic: {minReplicas: 1, maxReplicas: 3}")
        .replaced("backoffLimit: 2", "backoffLimit: 3")
}

/// Runs `lockstep checkpoints` on the run's folder. Returns its JSON, and true if it succeeded.
fn checkpoints(run: &Run, action: &str) -> (Value, bool) {
    let output = Command::new(lockstep()).args(["checkpoints", action, "--json"]).arg(run.folder()).output();
    let output = output.expect("lockstep starts");
    (serde_json::from_slice(&output.stdout).unwrap_or_default(), output.status.success())
}

fn steps(listed: &Value) -> Vec<u64> {
    listed.as_array().expect("a list").iter().filter_map(|one| one["step"].as_u64()).collect()
}

/// Returns the folders of the listed checkpoints. A checkpoint that replaces a damaged one of the
/// same step has a folder of its own.
fn paths(listed: &Value) -> Vec<PathBuf> {
    listed.as_array().expect("a list").iter().map(|one| one["path"].as_str().expect("a folder").into()).collect()
}

fn assert_all_whole(run: &Run, when: &str) {
    let (verified, well) = checkpoints(run, "verify");
    assert!(well, "{when}: {verified:#}");
}

fn saves_in_progress(run: &Run) -> usize {
    let listed = fs::read_dir(run.folder().join("checkpoints")).expect("checkpoints").flatten();
    listed.filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp-step-")).count()
}

#[test]
fn workers_killed_during_a_save_leave_whole_checkpoints_and_resume_from_the_newest() {
    let _alone = alone();
    let manifest = manifest(2000);
    let run = Run::of("kill-savers", &manifest, &[]);
    run.wait_for_checkpoint();
    for victim in ["worker-1", "worker-0", "worker-2"] {
        run.wait_until("a save in progress", || saves_in_progress(&run) > 0);
        let changes = run.history().len();
        kill(run.trainers("worker", victim)[0]);
        assert_all_whole(&run, victim);
        run.wait_until("a change of the group", || run.history().len() > changes);
        run.wait_until("all three workers again", || run.steps().last().is_some_and(|line| line.world_size == 3));
    }
    run.wait_until("a save in progress", || saves_in_progress(&run) > 0);
    let all = [run.trainers("worker", ""), run.trainers("coordinator", "")].concat();
    run.signal(Signal::KILL);
    wait_for("the processes to end", || all.iter().all(|pid| rustix::process::test_kill_process(*pid).is_err()));
    let (listed, _) = checkpoints(&run, "list");
    let newest = steps(&listed)[0];
    assert_all_whole(&run, "all");

    let changes = run.history().len();
    let last = run.history().pop().expect("three changes");
    let reported =
        run.steps().pop().filter(|line| line.generation >= last.generation).map_or(last.step, |line| line.step);
    let redone = reported.saturating_sub(newest);
    let run = run.again(&manifest, &[]);
    // The metrics log of the killed processes may go beyond that step.
    run.wait_until("a group", || run.history().len() > changes);
    run.wait_for_step(newest + 20);
    run.signal(Signal::INT);
    let run = run.finished();
    assert_eq!(run.code, Some(130), "{}", run.said());
    let back = run.history().into_iter().rfind(|change| change.rollback);
    let back = back.map(|change| (change.step, change.redone));
    assert_eq!(back, Some((newest, redone)), "{:?}", run.history());
    assert_each_step_once(&run, run.steps().last().map_or(0, |line| line.step));
    assert_all_whole(&run, "the end");
    assert_eq!(saves_in_progress(&run), 0);
}

#[test]
fn a_damaged_checkpoint_is_reported_and_without_a_whole_one_nothing_is_trained_or_overwritten() {
    let _alone = alone();
    let manifest = manifest(2000);
    let ended = |run: Run| {
        run.signal(Signal::INT);
        let run = run.finished();
        assert_eq!(run.code, Some(130), "{}", run.said());
        run
    };
    let run = Run::of("damaged", &manifest, &[]);
    run.wait_until("two checkpoints", || run.checkpoints() >= 2);
    let run = ended(run);
    let saved = steps(&checkpoints(&run, "list").0);
    damage(&folder_of(run.folder(), saved[0])).expect("damaged");
    let run = run.again(&manifest, &[]);
    let warning = format!("the checkpoint of step {} in file://", saved[0]);
    run.wait_until("the warning", || run.said().contains(&warning));
    let run = ended(run);
    let back = run.history().into_iter().rfind(|change| change.rollback).map(|change| change.step);
    assert_eq!(back, Some(saved[1]), "{:?}", run.history());

    let (listed, _) = checkpoints(&run, "list");
    let (saved, paths) = (steps(&listed), paths(&listed));
    let (newest, kept) = (&paths[0], run.folder().join("kept"));
    fs::create_dir(&kept).expect("a folder");
    for entry in fs::read_dir(newest).expect("a checkpoint").flatten() {
        fs::copy(entry.path(), kept.join(entry.file_name())).expect("copied");
    }
    paths.iter().for_each(|path| damage(path).expect("damaged"));
    let log = run.metrics_log();
    let run = run.again(&manifest, &[]).finished();
    let said = run.said();
    assert_eq!(run.code, Some(1), "{said}");
    let refused = format!("no checkpoint there is whole; the checkpoint of step {} in file://", saved[0]);
    assert!(said.contains(&refused) && said.contains("Nothing was overwritten"), "{said}");
    assert_eq!(steps(&checkpoints(&run, "list").0), saved);
    assert!(run.metrics_log() == log, "steps were taken back");

    fs::remove_dir_all(newest).expect("removed");
    fs::rename(&kept, newest).expect("put back");
    let run = run.again(&manifest, &[]);
    run.wait_for_step(saved[0] + 20);
    let run = ended(run);
    assert_each_step_once(&run, run.steps().last().map_or(0, |line| line.step));
}

#[test]
fn a_checkpoint_of_three_workers_leads_two_and_then_one_to_the_same_weights() {
    let _alone = alone();
    let manifest = manifest(3);
    let undisturbed = Run::of("undisturbed", &manifest, &["--workers", "1"]).finished();
    let mut run = Run::of("reshard", &manifest, &["--workers", "3"]);
    for (before, after) in [(3, "2"), (2, "1")] {
        let stopped_at = run.steps().last().map_or(0, |line| line.step);
        run.wait_for_step(stopped_at + 20);
        run.signal(Signal::INT);
        run = run.finished();
        assert_eq!(run.code, Some(130), "{}", run.said());
        let (listed, _) = checkpoints(&run, "list");
        assert_eq!(listed[0]["files"].as_u64(), Some(before), "{before} workers wrote their parts: {listed:#}");
        run = run.again(&manifest, &["--workers", after]);
    }
    let run = run.finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(&run, 3 * EPOCH_STEPS);
    assert!(run.model() == undisturbed.model(), "the weights differ");
}

#[test]
fn a_run_resumes_with_another_link_wire_and_algorithm_than_it_was_saved_with() {
    let _alone = alone();
    let saved = Manifest::glyphs(10_000, 6).replaced("bucketBytes: 64Ki", "algorithm: ring");
    let mut run = Run::of("rewired", &saved, &[]);
    for communication in ["backend: tcp, wire: bf16", "algorithm: canonicalTree"] {
        let stopped_at = run.steps().last().map_or(0, |line| line.step);
        run.wait_for_step(stopped_at + 20);
        run.signal(Signal::INT);
        run = run.finished();
        assert_eq!(run.code, Some(130), "{}", run.said());
        run = run.again(&saved.replaced("algorithm: ring", communication), &[]);
    }
    let run = run.finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(&run, 6 * EPOCH_STEPS);
}

/// A separate file system over a folder, until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn over(folder: PathBuf) -> Result<Self, String> {
        mount(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"], &folder).map(|()| Self(folder))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Processes that still use it keep it until they end.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn mount(words: &[&str], folder: &Path) -> Result<(), String> {
    let mounted = Command::new("mount").args(words).arg(folder).output().map_err(|error| format!("mount: {error}"))?;
    if mounted.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&mounted.stderr).into_owned()) }
}

fn failures(run: &Run) -> u64 {
    let text = metrics(run, 0);
    value(&text, "lockstep_checkpoint_failures_total").unwrap_or_else(|| panic!("no count in\n{text}")) as u64
}

#[test]
fn training_goes_on_with_full_or_read_only_storage_and_saves_once_it_can() {
    let _alone = alone();
    let run = Run::of("full", &Manifest::glyphs(10_000, 2000), &["--workers", "2"]);
    run.wait_for_checkpoint();
    let folder = run.folder().join("checkpoints");
    let mounted = match Mounted::over(folder.clone()) {
        Ok(mounted) => mounted,
        Err(why) => return skip("checkpoints on storage that is full or read-only", &why),
    };
    run.wait_for_checkpoint();
    let fails = |what: &str| {
        let (before, step) = (failures(&run), run.steps().last().map_or(0, |line| line.step));
        run.wait_until(&format!("failures on {what} storage"), || failures(&run) >= before + 2);
        run.wait_for_step(step + 50);
    };
    let saves = |what: &str| {
        let (listed, _) = checkpoints(&run, "list");
        let newest = steps(&listed).first().copied();
        run.wait_until(&format!("a checkpoint {what}"), || {
            steps(&checkpoints(&run, "list").0).first().copied() > newest
        });
        assert_all_whole(&run, what);
    };

    let ballast = folder.join("ballast");
    let filled = fs::write(&ballast, vec![1; 4 << 20]);
    assert!(filled.is_err(), "the disk is not full");
    fails("full");
    let said = run.said();
    assert!(said.contains("warning: no checkpoint is saved since step ") && said.contains("no space left"), "{said}");
    fs::remove_file(&ballast).expect("removed");
    saves("once there is room");
    run.wait_until("the report", || run.said().contains("checkpoints are saved again; the newest holds step "));

    wait_for("a moment without a write", || mount(&["-o", "remount,ro"], &folder).is_ok());
    fails("read-only");
    mount(&["-o", "remount,rw"], &folder).expect("writable again");
    saves("once it is writable");

    let log = fs::read_to_string(run.folder().join("logs/worker-0.log")).expect("a log");
    assert!(log.contains("no space left") && log.contains("read-only"), "{log}");
    run.signal(Signal::INT);
    let run = run.finished();
    assert_eq!(run.code, Some(130), "{}", run.said());
    assert_all_whole(&run, "the end");
    drop(mounted);
}

#[test]
fn a_run_that_ends_on_a_full_disk_reports_its_wait_and_the_loss_if_it_is_stopped() {
    let _alone = alone();
    let run = Run::of("full-end", &Manifest::glyphs(10_000, 40), &["--workers", "2"]);
    run.wait_for_checkpoint();
    let folder = run.folder().join("checkpoints");
    let _mounted = match Mounted::over(folder.clone()) {
        Ok(mounted) => mounted,
        Err(why) => return skip("the end of a run on storage that is full", &why),
    };
    let filled = fs::write(folder.join("ballast"), vec![1; 64 << 20]);
    assert!(filled.is_err(), "the disk is not full");
    run.wait_until("workers that wait", || run.said().contains("warning: the workers wait for the storage"));
    let said = run.said();
    assert!(said.contains("no space left") && said.contains("press Ctrl-C twice"), "{said}");
    run.signal(Signal::INT);
    run.wait_until("a stop that waits", || run.said().contains("press Ctrl-C again"));
    run.signal(Signal::INT);
    let run = run.finished();
    assert_eq!(run.code, Some(130), "{}", run.said());
    let said = run.said();
    let last = said.split("stopped; ").nth(1).unwrap_or_else(|| panic!("no farewell in\n{said}"));
    assert!(!last.contains("is kept"), "the checkpoint lies under the other file system:\n{said}");
    assert!(last.contains(" steps after it were not saved: ") && last.contains("no space left"), "{said}");
}
