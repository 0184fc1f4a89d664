//! Bad input causes an error that names the field or file, the value and the accepted values.
//! Nothing is lost.

use std::{fs, net::TcpListener, path::Path};

use rustix::process::Signal;

use crate::{
    faults::kill,
    run::{Manifest, Run, alone},
};

/// Checks that the run fails and prints all of `words`.
fn assert_refused(name: &str, manifest: &Manifest, arguments: &[&str], words: &[&str]) {
    let run = Run::of(name, manifest, arguments).finished();
    let said = run.said();
    assert!(run.code.is_some_and(|code| code == 1 || code == 2), "{name} ended with {:?}:\n{said}", run.code);
    for word in words {
        assert!(said.contains(word), "{name} does not say `{word}`:\n{said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn an_invalid_manifest_is_refused_with_field_value_and_range() {
    let _alone = alone();
    let good = Manifest::glyphs(640, 1);
    let cases = [
        ("unknown field", good.replaced("epochs: 1", "epoch: 1"), vec!["spec.training.epoch", "epochs"]),
        ("wrong type", good.replaced("epochs: 1", "epochs: many"), vec!["spec.training.epochs", "many"]),
        ("out of range", good.replaced("epochs: 1", "epochs: 0"), vec!["spec.training.epochs", "0", "1"]),
        ("unknown model", good.replaced("lenet5", "lenet6"), vec!["spec.model.name", "lenet6", "lenet5"]),
        ("bad size", good.replaced("64Ki", "64KB"), vec!["spec.communication.bucketBytes", "64KB"]),
        (
            "batch too great",
            good.replaced("globalBatchSize: 64", "globalBatchSize: 1000"),
            vec!["globalBatchSize", "1000", "576"],
        ),
    ];
    for (name, manifest, words) in cases {
        assert_refused(name, &manifest, &[], &words);
    }
}

/// Returns a job whose rate throws every weight out of range within a few steps.
fn thrown_off(policy: &str) -> Manifest {
    Manifest::glyphs(2_000, 2).replaced(
        "globalBatchSize: 64,",
        &format!("globalBatchSize: 64, schedule: {{baseLearningRate: 1000}}, onNonFinite: {policy},"),
    )
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_with_step_layer_and_last_finite_loss() {
    let _alone = alone();
    let run = Run::of("not-finite", &thrown_off("stop"), &[]).finished();
    let said = run.said();
    assert_eq!(run.code, Some(1), "{said}");
    for word in ["at step ", "the last finite loss was ", "the first that is not finite is ", "baseLearningRate"] {
        assert!(said.contains(word), "the output does not say `{word}`:\n{said}");
    }
    let steps = run.steps();
    assert!(steps.iter().all(|line| line.loss.is_some()), "a step of a broken state was done: {steps:?}");
    assert_eq!(run.history().len(), 1, "such a run is not tried again");
}

#[test]
fn steps_that_are_not_finite_are_left_out_by_all_workers_until_there_are_too_many() {
    let _alone = alone();
    let run = Run::of("skips", &thrown_off("skip"), &[]).finished();
    let said = run.said();
    assert_eq!(run.code, Some(1), "{said}");
    assert!(said.contains("10 such steps in a row"), "{said}");
    for member in ["worker-0", "worker-1"] {
        let log = run.log(member);
        let announced = log.lines().filter(|line| line.contains("the step is left out")).count();
        assert_eq!(announced, 1, "said once by each worker:\n{log}");
    }
    assert!(!said.contains("do not hold the same weights"), "{said}");
}

/// Returns an IDX file whose header promises `count` images, with `present` black images in it.
fn image_bytes(count: u32, present: usize) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, 3];
    for dimension in [count, 28, 28] {
        bytes.extend(dimension.to_be_bytes());
    }
    bytes.resize(16 + present * 784, 0);
    bytes
}

fn label_bytes(labels: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, 1];
    bytes.extend((labels.len() as u32).to_be_bytes());
    bytes.extend(labels);
    bytes
}

