//! Weak scaling: LeNet-5 on one core and on two, each with 64 samples of a step, by `lockstep run` as users run it.

use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
};

use anyhow::ensure;
use serde_json::Value;

use super::{
    Effort,
    load::{self, Watch},
    median,
    record::{Better, Book, Figure},
};
use crate::cargo;

const SAMPLES_A_CORE: u32 = 64;
/// Steps at the beginning that do not count.
const WARM_UP: usize = 50;
/// Of a run, whatever its global batch.
const STEPS: u32 = 1500;
const GOAL: f64 = 0.95;

/// Who trains: workers, devices of each, and how workers are linked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Side {
    workers: u32,
    devices: u32,
    backend: &'static str,
}

const ALONE: Side = Side { workers: 1, devices: 1, backend: "auto" };
const TWO: [(Side, &str); 3] = [
    (Side { workers: 2, ..ALONE }, "two workers, through memory"),
    (Side { workers: 2, backend: "tcp", ..ALONE }, "two workers, over tcp"),
    (Side { devices: 2, ..ALONE }, "one worker with two devices"),
];

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let rounds = match effort {
        Effort::Quick => 3,
        Effort::Full => 11,
    };
    let mut seconds = BTreeMap::<Side, Vec<f64>>::new();
    let (watch, before) = (Watch::start(), load::children());
    for _ in 0..rounds {
        for side in [ALONE].into_iter().chain(TWO.map(|(side, _)| side)) {
            seconds.entry(side).or_default().push(step(side)?);
        }
    }
    let disturbed = watch.disturbed(load::children() - before);
    let mut middle = |side| median(seconds.entry(side).or_default());
    for (side, name) in TWO {
        book.write(&Figure {
            case: &format!("a step of LeNet-5, {SAMPLES_A_CORE} samples a core: {name}"),
            unit: "s",
            ours: middle(side),
            peer: Some(("one core", middle(ALONE))),
            goal: GOAL,
            better: Better::Less,
            disturbed,
        })?;
    }
    Ok(())
}

/// The mean seconds of a step, evaluations and checkpoints left out.
fn step(side: Side) -> anyhow::Result<f64> {
    let Side { workers, devices, backend } = side;
    let binaries = cargo::build()?;
    let folder = cargo::target().join("bench/scaling");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let cores = workers * devices;
    let batch = SAMPLES_A_CORE * cores;
    let sets = [
        format!("spec.devicesPerWorker={devices}"),
        format!("spec.communication.backend={backend}"),
        format!("spec.training.globalBatchSize={batch}"),
        // A tenth is held out.
        format!("spec.dataset.samples={}", batch * STEPS / 3 * 10 / 9),
        "spec.training.epochs=3".to_owned(),
    ];
    let status = Command::new(binaries.join("lockstep"))
        .args(["run", "deploy/examples/glyphs.yaml", "--workers", &workers.to_string()])
        .args(sets.iter().flat_map(|set| ["--set", set]))
        .arg("--output")
        .arg(&folder)
        .current_dir(cargo::root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "the run in {} ended with {status}", folder.display());
    let journal = fs::read_to_string(folder.join("metrics.jsonl"))?;
    let lines = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let seconds: Vec<f64> = lines.filter_map(|line| line["step_seconds"].as_f64()).skip(WARM_UP).collect();
    ensure!(!seconds.is_empty(), "{} tells of no step", folder.display());
    Ok(seconds.iter().sum::<f64>() / seconds.len() as f64)
}
