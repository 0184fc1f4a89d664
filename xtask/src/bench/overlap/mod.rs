//! A training step of 25 million weights with two workers, each in a network namespace of its own, over a line of 1 Gb/s: how much of
//! the communication backward hides.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use lockstep_launch::{Address, DEFAULT_GRACE_SECONDS, Elastic, Job, Launch, Ports, Store, Task, Workload};
use serde_json::{Value, json};

use super::{
    Effort,
    line::{self, Line},
    load, median,
    record::{Book, Figure},
    torch,
};
use crate::cargo;

const DDP: &str = include_str!("ddp.py");
const GIGABITS: f64 = 1.0;
const WEIGHTS: f64 = 24_925_082.0;
/// Bytes on an Ethernet line for each of a gradient: a packet's headers are 14 bytes of Ethernet, 20 of IP and 32 of TCP with times.
const FRAMING: f64 = 1514.0 / 1448.0;
/// No run takes longer, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// Steps at the beginning that do not count: after sixteen a group plans anew.
const WARM_UP: usize = 17;

/// Seconds that the line takes for all gradients.
const LINE_SECONDS: f64 = WEIGHTS * 4.0 * FRAMING * 8.0 / (GIGABITS * 1e9);
/// Samples a worker with which there is little to compute beside the sums.
const FEW_SAMPLES: u32 = 16;
/// By which it is found with how many samples a step computes for as long as the line takes.
const TRIED_SAMPLES: [u32; 2] = [32, 128];

/// A way to train, in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// One worker: the computation by itself.
    Alone,
    /// One bucket, ready when backward ends, but for that of the last layer.
    NoOverlap,
    /// Buckets of a fixed size.
    Fixed,
    /// Buckets merged by what was measured.
    Merged,
    /// The same with gradients in bf16 on the line.
    Bf16,
    Ddp,
    /// What DDP computes, by itself.
    DdpAlone,
}

const SIDES: [Side; 7] =
    [Side::Alone, Side::NoOverlap, Side::Fixed, Side::Merged, Side::Bf16, Side::Ddp, Side::DdpAlone];

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let (rounds, steps) = match effort {
        Effort::Quick => (1, 8),
        Effort::Full => (5, 12),
    };
    let folder = cargo::target().join("bench/overlap");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("ddp.py"), DDP)?;
    let programs = Programs {
        trainer: cargo::build()?.join("lockstep-trainer"),
        python: torch::python()?,
        line: Line::of(GIGABITS)?,
        folder,
    };
    // With the part of DDP's step that gradients in bf16 are to take.
    let cases = [
        ("communication-bound", FEW_SAMPLES, 0.6),
        ("balanced", programs.samples_to_compute_for(LINE_SECONDS, steps)?, 0.95),
    ];
    for (case, samples, bf16_goal) in cases {
        let (found, disturbed) = load::rounds(rounds, || {
            let (mut round, mut first_ready) = (Vec::new(), 0.0);
            for side in SIDES {
                round.push((side, programs.step(side, samples, steps).with_context(|| format!("{side:?}"))?));
                if side == Side::Merged {
                    first_ready = programs.first_ready()?;
                }
            }
            Ok((round, first_ready))
        })?;
        let (found, mut first_ready): (Vec<_>, Vec<f64>) = found.into_iter().unzip();
        let mut seconds = BTreeMap::<Side, Vec<f64>>::new();
        for (side, measured) in found.into_iter().flatten() {
            seconds.entry(side).or_default().push(measured);
        }
        let mut middle = |side| median(seconds.entry(side).or_default());
        // Each worker sends and receives every gradient once, from the first that is ready on; no step is shorter than that, or than
        // its computation.
        let (alone, ddp_alone) = (middle(Side::Alone), middle(Side::DdpAlone));
        let bound = alone.max(median(&mut first_ready) + LINE_SECONDS);
        let (merged, bf16, ddp) = (middle(Side::Merged), middle(Side::Bf16), middle(Side::Ddp));
        let ddp_name = format!("{} DDP over gloo", torch::NAME);
        // Beyond what each side's computation takes, so that it does not matter whose is faster.
        let exposed = |step: f64, alone: f64| (step - alone).max(0.0);
        let figures = [
            ("", merged, "the bound", bound, 1.0 / 1.05),
            ("", merged, "one bucket", middle(Side::NoOverlap), 1.0),
            ("", merged, "buckets of 25 MiB", middle(Side::Fixed), 1.0),
            ("", merged, &ddp_name, ddp, 1.0 / 0.95),
            (", beyond its computation", exposed(merged, alone), &ddp_name, exposed(ddp, ddp_alone), 1.0),
            (", its computation by itself", alone, torch::NAME, ddp_alone, 1.0),
            (", bf16 on the wire", bf16, "f32 on the wire", merged, 1.0),
            (", bf16 on the wire", bf16, &ddp_name, ddp, 1.0 / bf16_goal),
        ];
        for (wire, ours, name, theirs, goal) in figures {
            book.write(&Figure {
                case: &format!("{GIGABITS} Gb/s, {case}, {samples} samples a worker{wire}"),
                unit: "s",
                ours,
                peer: Some((name, theirs)),
                goal,
                disturbed,
            })?;
        }
    }
    Ok(())
}

struct Programs {
    trainer: PathBuf,
    python: PathBuf,
    line: Line,
    folder: PathBuf,
}