#[test]
fn a_worker_with_other_or_missing_data_is_reported_while_the_others_train() {
    const SAMPLES: u32 = 2_000;
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    // Processes that have opened the old file keep it.
    let replace = |name: &str, bytes: Vec<u8>| {
        let new = folder.path().join("new");
        fs::write(&new, bytes).and_then(|()| fs::rename(&new, folder.path().join(name))).expect("replaced");
    };
    let labels = |label: u8| replace("train-labels-idx1-ubyte", label_bytes(&[label; SAMPLES as usize]));
    replace("train-images-idx3-ubyte", image_bytes(SAMPLES, SAMPLES as usize));
    labels(1);
    let manifest = Manifest::idx(folder.path(), 10_000)
        .replaced("replicas: 2", "replicas: 2\n  elastic: {minReplicas: 1, maxReplicas: 2}")
        .replaced("backoffLimit: 2", "backoffLimit: 20");
    let run = Run::of("other-data", &manifest, &[]);
    run.wait_for_step(20);
    labels(2);
    kill(run.trainers("worker", "worker-1")[0]);
    // The group refuses other samples than its own. So does a checkpoint, if there is one.
    let refusals = ["the data set of lenet-worker-1", "these samples are not those of the checkpoint"];
    run.wait_until("a refusal", || refusals.iter().any(|refusal| run.said().contains(refusal)));
    run.wait_for_step(run.newest_step() + 20);
    labels(1);
    run.wait_for_workers_again(2);
    fs::remove_file(folder.path().join("train-labels-idx1-ubyte")).expect("removed");
    kill(run.trainers("worker", "worker-1")[0]);
    run.wait_until("the missing file", || run.said().contains("train-labels-idx1-ubyte"));
    run.wait_for_step(run.newest_step() + 20);
    labels(1);
    run.wait_for_workers_again(2);
    run.signal(Signal::INT);
    let run = run.finished();
    assert_eq!(run.code, Some(130), "{}", run.said());
}

#[test]
fn unusable_idx_files_are_refused_by_name() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let images = folder.path().join("train-images-idx3-ubyte");
    let labels = folder.path().join("train-labels-idx1-ubyte");
    let write = |path: &Path, bytes: Vec<u8>| fs::write(path, bytes).expect("written");
    let manifest = Manifest::idx(folder.path(), 1);

    assert_refused("missing", &manifest, &[], &["spec.dataset.uri", "train-images-idx3-ubyte"]);
    write(&images, image_bytes(100, 90));
    write(&labels, label_bytes(&[1; 100]));
    assert_refused("truncated", &manifest, &[], &["train-images-idx3-ubyte", "78416"]);
    write(&images, image_bytes(100, 100));
    write(&labels, label_bytes(&[1; 99]));
    assert_refused("counts", &manifest, &[], &["100", "99"]);
    write(&labels, label_bytes(&[11; 100]));
    let ten_classes = manifest.replaced("{format: idx,", "{format: idx, classes: 10,");
    assert_refused("label", &ten_classes, &[], &["train-labels-idx1-ubyte", "11"]);
    write(&images, vec![1, 2, 3, 4, 5, 6, 7, 8]);
    write(&labels, label_bytes(&[1; 100]));
    assert_refused("corrupt", &manifest, &[], &["train-images-idx3-ubyte"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_by_name() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a folder");
    let file = scratch.path().join("file");
    fs::write(&file, "in the way").expect("written");
    let below = file.join("run");
    let output = below.to_string_lossy();
    let said = crate::run::refused_output(&Manifest::glyphs(640, 1), &output);
    assert!(said.contains(&*output), "{said}");
}

#[test]
fn a_port_in_use_is_named_with_the_flag_that_chooses_another() {
    let _alone = alone();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    assert_refused("port", &Manifest::glyphs(640, 1), &["--port", &port], &[&port, "--port"]);
}
