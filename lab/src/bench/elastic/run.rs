//! A `lockstep run` of the elastic example, and the records in its folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, bail, ensure};
use lockstep_launch::{lines, metrics_log};
use lockstep_tests::metrics::{of_worker, value};
use serde_json::Value;

use super::{super::load, LOOK, PATIENCE, QUIET_STEPS};
use xtask::{cargo, folders};

/// A group with living workers that does no step for this long is wedged.
const WEDGED: Duration = Duration::from_secs(60);

/// A `lockstep run` of the elastic example.
pub(super) struct Run {
    child: std::cell::RefCell<Child>,
    folder: PathBuf,
    workers: usize,
    begun: Instant,
}

/// The outcome of a run.
pub(super) struct Finished {
    pub(super) seconds: f64,
    pub(super) steps: usize,
    pub(super) unseen: usize,
    pub(super) generations: usize,
    pub(super) rollbacks: usize,
    pub(super) extinct: usize,
    pub(super) redone: u64,
    pub(super) model: Vec<u8>,
}

/// The cost of a quiet group, as shares of the time that a worker trains.
pub(super) struct Overhead {
    /// The share of a processor that the membership thread takes.
    pub(super) membership: f64,
    /// The share of a processor that the coordinator takes, divided by the number of workers.
    pub(super) coordinator: f64,
    /// The share of time that goes into waiting until every member is known to have done a step.
    pub(super) stable: f64,
}

/// The time at which a membership was recorded, and the step that it continues from.
pub(super) struct Change {
    pub(super) time: f64,
    base: u64,
}

/// A step, the time at which it was done, and its duration.
struct Step {
    step: u64,
    time: f64,
    seconds: f64,
}

