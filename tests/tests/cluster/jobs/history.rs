//! The metrics log and the record of a whole run, compared with the promises that hold whatever
//! happened.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use jiff::{Timestamp, ToSpan as _};
use lockstep_launch::{StateComparison, metrics_log};
use lockstep_tests::{
    cluster::{Cluster, wait_for},
    products, samples,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::job::{EXACT_STEPS_PER_EPOCH, Job, exact};
use crate::shared::PATIENCE;

const MODEL: &str = "model.safetensors";
/// Steps after a change of the group that reveal its effect on any part of the state.
const AFTER_CHANGE: u64 = 128;

/// A line of metrics.jsonl about a step.
#[derive(Debug, Deserialize)]
struct Step {
    step: u64,
    generation: u64,
    time: Timestamp,
    /// `None` if no surviving worker had seen the step.
    state_hash: Option<u32>,
}

/// Calls [`assert_no_step_was_lost`] for an [`exact`] job, and [`assert_undisturbed_states`].
pub(super) fn assert_undisturbed(cluster: &Cluster, namespace: &str, job: &Job<'_>, through: u64) {
    assert_no_step_was_lost(cluster, namespace, job);
    assert_undisturbed_states(cluster, namespace, job, through);
}

/// Checks an [`exact`] job that is still training: after each step its state was, bit for bit, that
/// of an undisturbed run. Checks at least the steps up to `through` and some beyond the last
/// change.
///
/// The job is deleted on the way, so that the undisturbed run has the processors.
pub(super) fn assert_undisturbed_states(cluster: &Cluster, namespace: &str, job: &Job<'_>, through: u64) {
    let changes = job.group()["status"]["changes"].clone();
    let changed = changes.as_array().and_then(|changes| changes.last()?["step"].as_u64()).expect("a change");
    let through = through.max(changed + AFTER_CHANGE);
    let folder = cluster.folder_of(namespace, "checkpoints").expect("the volume");
    let metrics_log = || metrics_log(&folder);
    wait_for("the metrics log to hold a step", PATIENCE, || holds_step(&metrics_log(), through))
        .unwrap_or_else(|error| panic!("{error} {through}\n{}", job.describe()));
    let metrics_log = metrics_log();
    job.delete();
    let states = StateComparison::between(&metrics_log, &undisturbed(through));
    assert!(states.last >= Some(through), "a run does not reach step {through}: {states:?}");
    assert_eq!(states.differ_from, None, "{states:?}");
    println!("states: those of an undisturbed run after {} steps, past the last change", states.steps);
}

/// Returns the metrics log of an [`exact`] job that ran undisturbed on this machine, up to step
/// `through` at least.
fn undisturbed(through: u64) -> String {
    static LONGEST: Mutex<String> = Mutex::new(String::new());
    let mut longest = LONGEST.lock().unwrap_or_else(PoisonError::into_inner);
    if !holds_step(&longest, through) {
        // The next caller may need more steps.
        let epochs = (through + through / 2).div_ceil(EXACT_STEPS_PER_EPOCH);
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let mut manifest = exact("undisturbed", epochs as u32);
        manifest["spec"]["replicas"] = 1.into();
        *longest = metrics_log_of(&run_here(&manifest, scratch.path()));
        assert!(holds_step(&longest, through), "a run of {epochs} epochs ended before step {through}");
    }
    longest.clone()
}

/// Calls [`assert_nothing_was_lost`], and checks that each step took the next samples of its epoch.
/// The job's checkpoints go to the claim that all jobs of these tests use.
pub(super) fn assert_no_step_was_lost(cluster: &Cluster, namespace: &str, job: &Job<'_>) -> u64 {
    let folder = cluster.folder_of(namespace, "checkpoints").expect("the volume");
    let metrics_log = metrics_log(&folder);
    let group = reported_group(job);
    let total = assert_nothing_was_lost(&metrics_log, &group);
    assert_eq!(taken_back(&job.reported_steps(), &group), None, "{group:#}");
    let checked = samples::each_was_taken_once(&job.workload(), &metrics_log).expect("each sample of an epoch once");
    assert!(checked > 0, "no step reports its samples");
    println!("samples: {checked} of {total} steps report theirs, all of them the next ones of their epoch");
    total
}

/// Waits until the newest membership is among the reported changes, and returns the group. The
/// coordinator that recorded it may be gone.
fn reported_group(job: &Job<'_>) -> Value {
    let mut group = Value::Null;
    wait_for("the newest membership to be reported", PATIENCE, || {
        group = job.group();
        let reported = group["status"]["changes"].as_array().and_then(|changes| changes.last());
        reported.is_some_and(|last| last["generation"] == group["spec"]["record"]["active"]["generation"])
    })
    .unwrap_or_else(|error| panic!("{error:#}: {group:#}"));
    group
}

/// Checks that every step was done once and in order, that each generation continues where the one
/// before stood, and that no reported step was taken back. Prints a summary and returns the last
/// step.
fn assert_nothing_was_lost(metrics_log: &str, group: &Value) -> u64 {
    let steps = steps(metrics_log);
    let total = steps.last().expect("steps").step;
    let numbers: Vec<u64> = steps.iter().map(|line| line.step).collect();
    assert_eq!(numbers, (1..=total).collect::<Vec<_>>(), "steps are missing, repeated or out of order");
    assert!(
        steps.windows(2).all(|pair| pair[0].generation <= pair[1].generation),
        "the generations of the steps do not increase"
    );

    let changes = group["status"]["changes"].as_array().expect("the changes of the group");
    assert!(changes.iter().all(|change| change["rollback"] != true), "a step was taken back: {changes:#?}");
    for pair in changes.windows(2) {
        let [before, after] = [&pair[0], &pair[1]].map(|change| change["generation"].as_u64().expect("a number"));
        assert!(before < after, "{changes:#?}");
        let base = pair[1]["step"].as_u64().expect("a step");
        let last = steps.iter().rev().find(|line| line.generation < after).map_or(0, |line| line.step);
        let first = steps.iter().find(|line| line.generation >= after).map_or(base + 1, |line| line.step);
        assert!(
            last <= base && first <= base + 1,
            "generation {after} continues from step {base}, but {last} came before it and {first} after it"
        );
    }
    println!(
        "history: {total} steps, each done once; {} generations in one chain; 0 committed steps lost",
        changes.last().map_or(0, |change| change["generation"].as_u64().unwrap_or_default())
    );
    total
}

/// Returns a step that was reported before a membership that continues from an earlier step, and
/// that membership's generation.
fn taken_back(reported: &[(Timestamp, u64)], group: &Value) -> Option<(u64, Value)> {
    let changes = group["status"]["changes"].as_array().expect("the changes of the group");
    changes.iter().find_map(|change| {
        let time: Timestamp = change["time"].as_str().expect("a time").parse().expect("of RFC 3339");
        let base = change["step"].as_u64().expect("a step");
        let furthest = reported.iter().rev().find(|(seen, _)| *seen < time).map(|(_, step)| *step)?;
        (furthest > base).then(|| (furthest, change["generation"].clone()))
    })
}

#[test]
fn a_reported_step_that_a_later_membership_lacks_was_taken_back() {
    let group = json!({"status": {"changes": [
        {"generation": 1, "step": 0, "time": "2026-01-01T00:00:00Z"},
        {"generation": 3, "step": 70, "time": "2026-01-01T00:00:10Z"},
    ]}});
    let reported =
        |second: i64, step| ("2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time") + second.seconds(), step);
    assert_eq!(taken_back(&[reported(1, 20), reported(9, 70), reported(11, 90)], &group), None);
    assert_eq!(taken_back(&[reported(1, 20), reported(9, 71)], &group), Some((71, 3.into())));
}

