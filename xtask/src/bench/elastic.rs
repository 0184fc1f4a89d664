//! What it costs that workers come and go: `lockstep run` as users run it, whose processes are killed, stopped and asked to leave.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::{
    Effort, Options, median,
    record::{Better, Book, Figure},
};
use crate::cargo;

/// Workers of the group whose recovery is timed.
const WORKERS: usize = 8;
/// Workers of the group that is kept in churn.
const CHURNED: usize = 4;
/// A group that does no step for so long, although workers live, is wedged.
const WEDGED: Duration = Duration::from_secs(60);
/// Far more than any change takes.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);
/// How much longer a job is than its kills are expected to take.
const MARGIN: f64 = 1.5;
/// Steps between two disturbances.
const QUIET_STEPS: u64 = 20;

/// Times how soon a group of 8 goes on after a kill, notices a frozen worker, and lets one go.
pub(crate) fn recovery(book: &mut Book, effort: Effort, _options: Options) -> anyhow::Result<()> {
    let (kills, freezes, leaves) = match effort {
        Effort::Quick => (10, 3, 3),
        Effort::Full => (100, 20, 20),
    };
    let run = Run::start("recovery", WORKERS, 100_000)?;
    let mut dice = Dice(1);
    let mut resumed = Vec::new();
    for _ in 0..kills {
        run.settle()?;
        let victim = run.worker(dice.below(WORKERS))?;
        let killed = now();
        signal(victim, "KILL")?;
        resumed.push(run.resumed_after(killed)?);
    }
    let mut noticed = Vec::new();
    for _ in 0..freezes {
        run.settle()?;
        let victim = run.worker(dice.below(WORKERS))?;
        let stopped = now();
        signal(victim, "STOP")?;
        noticed.push(run.resumed_after(stopped)?);
        signal(victim, "CONT")?;
    }
    let mut stalls = Vec::new();
    for _ in 0..leaves {
        run.settle()?;
        let asked = now();
        signal(run.worker(dice.below(WORKERS))?, "TERM")?;
        stalls.push(run.stall_after(asked)?);
    }
    let mut write = |case: &str, ours: f64, goal: f64| {
        book.write(&Figure { case, unit: "s", ours, peer: None, goal, better: Better::Less, disturbed: false })
    };
    write(
        "kill -9 of one of 8 workers to the next step, that step's own time left out, p50",
        median(&mut resumed),
        0.5,
    )?;
    write("the same, the slowest", slowest(&resumed), 2.0)?;
    write("SIGSTOP of one of 8 workers to the next step, the slowest", slowest(&noticed), 3.0)?;
    write("planned leave of one of 8 workers: training stands still, median", median(&mut stalls), 0.1)
}

/// Kills processes of a group, the coordinator included, at random moments until it is done.
pub(crate) fn churn(book: &mut Book, effort: Effort, options: Options) -> anyhow::Result<()> {
    let kills = options.kills.unwrap_or(match effort {
        Effort::Quick => 100,
        Effort::Full => 2000,
    });
    let mean = options.mean_seconds.unwrap_or(1.0);
    let probe = Run::start("churn-probe", CHURNED, 2)?;
    let seconds = probe.finish()?.seconds / 2.0;
    let epochs = (MARGIN * f64::from(kills) * mean / seconds).ceil().max(2.0) as u32;
    let undisturbed = Run::start("churn-undisturbed", CHURNED, epochs)?.finish()?;

    let run = Run::start("churn", CHURNED, epochs)?;
    let mut dice = Dice(2);
    let mut killed = 0;
    while killed < kills && !run.is_over() {
        thread::sleep(Duration::from_secs_f64(-mean * (1.0 - dice.share()).ln()));
        let processes = run.processes()?;
        if !processes.is_empty() && signal(processes[dice.below(processes.len())], "KILL").is_ok() {
            killed += 1;
        }
        run.check_wedge()?;
    }
    let churned = run.finish()?;
    ensure!(killed == kills, "the job was over after {killed} of {kills} kills: the machine is faster than it was");
    ensure!(churned.steps == undisturbed.steps, "{} steps, {} undisturbed", churned.steps, undisturbed.steps);
    ensure!(churned.model == undisturbed.model, "the weights differ from those of an undisturbed run");
    println!(
        "{killed} kills, {} generations, {} rollbacks; {} of {} steps without a loss line",
        churned.generations, churned.rollbacks, churned.unseen, churned.steps
    );
    book.write(&Figure {
        case: "changes after which steps had to be done again from a checkpoint",
        unit: "changes",
        ours: churned.rollbacks as f64,
        peer: None,
        goal: 0.0,
        better: Better::Less,
        disturbed: false,
    })?;
    book.write(&Figure {
        case: "seconds of the whole job under kills, against the same job undisturbed",
        unit: "s",
        ours: churned.seconds,
        peer: Some(("undisturbed", undisturbed.seconds)),
        goal: 0.5,
        better: Better::Less,
        disturbed: false,
    })
}

/// A `lockstep run` of the elastic example.
struct Run {
    child: std::cell::RefCell<Child>,
    folder: PathBuf,
    workers: usize,
    begun: Instant,
}

