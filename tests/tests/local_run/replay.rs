//! A finished run is repeated by its recorded memberships and plans.
//!
//! The order of additions depends on the number of workers and on measurements, so only the same
//! history leads to the same bits.

use std::{
    fs,
    process::{Command, Output},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    faults::{assert_each_step_once, kill},
    run::{Manifest, Run, alone, lockstep},
};

const EPOCHS: u32 = 30;
/// Steps of the run: 9,000 samples in batches of 64, times the epochs.
const STEPS: u64 = 30 * 141;

/// Replays a run that has ended. Returns the exit code and the output.
fn replay(run: &Run) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        Command::new(lockstep()).arg("replay").arg(run.folder()).output().expect("lockstep starts");
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

/// Checks that an undisturbed replay of the run's history and plans gives its states and its
/// weights. Returns the output.
pub(crate) fn assert_replayed(run: &Run) -> String {
    let (code, said) = replay(run);
    assert_eq!(code, Some(0), "{said}");
    let equal = |of: &str| said.lines().any(|line| line.starts_with(of) && line.ends_with("  equal"));
    assert!(equal("states  after ") && equal("digest  "), "{said}");
    said
}

/// Alters the line of a generation in one of the run's files while `look` runs.
fn altered(run: &Run, file: &str, generation: u64, alter: impl Fn(&mut Value), look: impl Fn()) {
    let path = run.folder().join(file);
    let whole = fs::read_to_string(&path).expect("the file");
    let lines = whole.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("JSON");
        if line["generation"] == generation {
            alter(&mut line);
        }
        line.to_string() + "\n"
    });
    let changed: String = lines.collect();
    assert_ne!(changed, whole, "nothing was altered");
    fs::write(&path, changed).expect("altered");
    look();
    fs::write(&path, whole).expect("restored");
}

#[test]
fn only_its_own_history_replays_a_run_to_the_same_bits() {
    let _alone = alone();
    let manifest = Manifest::glyphs(10_000, EPOCHS)
        .replaced("bucketBytes: 64Ki", "backend: tcp")
        .replaced("replicas: 2", "replicas: 3\n  elastic: {minReplicas: 1, maxReplicas: 4}");
    let run = Run::of("replayed", &manifest, &[]);
    run.wait_for_step(50);
    // The first rank reports, saves and stores the plans.
    kill(run.trainers("worker", "worker-0")[0]);
    run.wait_for_workers_again(3);
    kill(run.trainers("coordinator", "")[0]);
    run.wait_for_checkpoint();
    run.trainers("worker", "").into_iter().for_each(kill);
    run.wait_until("a rollback", || run.history().iter().any(|change| change.rollback));
    let rolled_back = run.history().last().map_or(0, |change| change.generation);
    run.wait_for_generation(rolled_back);
    let scaled = Command::new(lockstep()).arg("scale").arg(run.folder()).arg("2").status().expect("lockstep starts");
    assert!(scaled.success(), "{scaled}");
    run.wait_until("two workers", || run.steps().last().is_some_and(|line| line.world_size == 2));
    let run = run.finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(&run, STEPS);

    let said = assert_replayed(&run);
    assert!(said.contains("generation 1: 3 workers, steps 1 to"), "{said}");

    // Three ranks sum by two trees only if the plan demands it.
    let by_two_trees = |line: &mut Value| {
        let text = line["plan"].as_str().expect("a plan");
        let (before, words) = text.split_once("\"words\":[").expect("its words");
        let ends: Vec<&str> = words.splitn(5, ',').skip(4).collect();
        line["plan"] = json!(format!("{before}\"words\":[4,0,0,0,{}", ends.concat()));
    };
    altered(&run, "plans.jsonl", 1, by_two_trees, || {
        let (code, said) = replay(&run);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("  differ, seen from step ") && said.contains("  differs: "), "{said}");
    });
    let fewer = |line: &mut Value| line["workers"] = json!(2);
    altered(&run, "history.jsonl", 1, fewer, || {
        let (code, said) = replay(&run);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("generation 1 had 3 workers after step 0 by its plan, 2"), "{said}");
    });
    altered(&run, "plans.jsonl", 1, fewer, || {
        let (code, said) = replay(&run);
        assert_eq!(code, Some(2), "{said}");
    });
}

