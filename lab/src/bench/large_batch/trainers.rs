//! Processes that train one configuration after the other, one on each core.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
};

use anyhow::Context as _;
use serde_json::{Value, json};
use xtask::{cargo, folders};

const MNIST: &str = "LOCKSTEP_MNIST";
const MNIST_BESIDE: &str = "../shared/data/mnist";

/// One training.
pub(super) struct Run {
    pub(super) method: &'static str,
    pub(super) batch: u64,
    pub(super) peak: f64,
    pub(super) seed: u64,
    /// True to train on all but the held-out samples, and be judged by these.
    pub(super) sweep: bool,
}

/// The result of a training.
pub(super) struct Outcome {
    /// From 0 to 1.
    pub(super) accuracy: f64,
    pub(super) dead: bool,
}

pub(super) struct Trainers {
    processes: Vec<Trainer>,
    source: String,
}

struct Trainer {
    child: Child,
    orders: ChildStdin,
    outcomes: BufReader<ChildStdout>,
}

impl Trainers {
    /// Starts a process for each core.
    pub(super) fn start() -> anyhow::Result<Self> {
        let program = cargo::build()?.join("examples/large_batch");
        let beside = folders::root().join(MNIST_BESIDE);
        let folder = std::env::var_os(MNIST).map(PathBuf::from).or_else(|| beside.is_dir().then_some(beside));
        let (argument, source) = match folder {
            Some(folder) => (folder.into_os_string(), "MNIST"),
            None => {
                println!("no MNIST at hand ({MNIST} names its folder): glyphs are drawn, and the goals are not theirs");
                ("glyphs".into(), "glyphs")
            }
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let start = |_| {
            let mut command = Command::new(&program);
            command.arg(&argument).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
            let orders = child.stdin.take().context("it was piped")?;
            let outcomes = BufReader::new(child.stdout.take().context("it was piped")?);
            Ok(Trainer { child, orders, outcomes })
        };
        Ok(Self { processes: (0..cores).map(start).collect::<anyhow::Result<_>>()?, source: source.to_owned() })
    }

    /// The name of the data set.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Does these runs, and returns their outcomes in the same order.
    pub(super) fn train(&mut self, runs: &[Run]) -> anyhow::Result<Vec<Outcome>> {
        let workers = self.processes.len();
        let mut outcomes: Vec<Option<Outcome>> = runs.iter().map(|_| None).collect();
        thread::scope(|scope| {
            let started: Vec<_> = self
                .processes
                .iter_mut()
                .enumerate()
                .map(|(first, process)| {
                    let mine = runs.iter().enumerate().skip(first).step_by(workers);
                    scope.spawn(move || mine.map(|(index, run)| Ok((index, process.train(run)?))).collect())
                })
                .collect();
            for thread in started {
                let done: anyhow::Result<Vec<_>> =
                    thread.join().map_err(|_| anyhow::anyhow!("a trainer's thread panicked"))?;
                done?.into_iter().for_each(|(index, outcome)| outcomes[index] = Some(outcome));
            }
            anyhow::Ok(())
        })?;
        outcomes.into_iter().collect::<Option<_>>().context("a run without an outcome")
    }
}

impl Trainer {
    fn train(&mut self, run: &Run) -> anyhow::Result<Outcome> {
        let Run { method, batch, peak, seed, sweep } = run;
        let order = json!({"method": method, "batch": batch, "peak": peak, "seed": seed, "sweep": sweep});
        writeln!(self.orders, "{order}")?;
        let mut line = String::new();
        self.outcomes.read_line(&mut line)?;
        let outcome: Value = serde_json::from_str(&line).with_context(|| format!("{order}: the trainer ended"))?;
        let accuracy = outcome["accuracy"].as_f64().context("an accuracy")?;
        Ok(Outcome { accuracy, dead: outcome["dead"] == true })
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