/// What a run came to.
struct Finished {
    seconds: f64,
    steps: usize,
    unseen: usize,
    generations: usize,
    rollbacks: usize,
    model: Vec<u8>,
}

/// A step, when all ranks had done it and how long it took.
struct Step {
    step: u64,
    time: f64,
    seconds: f64,
}

impl Run {
    fn start(name: &str, workers: usize, epochs: u32) -> anyhow::Result<Self> {
        let binaries = cargo::build()?;
        let folder = cargo::target().join("bench").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let child = Command::new(binaries.join("lockstep"))
            .args(["run", "deploy/examples/elastic.yaml", "--workers", &workers.to_string()])
            .args(["--set", &format!("spec.elastic={{minReplicas: 1, maxReplicas: {workers}}}")])
            .args(["--set", &format!("spec.training.epochs={epochs}"), "--output"])
            .arg(&folder)
            .current_dir(cargo::root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child: child.into(), folder, workers, begun: Instant::now() })
    }

    fn is_over(&self) -> bool {
        !matches!(self.child.borrow_mut().try_wait(), Ok(None))
    }

    fn finish(self) -> anyhow::Result<Finished> {
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
            rollbacks: history.iter().filter(|change| change["rollback"] == true).count(),
            model: fs::read(self.folder.join("model.safetensors"))?,
        })
    }

    /// Waits until all workers have done some steps together.
    fn settle(&self) -> anyhow::Result<()> {
        let mut since = None;
        self.wait_for("all workers in one group", |run| {
            let whole = run.lines("history.jsonl").last().is_some_and(|change| change["workers"] == run.workers);
            let step = run.steps().last().map_or(0, |step| step.step);
            match (whole, since) {
                (false, _) => since = None,
                (true, None) => since = Some(step),
                (true, Some(from)) => return (step >= from + QUIET_STEPS).then_some(()),
            }
            None
        })
    }

    /// Seconds from `moment` to the first step of the next group, without that step's own.
    fn resumed_after(&self, moment: f64) -> anyhow::Result<f64> {
        let change = self.change_after(moment)?;
        let first = self.wait_for("the next step", |run| run.steps().into_iter().find(|step| step.time > change))?;
        Ok((first.time - first.seconds - moment).max(0.0))
    }

    /// The longest time between two steps after `moment` that neither of them took.
    fn stall_after(&self, moment: f64) -> anyhow::Result<f64> {
        let change = self.change_after(moment)?;
        self.wait_for("two more steps", |run| {
            let steps = run.steps();
            let after = steps.iter().position(|step| step.time > change)?;
            let before = steps.get(after.checked_sub(1)?)?;
            let first = steps.get(after)?;
            Some((first.time - first.seconds - before.time).max(0.0))
        })
    }

    /// When the membership that followed `moment` was recorded.
    fn change_after(&self, moment: f64) -> anyhow::Result<f64> {
        self.wait_for("a change", |run| {
            run.lines("history.jsonl").iter().filter_map(|change| seconds(&change["time"])).find(|time| *time > moment)
        })
    }

    fn check_wedge(&self) -> anyhow::Result<()> {
        let last = self.steps().last().map(|step| step.time);
        match last {
            Some(time) if !self.is_over() && now() - time > WEDGED.as_secs_f64() => {
                bail!("no step for {WEDGED:?}: wedged, see {}", self.folder.display())
            }
            _ => Ok(()),
        }
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

    fn steps(&self) -> Vec<Step> {
        let step = |line: &Value| {
            let seconds_taken = line["step_seconds"].as_f64()?;
            Some(Step { step: line["step"].as_u64()?, time: seconds(&line["time"])?, seconds: seconds_taken })
        };
        // The last lines are all that is asked for, and a journal grows long.
        tail(&self.folder.join("metrics.jsonl")).iter().filter_map(step).collect()
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The job's processes.
    fn processes(&self) -> anyhow::Result<Vec<u32>> {
        let parent = self.child.borrow().id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().context("a process id")).collect()
    }

    fn worker(&self, index: usize) -> anyhow::Result<u32> {
        let name = format!("LOCKSTEP_MEMBER=elastic-worker-{index}");
        let is_it = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == name.as_bytes())
        };
        self.processes()?.into_iter().find(is_it).with_context(|| format!("worker {index} does not run"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // It may have ended, which is what is wanted.
        let mut child = self.child.borrow_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The last lines of a file that may be long.
fn tail(path: &Path) -> Vec<Value> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    const BYTES: u64 = 64 << 10;
    let read = || -> std::io::Result<String> {
        let mut file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn signal(pid: u32, name: &str) -> anyhow::Result<()> {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "process {pid} is gone");
    Ok(())
}

fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Seconds since 1970 of an RFC 3339 time.
fn seconds(time: &Value) -> Option<f64> {
    let time: jiff::Timestamp = time.as_str()?.parse().ok()?;
    Some(time.as_nanosecond() as f64 * 1e-9)
}

fn slowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// SplitMix64 (Steele et al., 2014).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// From 0 to 1, 1 not included.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
