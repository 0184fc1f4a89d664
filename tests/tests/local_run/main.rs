//! `lockstep run` with the real trainer: real processes, sockets and files.

mod bad_input;
mod benchmark;
mod bit_flip;
mod checkpoints;
mod corrupt_pictures;
mod devices;
mod elastic;
mod faults;
mod memory_limit;
mod metrics;
mod object_store;
mod own_model;
mod precision;
mod remote_data;
mod replay;
mod run;
mod same_data;
mod same_losses;
mod tensorboard;
mod using;

use run::{Manifest, Run, alone};

#[test]
fn two_workers_learn_the_glyphs_and_leave_everything_in_the_folder() {
    let _alone = alone();
    let run = Run::of("glyphs", &Manifest::glyphs(10_000, 4), &["--workers", "2"]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert!(run.accuracy() >= 0.97, "accuracy {}", run.accuracy());
    for file in ["manifest.yaml", "logs/coordinator.log", "logs/worker-0.log", "logs/worker-1.log", "model.safetensors"]
    {
        assert!(run.folder().join(file).is_file(), "{file} is missing");
    }
    let steps = run.steps();
    let expected: Vec<u64> = (1..=4 * 141).collect();
    assert_eq!(
        steps.iter().map(|line| line.step).collect::<Vec<_>>(),
        expected,
        "steps are missing, repeated or out of order"
    );
    assert!(steps.iter().all(|line| line.world_size == 2 && line.generation == 1 && line.step_seconds > 0.0));
    assert_eq!(run.evaluations().len(), 4, "one evaluation per epoch");
    let said = run.said();
    assert!(said.contains("model.safetensors") && said.contains("accuracy"), "{said}");
}

#[test]
fn the_model_holds_the_tensors_of_pytorchs_lenet() {
    let _alone = alone();
    let run = Run::of("model", &Manifest::glyphs(640, 1), &["--workers", "1"]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    let bytes = std::fs::read(run.folder().join("model.safetensors")).expect("the model");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a JSON header");
    assert_eq!(header["conv1.weight"]["shape"], serde_json::json!([6, 1, 5, 5]));
    assert_eq!(header["fc3.bias"]["shape"], serde_json::json!([10]));
    assert_eq!(header.as_object().expect("tensors").keys().filter(|name| *name != "__metadata__").count(), 10);
}