/// Checks that the newest checkpoint of an ended job is that of the last step in its metrics log.
pub(super) fn assert_last_step_is_saved(cluster: &Cluster, namespace: &str) {
    let folder = folder_of_job(&cluster.folder_of(namespace, "checkpoints").expect("the volume"));
    let mut list = Command::new(products().join("lockstep"));
    let listed = list.args(["checkpoints", "list", "--json"]).arg(&folder).output().expect("lockstep runs");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("a list");
    let last = steps(&metrics_log_of(&folder)).last().map(|line| line.step);
    assert!(last.is_some() && listed[0]["step"].as_u64() == last, "after step {last:?}: {listed:#}");
}

/// Returns the number of steps that the job in a volume did between two moments.
pub(super) fn steps_between(cluster: &Cluster, namespace: &str, from: Timestamp, to: Timestamp) -> usize {
    let metrics_log = metrics_log(&cluster.folder_of(namespace, "checkpoints").expect("the volume"));
    steps(&metrics_log).iter().filter(|line| (from..to).contains(&line.time)).count()
}

/// Returns true if a metrics log holds the state after `step`, or after a later one.
fn holds_step(metrics_log: &str, step: u64) -> bool {
    steps(metrics_log).iter().rev().any(|line| line.step >= step && line.state_hash.is_some())
}

