//! LeNet-5's training step, batch 64, one core, against PyTorch's wheel from PyPI.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::bail;

use super::{
    Effort, load, median,
    record::{Book, Figure},
    torch,
};
use xtask::{cargo, folders};

const BATCH: &str = "64";

const PEER: &str = r#"
import sys, time, json, torch
import torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1); torch.manual_seed(0)
batch, warmup, steps = map(int, sys.argv[1:4])
model = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
update = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
for step in range(warmup + steps):
    start = time.perf_counter()
    update.zero_grad(); F.cross_entropy(model(x), y).backward(); update.step()
    if step >= warmup: print(json.dumps({"step_seconds": time.perf_counter() - start}))
"#;

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let (rounds, steps) = match effort {
        Effort::Quick => (5, "100"),
        Effort::Full => (21, "300"),
    };
    let python = torch::python()?;
    let ours = cargo::build()?.join("examples/lenet_step");
    let script = folders::target().join("bench/lenet_step.py");
    fs::write(&script, PEER)?;

    let (found, disturbed) = load::rounds(rounds, || {
        let our_seconds = step_seconds(&ours, &[BATCH, "50", steps])?;
        Ok((our_seconds, step_seconds(&python, &[&script.to_string_lossy(), BATCH, "50", steps])?))
    })?;
    let (mut our_rounds, mut their_rounds): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
    book.write(&Figure {
        case: "batch 64, forward + backward + update, median",
        unit: "s",
        ours: median(&mut our_rounds),
        peer: Some((torch::NAME, median(&mut their_rounds))),
        goal: 1.0,
        disturbed,
    })
}

/// Returns the median seconds of a step on one core.
fn step_seconds(program: &Path, words: &[&str]) -> anyhow::Result<f64> {
    let output =
        Command::new("taskset").args(["--cpu-list", "0"]).arg(program).args(words).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{} ended with {}", program.display(), output.status);
    }
    let seconds = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["step_seconds"].as_f64();
    let mut steps: Vec<f64> = String::from_utf8_lossy(&output.stdout).lines().filter_map(seconds).collect();
    if steps.is_empty() {
        bail!("{} printed no steps", program.display());
    }
    Ok(median(&mut steps))
}