impl Programs {
    /// The median seconds of a step.
    fn step(&self, side: Side, samples: u32, steps: usize) -> anyhow::Result<f64> {
        match side {
            Side::Alone => self.ours(1, samples, steps, json!({})),
            Side::NoOverlap => self.ours(2, samples, steps, json!({"bucketBytes": "1Gi", "algorithm": "ring"})),
            Side::Fixed => self.ours(2, samples, steps, json!({"bucketBytes": "25Mi", "algorithm": "ring"})),
            Side::Merged => self.ours(2, samples, steps, json!({})),
            Side::Bf16 => self.ours(2, samples, steps, json!({"wire": "bf16"})),
            Side::Ddp => self.ddp(line::ENDS.len(), samples, steps),
            Side::DdpAlone => self.ddp(1, samples, steps),
        }
    }

    /// How many samples a worker by itself computes in so many seconds, one step with all of them.
    fn samples_to_compute_for(&self, seconds: f64, steps: usize) -> anyhow::Result<u32> {
        let [fewer, more] = TRIED_SAMPLES;
        let [short, long] = [self.step(Side::Alone, fewer, steps)?, self.step(Side::Alone, more, steps)?];
        let found = f64::from(fewer) + (seconds - short) * f64::from(more - fewer) / (long - short);
        ensure!(found.is_finite(), "{fewer} samples take {short} s, {more} take {long} s");
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
        Ok(found.round().clamp(f64::from(FEW_SAMPLES), 4096.0) as u32)
    }

    fn ours(&self, workers: u32, samples: u32, steps: usize, communication: Value) -> anyhow::Result<f64> {
        let output = self.folder.join("run");
        let _ = fs::remove_dir_all(&output);
        fs::create_dir_all(&output)?;
        let global_batch = samples * workers;
        let workload: Workload = serde_json::from_value(json!({
            "model": {"name": "mlp25m"},
            // A tenth is held out.
            "dataset": {"format": "glyphs", "samples": (global_batch as usize * (WARM_UP + steps)) * 10 / 9 + 10},
            "training": {
                "epochs": 1, "globalBatchSize": global_batch, "microBatchSize": samples, "seed": 7,
                "schedule": {"baseLearningRate": 0.001},
            },
            "communication": communication,
            "checkpoint": {"uri": format!("file://{}", output.display()), "intervalSeconds": 86400},
        }))?;
        let start = |role: &str, member: String, end: usize, address: &str| {
            let log = fs::File::create(output.join(format!("{role}{member}.log")))?;
            let launch = Launch {
                job: Job { namespace: "local".into(), name: "overlap".into(), uid: "overlap".into() },
                attempt: 0,
                member,
                replicas: workers,
                elastic: Elastic::fixed(workers),
                coordinator: Address { host: line::COORDINATOR.into(), port: Ports::POD.control },
                address: address.parse()?,
                ports: Ports::POD,
                inherits_listener: false,
                output: output.clone(),
                objects: None,
                store: Store::File(output.join("record.json")),
                credentials: None,
                grace_seconds: DEFAULT_GRACE_SECONDS,
                ending: output.join("ending"),
                task: Task::Train(workload.clone()),
            };
            let mut command = self.line.command(end, &self.trainer);
            command.arg(role).envs(launch.variables().into_iter().map(|(variable, value)| (variable.name(), value)));
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn().context("start the trainer")
        };
        let mut all = Processes(vec![start("coordinator", String::new(), 0, line::COORDINATOR)?]);
        for (rank, address) in line::ENDS.iter().enumerate().take(workers as usize) {
            all.0.push(start("worker", format!("overlap-worker-{rank}"), rank, address)?);
        }
        all.end_well().with_context(|| format!("see {}", output.display()))?;
        let journal = fs::read_to_string(output.join("metrics.jsonl"))?;
        let lines = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut seconds: Vec<f64> = lines.filter_map(|line| line["step_seconds"].as_f64()).skip(WARM_UP).collect();
        if seconds.is_empty() {
            bail!("{} tells of no step", output.display());
        }
        Ok(median(&mut seconds))
    }

    /// After how many seconds of a step the first gradient was ready, as the newest run of our own planned by.
    fn first_ready(&self) -> anyhow::Result<f64> {
        let log = fs::read_to_string(self.folder.join("run/workeroverlap-worker-0.log"))?;
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let planned = lines.find_map(|line| line["fields"]["first_ready_ms"].as_f64());
        Ok(planned.context("rank 0 says what it planned by")? * 1e-3)
    }

    fn ddp(&self, world: usize, samples: u32, steps: usize) -> anyhow::Result<f64> {
        let told = self.folder.join("ddp.json");
        let output = fs::File::create(&told)?;
        let errors = fs::File::create(self.folder.join("ddp.log"))?;
        let mut ranks = Processes(Vec::new());
        for rank in 0..world {
            let mut command = self.line.command(rank, &self.python);
            command.arg(self.folder.join("ddp.py")).args([samples.to_string(), steps.to_string()]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
            command.env("MASTER_ADDR", line::ENDS[0]).env("MASTER_PORT", "7072");
            command.env("GLOO_SOCKET_IFNAME", line::INTERFACE).env("OMP_NUM_THREADS", "1");
            ranks.0.push(command.stdout(output.try_clone()?).stderr(errors.try_clone()?).spawn()?);
        }
        ranks.end_well().with_context(|| format!("see {}/ddp.log", self.folder.display()))?;
        let told = fs::read_to_string(told)?;
        let mut lines = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find_map(|line| line["seconds"].as_f64()).context("DDP says how long a step takes")
    }
}

/// Killed when dropped.
struct Processes(Vec<Child>);

impl Processes {
    /// Waits until all have ended, or one has failed.
    fn end_well(mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut running = false;
            for process in &mut self.0 {
                match process.try_wait()? {
                    Some(status) if !status.success() => bail!("a process ended with {status}"),
                    Some(_) => {}
                    None => running = true,
                }
            }
            if !running {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "it takes longer than {PATIENCE:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
