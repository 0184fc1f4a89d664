//! Weak scaling: LeNet-5 on one core and on two, each with 64 samples of a step, by `lockstep run`
//! as users call it.
//!
//! Two independent jobs at the same time serve as a second peer. They show how much of a second
//! core the machine offers.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::ensure;
use serde_json::Value;

use super::{
    Effort,
    cores::Cores,
    load, median,
    record::{Book, Figure},
};
use xtask::{cargo, folders};

const SAMPLES_A_CORE: u32 = 64;
/// Steps at the beginning that do not count.
const WARM_UP: usize = 50;
/// Steps of a run, whatever its global batch.
const STEPS: u32 = 1500;
const GOAL: f64 = 0.95;

/// The number of workers, the devices of each, and the link between workers.
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
    let (rounds, spare) = match effort {
        Effort::Quick => (3, Duration::from_secs(60)),
        Effort::Full => (11, Duration::from_secs(3600)),
    };
    let (mut cores, mut disturbed) = (Cores::with(spare), false);
    let mut measure = |step: &dyn Fn() -> anyhow::Result<f64>| {
        let (mut found, by_others) = cores.near(|| load::rounds(1, step))?;
        disturbed |= by_others;
        anyhow::Ok(median(&mut found))
    };
    let (mut seconds, mut apart) = (BTreeMap::<Side, Vec<f64>>::new(), Vec::new());
    for _ in 0..rounds {
        for side in [ALONE].into_iter().chain(TWO.map(|(side, _)| side)) {
            seconds.entry(side).or_default().push(measure(&|| Run::start(side, "group")?.step())?);
        }
        apart.push(measure(&|| {
            let (one, other) = (Run::start(ALONE, "one")?, Run::start(ALONE, "other")?);
            Ok(f64::midpoint(one.step()?, other.step()?))
        })?);
    }
    disturbed |= cores.apart() > 0;
    let apart = median(&mut apart);
    let mut middle = |side| median(seconds.entry(side).or_default());
    for (side, name) in TWO {
        for peer in [("one core", middle(ALONE)), ("two jobs apart", apart)] {
            book.write(&Figure {
                case: &format!("a step of LeNet-5, {SAMPLES_A_CORE} samples a core: {name}"),
                unit: "s",
                ours: middle(side),
                peer: Some(peer),
                goal: GOAL,
                disturbed,
            })?;
        }
    }
    println!("{}", cores.summary());
    Ok(())
}

/// A job that trains.
struct Run {
    process: Child,
    folder: PathBuf,
}

impl Run {
    fn start(side: Side, name: &str) -> anyhow::Result<Self> {
        let Side { workers, devices, backend } = side;
        let binaries = cargo::build()?;
        let folder = folders::target().join("bench/scaling").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let batch = SAMPLES_A_CORE * workers * devices;
        let sets = [
            format!("spec.devicesPerWorker={devices}"),
            format!("spec.communication.backend={backend}"),
            format!("spec.training.globalBatchSize={batch}"),
            // A tenth of the samples is held out.
            format!("spec.dataset.samples={}", batch * STEPS / 3 * 10 / 9),
            "spec.training.epochs=3".to_owned(),
        ];
        let process = Command::new(binaries.join("lockstep"))
            .args(["run", "deploy/examples/glyphs.yaml", "--workers", &workers.to_string()])
            .args(sets.iter().flat_map(|set| ["--set", set]))
            .arg("--output")
            .arg(&folder)
            .current_dir(folders::root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { process, folder })
    }

    /// Waits for the end and returns the mean seconds of a step, without evaluations and
    /// checkpoints.
    fn step(mut self) -> anyhow::Result<f64> {
        let status = self.process.wait()?;
        ensure!(status.success(), "the run in {} ended with {status}", self.folder.display());
        seconds_a_step(&self.folder.join("metrics.jsonl"), WARM_UP)
    }
}

/// Returns the mean seconds of the steps in a metrics log, without the first `warm_up`.
pub(super) fn seconds_a_step(metrics_log: &Path, warm_up: usize) -> anyhow::Result<f64> {
    let lines = fs::read_to_string(metrics_log)?;
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let seconds: Vec<f64> = lines.filter_map(|line| line["step_seconds"].as_f64()).skip(warm_up).collect();
    ensure!(!seconds.is_empty(), "{} holds no step", metrics_log.display());
    Ok(seconds.iter().sum::<f64>() / seconds.len() as f64)
}
