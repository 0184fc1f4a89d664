//! A run whose checkpoints and model go to a bucket of a real S3 server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lockstep_tests::{object_store::ObjectStore, skip};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    faults::{assert_each_step_once, kill},
    run::{Manifest, Run, alone, lockstep, wait_for},
};

/// Steps of an epoch: 9,000 samples in batches of 64.
const EPOCH_STEPS: u64 = 141;

fn manifest(epochs: u32) -> Manifest {
    Manifest::glyphs(10_000, epochs).replaced("file:///checkpoints", "s3://models/team")
}

/// Returns the only folder in `parent`, once there is one.
fn only_folder(parent: &Path) -> Option<PathBuf> {
    fs::read_dir(parent).ok()?.flatten().map(|entry| entry.path()).find(|path| path.is_dir())
}

/// Returns the checkpoints that have a manifest.
fn whole(job: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(job.join("checkpoints")).into_iter().flatten().flatten();
    listed.map(|entry| entry.path()).filter(|path| path.join("manifest.json").is_file()).collect()
}

fn checkpoints(words: &[&str], variables: &[(String, String)]) -> Output {
    let output = Command::new(lockstep()).arg("checkpoints").args(words).envs(variables.iter().cloned()).output();
    output.expect("lockstep starts")
}

#[test]
fn a_job_whose_processes_are_all_killed_resumes_from_the_bucket_and_stores_its_model_there() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let store = match ObjectStore::start(scratch.path()) {
        Ok(store) => store,
        Err(why) => return skip("a run whose checkpoints go to a bucket", &why),
    };
    let (bucket, variables) = (store.bucket("models"), ObjectStore::variables(store.address()));
    let manifest = manifest(40);
    let run = Run::with_variables("bucket", &manifest, &["--workers", "2"], variables.clone());
    run.wait_until("a checkpoint", || only_folder(&bucket.join("team")).is_some_and(|job| !whole(&job).is_empty()));
    let job = only_folder(&bucket.join("team")).expect("the job's folder");
    let uri = format!("s3://models/team/{}", job.file_name().expect("a name").display());
    assert!(run.said().contains(&uri), "{}", run.said());
    let all = [run.trainers("worker", ""), run.trainers("coordinator", "")].concat();
    assert_eq!(all.len(), 3);
    run.signal(Signal::KILL);
    wait_for("the processes to end", || all.iter().all(|pid| rustix::process::test_kill_process(*pid).is_err()));
    assert!(!run.folder().join("checkpoints").exists(), "checkpoints are on the local disk");
    let output = checkpoints(&["list", "--json", &uri], &variables);
    let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let newest = listed[0]["step"].as_u64().expect("a checkpoint");
    assert!(newest < 40 * EPOCH_STEPS, "the run ended before it was killed: {listed:#}");

    let run = run.again(&manifest, &["--workers", "2"]);
    run.wait_for_step(newest + 20);
    // The new worker gets the state from the other worker, which then reports progress and stores
    // the model.
    let changes = run.history().len();
    kill(run.trainers("worker", "worker-0")[0]);
    let both_again =
        |run: &Run| run.history().get(changes..).is_some_and(|new| new.last().is_some_and(|last| last.workers == 2));
    run.wait_until("worker-0 again", || both_again(&run));
    let run = run.finished();
    let said = run.said();
    assert_eq!(run.code, Some(0), "{said}");
    let base = run.history().iter().find(|change| change.rollback).map(|change| change.step);
    assert_eq!(base, Some(newest), "{:?}", run.history());
    assert_each_step_once(&run, 40 * EPOCH_STEPS);
    assert!(said.contains(&format!("{uri}/model.safetensors")), "{said}");
    assert!(!run.folder().join("model.safetensors").exists());
    let model = fs::read(job.join("model.safetensors")).expect("the model");
    let length = u64::from_le_bytes(model[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&model[8..8 + length]).expect("a JSON header");
    assert_eq!(header["conv1.weight"]["shape"], serde_json::json!([6, 1, 5, 5]));
    for log in ["worker-0.log", "worker-1.log", "coordinator.log"] {
        let text = fs::read_to_string(run.folder().join("logs").join(log)).expect("a log");
        let secret = &variables.iter().find(|(name, _)| name == "AWS_SECRET_ACCESS_KEY").expect("a secret").1;
        assert!(!text.contains(secret.as_str()), "{log} has the secret");
    }

    let exported = scratch.path().join("exported.safetensors");
    let output = checkpoints(&["verify", &uri], &variables);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let output = checkpoints(&["prune", &uri, "--keep-last", "1"], &variables);
    assert!(output.status.success() && whole(&job).len() == 1, "{}", String::from_utf8_lossy(&output.stderr));
    let output = checkpoints(&["export", &uri, "--output", exported.to_str().expect("UTF-8")], &variables);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tensors =
        |file: &[u8]| file[8 + u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize..].to_vec();
    assert!(
        tensors(&fs::read(exported).expect("written")) == tensors(&model),
        "the newest checkpoint differs from the model"
    );
}

#[test]
fn an_endpoint_without_a_scheme_fails_the_job_at_once_and_names_the_variable() {
    let _alone = alone();
    let variables = [("AWS_ENDPOINT_URL", "minio:9000"), ("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "k")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let run = Run::with_variables("endpoint", &manifest(1), &["--workers", "1"], variables).finished();
    let said = run.said();
    assert_eq!(run.code, Some(1), "{said}");
    for word in ["AWS_ENDPOINT_URL: `minio:9000` has no scheme", "`http://minio:9000`"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(!said.contains("panicked") && !said.contains("takes its place"), "{said}");
}

#[test]
fn a_bucket_that_does_not_exist_fails_the_job_at_once_with_advice() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let store = match ObjectStore::start(scratch.path()) {
        Ok(store) => store,
        Err(why) => return skip("a run whose bucket does not exist", &why),
    };
    let variables = ObjectStore::variables(store.address());
    let run = Run::with_variables("no-bucket", &manifest(1), &["--workers", "1"], variables.clone()).finished();
    let said = run.said();
    assert_eq!(run.code, Some(1), "{said}");
    for word in ["spec.checkpoint.uri", "s3://models/team", "the bucket does not exist", "make it"] {
        assert!(said.contains(word), "{said}");
    }
    let output = checkpoints(&["list", "s3://models//"], &variables);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("such as s3://models/lenet"));
}
