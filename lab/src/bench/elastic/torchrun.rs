//! The peer: PyTorch's `torchrun`. If a worker is lost, its agent restarts all workers from the
//! newest checkpoint.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{
    CHECKPOINT_EVERY, LOOK, QUIET_STEPS,
    run::{signal, tail},
};
use xtask::folders;

const SCRIPT: &str = include_str!("torchrun.py");
/// Eight starts of Python on two cores take half a minute.
const PATIENCE: Duration = Duration::from_secs(240);
/// More restarts than the benchmark causes.
const MAX_RESTARTS: &str = "1000";

/// A training of LeNet-5 under `torchrun`. It ends when it is dropped.
pub(super) struct Torchrun {
    agent: Child,
    folder: PathBuf,
}

/// A step that rank 0 reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) step: u64,
    pub(super) time: f64,
    pub(super) seconds: f64,
    /// The number of restarts of all workers before this step.
    pub(super) restart: u64,
}

impl Torchrun {
    pub(super) fn start(python: &Path, workers: usize) -> anyhow::Result<Self> {
        let folder = folders::target().join("bench/torchrun");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let script = folder.join("train.py");
        fs::write(&script, SCRIPT)?;
        let log = File::create(folder.join("log"))?;
        let agent = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(python)
            .args(["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", &workers.to_string()])
            .args(["--max-restarts", MAX_RESTARTS, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"])
            .arg(script)
            .arg(&folder)
            .arg(CHECKPOINT_EVERY.as_secs().to_string())
            .env("OMP_NUM_THREADS", "1")
            .env("GLOO_SOCKET_IFNAME", "lo")
            // By default one store serves all starts. New ranks of gloo then find the addresses of
            // the old ones and fail.
            .env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting torchrun")?;
        Ok(Self { agent, folder })
    }

    /// Waits until there is a checkpoint and the workers have done some steps together since their
    /// start; returns the last step.
    pub(super) fn settle(&self) -> anyhow::Result<Step> {
        let mut first: Option<Step> = None;
        self.wait_for("all workers at work", |run| {
            let last = run.last()?;
            let from = *first.get_or_insert(last);
            if from.restart != last.restart {
                first = Some(last);
                return None;
            }
            let saved = run.folder.join("checkpoint.pt").exists();
            (saved && last.step >= from.step + QUIET_STEPS).then_some(last)
        })
    }

    /// Returns the seconds from `moment` to the first step after the next restart, without that
    /// step's own duration, and the number of steps that are done again.
    pub(super) fn resumed_after(&self, moment: f64) -> anyhow::Result<(f64, u64)> {
        let steps = self.steps();
        let before = *steps.iter().rfind(|step| step.time <= moment).context("a step before the kill")?;
        let next =
            self.wait_for("the next step", |run| run.steps().into_iter().find(|step| step.restart > before.restart))?;
        let reached =
            self.steps().into_iter().filter(|step| step.restart == before.restart).map(|step| step.step).max();
        let lost = (reached.unwrap_or(before.step) + 1).saturating_sub(next.step);
        Ok(((next.time - next.seconds - moment).max(0.0), lost))
    }

    /// Returns the process of a rank.
    pub(super) fn worker(&self, restart: u64, rank: usize) -> anyhow::Result<u32> {
        let path = self.folder.join(format!("pids-{restart}-{rank}"));
        let pid = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        pid.trim().parse().context("a process id")
    }

    fn last(&self) -> Option<Step> {
        self.steps().last().copied()
    }

    fn steps(&self) -> Vec<Step> {
        let step = |line: &Value| {
            Some(Step {
                step: line["step"].as_u64()?,
                time: line["time"].as_f64()?,
                seconds: line["seconds"].as_f64()?,
                restart: line["restart"].as_u64()?,
            })
        };
        tail(&self.folder.join("steps.jsonl")).iter().filter_map(step).collect()
    }

    fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            let log = self.folder.join("log");
            ensure!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}, see {}", log.display());
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Torchrun {
    fn drop(&mut self) {
        // The agent ends its workers; they do not outlive it.
        let _ = signal(self.agent.id(), "TERM");
        let _ = self.agent.wait();
    }
}