#[test]
fn a_run_that_was_resumed_with_another_number_of_workers_is_replayed() {
    let _alone = alone();
    let manifest = Manifest::glyphs(10_000, EPOCHS)
        .replaced("replicas: 2", "replicas: 2\n  elastic: {minReplicas: 1, maxReplicas: 4}");
    let run = Run::of("resized", &manifest, &[]);
    run.wait_for_step(50);
    run.scale(1);
    run.wait_until("one worker", || run.steps().last().is_some_and(|line| line.world_size == 1));
    run.signal(Signal::INT);
    let run = run.finished();
    assert!(run.said().contains(" --workers 1"), "the output does not say how to continue: {}", run.said());
    let run = run.again(&manifest, &["--workers", "3"]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(&run, STEPS);
    assert_replayed(&run);
}

/// Returns a job with another global batch from each of these epochs on.
fn with_changing_batches(manifest: &Manifest, first: u32, changes: &[(u32, u32)]) -> Manifest {
    let change = |(epoch, size): &(u32, u32)| format!("{{epoch: {epoch}, globalBatchSize: {size}}}");
    let changes: Vec<String> = changes.iter().map(change).collect();
    manifest.replaced(
        "globalBatchSize: 64",
        &format!("globalBatchSize: {first}, batchSizeSchedule: [{}]", changes.join(", ")),
    )
}

#[test]
fn a_resnet_by_lars_that_lost_a_worker_while_its_batch_grew_is_replayed() {
    let _alone = alone();
    // 320 samples: 2 epochs of 10 steps, then 6 of 5.
    let manifest = with_changing_batches(&Manifest::glyphs(355, 8), 32, &[(2, 64)])
        .replaced("name: lenet5", "name: resnet20")
        .replaced("seed: 7", "optimizer: {lars: {}}, schedule: {warmupEpochs: 1, decay: polynomial}, seed: 7")
        .replaced("replicas: 2", "replicas: 2\n  elastic: {minReplicas: 1, maxReplicas: 2}");
    let run = Run::of("resnet-lars", &manifest, &[]);
    run.wait_for_step(13);
    kill(run.trainers("worker", "worker-1")[0]);
    let run = run.finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(&run, 2 * 10 + 6 * 5);
    let history = run.history();
    let lost: Vec<u64> = history.iter().filter(|change| !change.lost.is_empty()).map(|change| change.step).collect();
    let ends_epoch = |step: u64| step.is_multiple_of(if step <= 20 { 10 } else { 5 });
    assert!(lost.iter().any(|step| !ends_epoch(*step)), "no change in mid-epoch: {history:?}");
    assert_replayed(&run);
}

#[test]
fn a_run_is_resumed_through_changes_of_its_batch() {
    let _alone = alone();
    let manifest = with_changing_batches(&Manifest::glyphs(5_000, EPOCHS), 64, &[(4, 96), (10, 256), (20, 64)]);
    let run = Run::of("batches", &manifest, &[]);
    run.wait_for_step(150);
    run.signal(Signal::INT);
    let run = run.finished();
    assert_eq!(run.code, Some(130), "{}", run.said());
    let run = run.again(&manifest, &[]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    // 4,500 samples in batches of 64, 96, 256 and 64.
    assert_each_step_once(&run, 4 * 71 + 6 * 47 + 10 * 18 + 10 * 71);
    assert_replayed(&run);
}

#[test]
fn a_run_that_has_not_ended_is_not_replayed() {
    let _alone = alone();
    let run = Run::of("unended", &Manifest::glyphs(10_000, 2000), &[]);
    run.wait_for_step(1);
    let (code, said) = replay(&run);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("at work in it"), "{said}");
}
