//! Training steps of whole models on one core, against PyTorch's wheel from PyPI on one thread; and
//! ResNet-20 on two cores of one worker against one.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::{
    Effort, load, median,
    record::{Book, Figure},
    scaling, torch,
};
use xtask::{cargo, folders};

const PEER: &str = include_str!("nn.py");

/// A model at a batch, with the steps of a quick and of a full round.
struct Case {
    model: &'static str,
    batch: u32,
    warm_up: u32,
    steps: [u32; 2],
    precision: &'static str,
    /// The least ratio of PyTorch's time to ours.
    goal: f64,
}

const CASES: [Case; 4] = [
    Case { model: "lenet5", batch: 64, warm_up: 50, steps: [100, 300], precision: "f32", goal: 4.0 },
    Case { model: "resnet20", batch: 128, warm_up: 2, steps: [5, 15], precision: "f32", goal: 1.0 / 1.1 },
    Case { model: "resnet20", batch: 128, warm_up: 2, steps: [5, 15], precision: "bf16", goal: 1.0 / 1.2 },
    Case { model: "resnet50", batch: 8, warm_up: 1, steps: [2, 5], precision: "f32", goal: 1.0 / 1.3 },
];

/// The least ratio of the time on one core to that on two.
const TWO_CORES: f64 = 1.8;

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let (rounds, size) = match effort {
        Effort::Quick => (3, 0),
        Effort::Full => (7, 1),
    };
    let python = torch::python()?;
    let ours = cargo::build()?.join("examples/step");
    let script = folders::target().join("bench/nn.py");
    fs::write(&script, PEER)?;
    for Case { model, batch, warm_up, steps, precision, goal } in CASES {
        let steps = steps[size];
        let words = [model.to_owned(), batch.to_string(), warm_up.to_string(), steps.to_string(), precision.to_owned()];
        let named = if precision == "f32" { model.to_owned() } else { format!("{model} in {precision}") };
        let peer_words = [vec![script.to_string_lossy().into_owned()], words.to_vec()].concat();
        let (found, disturbed) =
            load::rounds(rounds, || Ok((Steps::of(&ours, &words)?, Steps::of(&python, &peer_words)?)))?;
        let middle = |of: &dyn Fn(&(Steps, Steps)) -> f64| median(&mut found.iter().map(of).collect::<Vec<_>>());
        book.write(&Figure {
            case: &format!("{named}, batch {batch}: forward, backward and update on one core"),
            unit: "s",
            ours: middle(&|(ours, _)| ours.seconds),
            peer: Some((torch::NAME, middle(&|(_, peer)| peer.seconds))),
            goal,
            disturbed,
        })?;
        book.write(&Figure {
            case: &format!("{named}, batch {batch}: most memory of the process"),
            unit: "MiB",
            ours: middle(&|(ours, _)| ours.memory),
            peer: Some((torch::NAME, middle(&|(_, peer)| peer.memory))),
            goal: 1.0,
            disturbed: false,
        })?;
    }
    two_cores(book, rounds)
}

/// Measures a step of ResNet-20 by a worker with one device and by a worker with two.
fn two_cores(book: &mut Book, rounds: usize) -> anyhow::Result<()> {
    let (found, disturbed) = load::rounds(rounds, || Ok((worker_step(2)?, worker_step(1)?)))?;
    let (mut two, mut one): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
    book.write(&Figure {
        case: "resnet20, batch 128: a step of one worker with two devices",
        unit: "s",
        ours: median(&mut two),
        peer: Some(("one device", median(&mut one))),
        goal: TWO_CORES,
        disturbed,
    })
}

/// Returns the mean seconds of a step by `lockstep run`, with so many devices in one worker.
fn worker_step(devices: u32) -> anyhow::Result<f64> {
    let folder = folders::target().join("bench/nn");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let device = format!("spec.devicesPerWorker={devices}");
    let sets = [
        &device,
        "spec.training.globalBatchSize=128",
        "spec.training.epochs=1",
        "spec.training.schedule.warmupEpochs=0",
        "spec.dataset.samples=3000",
    ];
    let status = Command::new(cargo::build()?.join("lockstep"))
        .args(["run", "deploy/examples/resnet20.yaml", "--workers", "1"])
        .args(sets.into_iter().flat_map(|set| ["--set", set]))
        .arg("--output")
        .arg(&folder)
        .current_dir(folders::root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "the run in {} ended with {status}", folder.display());
    scaling::seconds_a_step(&folder.join("metrics.jsonl"), 3)
}

/// The steps of a process.
struct Steps {
    /// The median of their seconds.
    seconds: f64,
    /// The most memory of the process, in MiB.
    memory: f64,
}

impl Steps {
    /// Runs a program on one core and reads the JSON lines that it prints.
    fn of(program: &Path, words: &[String]) -> anyhow::Result<Self> {
        let output = Command::new("taskset")
            .args(["--cpu-list", "0"])
            .arg(program)
            .args(words)
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            bail!("{} ended with {}", program.display(), output.status);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut seconds: Vec<f64> = lines.iter().filter_map(|line| line["step_seconds"].as_f64()).collect();
        ensure!(!seconds.is_empty(), "{} printed no steps", program.display());
        let memory = lines.iter().find_map(|line| line["most_memory_mib"].as_f64());
        let memory = memory.with_context(|| format!("{} printed no memory", program.display()))?;
        Ok(Self { seconds: median(&mut seconds), memory })
    }
}