impl Run {
    /// Starts a run with the settings `communication` under `spec.communication`.
    pub(super) fn start(name: &str, workers: usize, epochs: u32, communication: &[&str]) -> anyhow::Result<Self> {
        let binaries = cargo::build()?;
        let folder = folders::target().join("bench").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let child = Command::new(binaries.join("lockstep"))
            .args(["run", "deploy/examples/elastic.yaml", "--workers", &workers.to_string()])
            .args(["--set", &format!("spec.elastic={{minReplicas: 1, maxReplicas: {workers}}}")])
            // Each kill counts as a failure.
            .args(["--set", "spec.failurePolicy.backoffLimit=1000"])
            .args(communication.iter().flat_map(|set| ["--set".to_owned(), format!("spec.communication.{set}")]))
            .args(["--set", &format!("spec.training.epochs={epochs}"), "--output"])
            .arg(&folder)
            .current_dir(folders::root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child: child.into(), folder, workers, begun: Instant::now() })
    }

    pub(super) fn is_over(&self) -> bool {
        !matches!(self.child.borrow_mut().try_wait(), Ok(None))
    }

    /// Returns the seconds since the start and the newest reported step.
    pub(super) fn progress(&self) -> (f64, u64) {
        (self.begun.elapsed().as_secs_f64(), self.reported_step())
    }

    /// Fails unless every generation summed over sockets.
    pub(super) fn require_sockets(&self) -> anyhow::Result<()> {
        let plans = self.lines("plans.jsonl");
        let is_in_memory = |line: &Value| line["plan"].as_str().is_none_or(|plan| plan.contains("\"overMemory\":true"));
        ensure!(!plans.is_empty() && !plans.iter().any(is_in_memory), "some ranks did not sum over sockets: {plans:?}");
        Ok(())
    }

    /// Returns the newest reported step.
    pub(super) fn reported_step(&self) -> u64 {
        self.steps().last().map_or(0, |step| step.step)
    }

    pub(super) fn finish(self) -> anyhow::Result<Finished> {
        while !self.is_over() {
            self.check_wedge()?;
            thread::sleep(LOOK);
        }
        let status = self.child.borrow_mut().wait()?;
        ensure!(status.success(), "the run in {} ended with {status}", self.folder.display());
        let steps = self.lines("metrics.jsonl");
        let steps: Vec<&Value> = steps.iter().filter(|line| line["evaluation"].is_null()).collect();
        for (index, line) in steps.iter().enumerate() {
            ensure!(line["step"] == index + 1, "step {} is missing or repeated", index + 1);
        }
        let history = self.lines("history.jsonl");
        Ok(Finished {
            seconds: self.begun.elapsed().as_secs_f64(),
            steps: steps.len(),
            unseen: steps.iter().filter(|line| line["loss"].is_null()).count(),
            generations: history.len(),
            rollbacks: self.changes(|change| is_rollback(change) && !all_are_new(change)),
            extinct: self.changes(|change| is_rollback(change) && all_are_new(change)),
            redone: history.iter().filter_map(|change| change["redone"].as_u64()).sum(),
            model: fs::read(self.folder.join("model.safetensors"))?,
        })
    }

    /// Waits until all workers have done some steps together.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        let mut since = None;
        self.wait_for("all workers in one group", |run| {
            let whole = run.lines("history.jsonl").last().is_some_and(|change| change["workers"] == run.workers);
            let step = run.reported_step();
            match (whole, since) {
                (false, _) => since = None,
                (true, None) => since = Some(step),
                (true, Some(from)) => return (step >= from + QUIET_STEPS).then_some(()),
            }
            None
        })
    }

    /// Returns the seconds from `moment` to the first step of the next generation, without that
    /// step's own duration, and the step that the generation continues from.
    pub(super) fn resumed_after(&self, moment: f64) -> anyhow::Result<(f64, u64)> {
        let Change { time, base } = self.change_after(moment)?;
        let first = self.wait_for("the next step", |run| run.steps().into_iter().find(|step| step.time > time))?;
        Ok(((first.time - first.seconds - moment).max(0.0), base))
    }

    /// Returns the time between the steps around a change that neither of them took.
    pub(super) fn stall_at(&self, change: &Change) -> anyhow::Result<f64> {
        self.wait_for("two more steps", |run| {
            let steps = run.steps();
            let after = steps.iter().position(|step| step.time > change.time)?;
            let before = steps.get(after.checked_sub(1)?)?;
            let first = steps.get(after)?;
            Some((first.time - first.seconds - before.time).max(0.0))
        })
    }

    /// Returns the first membership after `moment`.
    pub(super) fn change_after(&self, moment: f64) -> anyhow::Result<Change> {
        let change = |line: &Value| Some(Change { time: seconds(&line["time"])?, base: line["step"].as_u64()? });
        self.wait_for("a change", |run| {
            run.lines("history.jsonl").iter().filter_map(change).find(|change| change.time > moment)
        })
    }

    /// Returns the cost for each worker of a group that is left alone.
    pub(super) fn overhead(&self, observed: Duration) -> anyhow::Result<Overhead> {
        let workers = (0..self.workers).map(|index| self.worker(index)).collect::<anyhow::Result<Vec<_>>>()?;
        let coordinator = self.coordinator()?;
        let spent = || -> anyhow::Result<[f64; 3]> {
            let text = of_worker(&self.folder, 0).context("a worker's metrics")?;
            Ok([
                workers.iter().map(|pid| processor_seconds(*pid, |thread| thread == "membership")).sum(),
                processor_seconds(coordinator, |_| true),
                value(&text, "lockstep_stable_wait_seconds_total").context("the wait for STABLE")?,
            ])
        };
        let (begun, before) = (Instant::now(), spent()?);
        thread::sleep(observed);
        let (after, passed) = (spent()?, begun.elapsed().as_secs_f64());
        let share = |index: usize| (after[index] - before[index]) / passed;
        ensure!(share(0) > 0.0 && share(1) > 0.0, "this system does not report the processor time of threads");
        let all = self.workers as f64;
        Ok(Overhead { membership: share(0) / all, coordinator: share(1) / all, stable: share(2) })
    }

    pub(super) fn check_wedge(&self) -> anyhow::Result<()> {
        let last = self.steps().last().map(|step| step.time);
        match last {
            Some(time) if !self.is_over() && now() - time > WEDGED.as_secs_f64() => {
                bail!("no step for {WEDGED:?}: wedged, see {}", self.folder.display())
            }
            _ => Ok(()),
        }
    }

    fn changes(&self, which: impl Fn(&Value) -> bool) -> usize {
        self.lines("history.jsonl").iter().filter(|change| which(change)).count()
    }

    fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            ensure!(!self.is_over(), "the run in {} ended", self.folder.display());
            ensure!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}, see {}", self.folder.display());
            thread::sleep(LOOK);
        }
    }

    /// Returns the newest steps, without those reported by a member that did not see them done.
    fn steps(&self) -> Vec<Step> {
        let step = |line: &Value| {
            line["loss"].as_f64()?;
            let seconds_taken = line["step_seconds"].as_f64()?;
            Some(Step { step: line["step"].as_u64()?, time: seconds(&line["time"])?, seconds: seconds_taken })
        };
        // The newest lines suffice, and a log grows long.
        metrics_log::read_last(&self.folder).unwrap_or_default().iter().filter_map(step).collect()
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns the ids of the job's processes.
    pub(super) fn processes(&self) -> anyhow::Result<Vec<u32>> {
        let parent = self.child.borrow().id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().context("a process id")).collect()
    }

    pub(super) fn worker(&self, index: usize) -> anyhow::Result<u32> {
        let name = format!("LOCKSTEP_MEMBER=elastic-worker-{index}");
        let is_it = |pid: &u32| entries(*pid, "environ").contains(&name);
        self.processes()?.into_iter().find(is_it).with_context(|| format!("worker {index} is not running"))
    }

    fn coordinator(&self) -> anyhow::Result<u32> {
        let is_it = |pid: &u32| entries(*pid, "cmdline").get(1).is_some_and(|role| role == "coordinator");
        self.processes()?.into_iter().find(is_it).context("the coordinator is not running")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The run may have ended by itself.
        let mut child = self.child.borrow_mut();
        if matches!(child.try_wait(), Ok(None)) {
            load::leave_behind(child.id());
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn is_rollback(change: &Value) -> bool {
    change["rollback"] == true
}

/// Returns true if no worker of the generation before is left.
fn all_are_new(change: &Value) -> bool {
    change["joined"].as_array().map(Vec::len) == change["workers"].as_u64().map(|workers| workers as usize)
}

/// Returns the last lines of a file; none if the file does not exist.
pub(super) fn tail(path: &Path) -> Vec<Value> {
    lines::read_last(path).unwrap_or_default()
}

pub(super) fn signal(pid: u32, name: &str) -> anyhow::Result<()> {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "process {pid} is gone");
    Ok(())
}

/// Returns the arguments (`cmdline`) or the variables (`environ`) that a process was started with.
fn entries(pid: u32, what: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(|entry| String::from_utf8_lossy(entry).into_owned()).collect()
}

/// Returns the processor seconds of a process's threads whose name satisfies `counts`.
fn processor_seconds(pid: u32, counts: impl Fn(&str) -> bool) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let seconds = |task: fs::DirEntry| {
        let is_it = counts(fs::read_to_string(task.path().join("comm")).ok()?.trim_end());
        // The file holds the nanoseconds on a processor, then those spent waiting for one.
        let statistics = fs::read_to_string(task.path().join("schedstat")).ok().filter(|_| is_it)?;
        Some(statistics.split_whitespace().next()?.parse::<f64>().ok()? * 1e-9)
    };
    tasks.filter_map(seconds).sum()
}

pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns the seconds since 1970 of an RFC 3339 time.
fn seconds(time: &Value) -> Option<f64> {
    let time: jiff::Timestamp = time.as_str()?.parse().ok()?;
    Some(time.as_nanosecond() as f64 * 1e-9)
}