/// The log also holds lines of evaluations.
fn steps(metrics_log: &str) -> Vec<Step> {
    metrics_log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Checks that a complete job had, bit for bit, the states and weights of an undisturbed local run
/// of its manifest.
///
/// Every step of the job must add as many ranks as the local run, by the algorithm of the manifest.
pub(super) fn assert_same_weights_as_undisturbed(cluster: &Cluster, namespace: &str, manifest: &Value) {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let output = run_here(manifest, scratch.path());
    let volume = cluster.folder_of(namespace, "checkpoints").expect("the volume");
    let states = StateComparison::between(&metrics_log(&volume), &metrics_log_of(&output));
    assert!(states.steps > 0 && states.differ_from.is_none(), "the states of both runs: {states}");
    let jobs = fs::read_dir(volume).expect("the volume");
    let models = jobs.map(|entry| entry.expect("an entry").path().join(MODEL)).filter(|path| path.exists());
    let models: Vec<_> = models.map(|path| weights(&path)).collect();
    assert!(models == [weights(&output.join(MODEL))], "{} models, or other weights", models.len());
    println!("states and weights: {} steps and the model, bit for bit those of an undisturbed run", states.steps);
}

/// Trains a manifest on this machine and returns the folder of the run, in `scratch`.
fn run_here(manifest: &Value, scratch: &Path) -> PathBuf {
    let (file, output) = (scratch.join("job.json"), scratch.join("run"));
    fs::write(&file, manifest.to_string()).expect("written");
    let mut run = Command::new(products().join("lockstep"));
    let run = run.arg("run").arg(&file).arg("--output").arg(&output).stdin(Stdio::null());
    let output_of_run = run.output().expect("lockstep runs");
    assert!(output_of_run.status.success(), "{}", String::from_utf8_lossy(&output_of_run.stderr));
    output
}

/// Returns the values of a model file. Its header names the job and is left out.
fn weights(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[8 + header..].to_vec()
}

/// Returns the metrics log of the job that trains in a volume.
fn metrics_log(volume: &Path) -> String {
    metrics_log_of(&folder_of_job(volume))
}

/// Returns the folder of the only job in a volume.
pub(super) fn folder_of_job(volume: &Path) -> PathBuf {
    let mut job = fs::read_dir(volume).expect("the volume").map(|entry| entry.expect("an entry").path());
    job.find(|folder| metrics_log::read(folder).is_ok()).expect("a metrics log")
}

fn metrics_log_of(folder: &Path) -> String {
    metrics_log::read(folder).expect("a metrics log")
}
