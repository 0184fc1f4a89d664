//! A program that brings its own model, `examples/own_model.rs` of the worker, trains as
//! elastically as the trainer itself.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use crate::{
    faults::kill,
    run::{Manifest, Run, alone, lockstep},
};

/// A worker that is killed in its first second is replaced after a pause of one. The run is longer.
const EPOCHS: u32 = 500;
/// Steps of the run: 20,000 samples in batches of 64, times the epochs.
const STEPS: u64 = 500 * 313;

fn example() -> PathBuf {
    lockstep_tests::products().join("examples/own_model")
}

fn manifest() -> Manifest {
    let data = "{format: glyphs, samples: 1000}";
    Manifest::glyphs(1000, EPOCHS)
        .replaced("{name: lenet5}", "{name: own}")
        .replaced(data, "{format: own}")
        .replaced("bucketBytes: 64Ki", "backend: tcp")
        .replaced("replicas: 2", "replicas: 2\n  elastic: {minReplicas: 1, maxReplicas: 2}")
}

#[test]
fn a_model_of_the_users_own_survives_a_killed_worker_and_replays_to_equal_digests() {
    let _alone = alone();
    let example = example();
    let trainer = example.to_str().expect("UTF-8");
    let run = Run::of("own-model", &manifest(), &["--trainer", trainer]);
    run.wait_for_step(200);
    kill(run.trainers("worker", "worker-0")[0]);
    run.wait_for_workers_again(2);
    let run = run.finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_eq!(run.steps().iter().map(|line| line.step).collect::<Vec<_>>(), (1..=STEPS).collect::<Vec<_>>());
    assert!(run.history().iter().all(|change| !change.rollback), "{:?}", run.history());
    assert!(run.accuracy() >= 0.97, "accuracy {}", run.accuracy());
    let Output { status, stdout, stderr } = Command::new(lockstep())
        .arg("replay")
        .arg(run.folder())
        .args(["--trainer", trainer])
        .output()
        .expect("lockstep starts");
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{said}");
    let equal = |of: &str| said.lines().any(|line| line.starts_with(of) && line.ends_with("  equal"));
    assert!(equal("states  after ") && equal("digest  "), "{said}");
}

#[test]
fn a_trainer_refuses_a_manifest_of_another_trainers_model() {
    let _alone = alone();
    let run = Run::of("own-missing", &manifest(), &[]).finished();
    assert!(run.code == Some(1) && run.said().contains("spec.dataset.format: own"), "{}", run.said());
    let example = example();
    let arguments = ["--trainer", example.to_str().expect("UTF-8")];
    let run = Run::of("own-other", &Manifest::glyphs(1000, 1), &arguments).finished();
    assert!(run.code == Some(1) && run.said().contains("spec.model.name: lenet5"), "{}", run.said());
}
