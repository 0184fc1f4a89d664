//! The pipeline of JPEG pictures on one core, against torchvision; and how long a training on
//! pictures waits for them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use lockstep_tests::metrics::{of_worker, value};
use serde_json::Value;

use super::{
    Effort, load, median,
    record::{Book, Figure},
    torch,
};
use xtask::{cargo, folders};

const PEER: &str = include_str!("data.py");
/// The ways in which torchvision decodes: a name, and the word of the peer's script.
const PEERS: [(&str, &str); 2] = [("torchvision 0.29.2 on Pillow", "pil"), ("torchvision.io 0.29.2", "io")];
const PICTURES: usize = 200;
/// The greatest share of a training that may wait for pictures.
const WAITING: f64 = 0.03;
/// The steps of the training, and the longest time that they take.
const STEPS: f64 = 12.0;
const LONGEST: Duration = Duration::from_secs(180);

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let (rounds, passes) = match effort {
        Effort::Quick => (3, 1),
        Effort::Full => (9, 2),
    };
    let python = torch::python_with_torchvision()?;
    let binaries = cargo::build()?;
    let script = folders::target().join("bench/data.py");
    fs::write(&script, PEER)?;
    let pictures = drawn(&python, &script)?;
    let peer = |way: &str| image_seconds(&python, &[&script.to_string_lossy(), way], &pictures, passes);
    let ours = || image_seconds(&binaries.join("examples/pipeline"), &[], &pictures, passes);
    let (found, disturbed) = load::rounds(rounds, || Ok((ours()?, [peer(PEERS[0].1)?, peer(PEERS[1].1)?])))?;
    let (mut own, peers): (Vec<f64>, Vec<[f64; 2]>) = found.into_iter().unzip();
    let own = median(&mut own);
    for (number, (name, _)) in PEERS.into_iter().enumerate() {
        let theirs = median(&mut peers.iter().map(|seconds| seconds[number]).collect::<Vec<_>>());
        println!("{:.0} pictures a second on one core, {name} {:.0}", 1.0 / own, 1.0 / theirs);
        book.write(&Figure {
            case: "a JPEG of 500×375 on one core: decode, random resized crop to 224, mirror, normalise",
            unit: "s",
            ours: own,
            peer: Some((name, theirs)),
            goal: 1.0,
            disturbed,
        })?;
    }
    let (mut shares, disturbed) = load::rounds(1, || waiting_share(&binaries, &pictures))?;
    book.write(&Figure {
        case: "ResNet-18 on JPEGs, one core and one decoding thread: share of the steps that waits for pictures",
        unit: "of the time",
        ours: median(&mut shares),
        peer: None,
        goal: WAITING,
        disturbed,
    })
}

/// Returns a folder of pictures, drawn on first use.
fn drawn(python: &Path, script: &Path) -> anyhow::Result<PathBuf> {
    let folder = folders::target().join("bench/pictures");
    let last = folder.join(format!("class{}/{:05}.jpg", (PICTURES - 1) % 4, PICTURES - 1));
    if !last.exists() {
        let count = PICTURES.to_string();
        cargo::run(Command::new(python).arg(script).arg("draw").arg(&folder).arg(count))?;
    }
    Ok(folder)
}

/// Runs a program on one core. Returns the median of the seconds of a picture that it prints.
fn image_seconds(program: &Path, words: &[&str], pictures: &Path, passes: usize) -> anyhow::Result<f64> {
    let output = Command::new("taskset")
        .args(["--cpu-list", "0"])
        .arg(program)
        .args(words)
        .arg(pictures)
        .arg(passes.to_string())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("{} ended with {}", program.display(), output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut seconds: Vec<f64> = lines.filter_map(|line| line["image_seconds"].as_f64()).collect();
    ensure!(!seconds.is_empty(), "{} printed no pass", program.display());
    Ok(median(&mut seconds))
}

const MANIFEST: &str = "apiVersion: lockstep.dev/v1alpha1
kind: TrainingJob
metadata: {name: pictures}
spec:
  replicas: 1
  model: {name: resnet18}
  dataset:
    format: imagefolder
    uri: file:///data/pictures
    image: {height: 224, width: 224}
    evaluationFraction: 0
    augment: {randomResizedCrop: {}, randomHorizontalFlip: 0.5}
  training: {epochs: 1000, globalBatchSize: 16, microBatchSize: 8}
  checkpoint: {uri: \"file:///checkpoints\", intervalSeconds: 3600}
";

/// Trains for some steps. Returns the share of the phases' time in which the worker waited for its
/// loader.
fn waiting_share(binaries: &Path, pictures: &Path) -> anyhow::Result<f64> {
    let (manifest, output) = (folders::target().join("bench/data.yaml"), folders::target().join("bench/data"));
    fs::write(&manifest, MANIFEST)?;
    if output.exists() {
        fs::remove_dir_all(&output)?;
    }
    let run = Command::new(binaries.join("lockstep"))
        .arg("run")
        .arg(&manifest)
        .arg("--data")
        .arg(pictures)
        .arg("--output")
        .arg(&output)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut run = Stopping(run);
    let start = Instant::now();
    let text = loop {
        // Until the worker serves its metrics it has done no step.
        let text = of_worker(&output, 0).unwrap_or_default();
        if value(&text, "lockstep_steps_total").is_some_and(|steps| steps >= STEPS) {
            break text;
        }
        ensure!(start.elapsed() < LONGEST, "the run in {} does not get on", output.display());
        ensure!(run.0.try_wait()?.is_none(), "the run in {} ended early", output.display());
        thread::sleep(Duration::from_millis(200));
    };
    let name = "lockstep_phase_seconds_total{";
    let phases: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
    let seconds = |line: &&str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
    let waited = phases.iter().find(|line| line.contains("phase=\"data\"")).and_then(seconds);
    let all: f64 = phases.iter().filter_map(seconds).sum();
    Ok(waited.context("the worker's metrics have no phase data")? / all)
}

/// Asks a run to stop, and waits until it has.
struct Stopping(Child);

impl Drop for Stopping {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let _ = self.0.wait();
    }
}
