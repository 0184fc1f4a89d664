//! A training step of 25 million weights with two workers, each in a network namespace of its own,
//! over a line of 1 Gb/s: how much of the communication backward hides.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use lockstep_launch::{
    Address, DEFAULT_GRACE_SECONDS, Elastic, Job, Launch, Ports, RecordStore, Task, Workload, metrics_log,
};
use serde_json::{Value, json};

use super::{
    Effort,
    line::{self, Line},
    load, median,
    record::{Book, Figure},
    torch,
};
use xtask::{cargo, folders};

const DDP: &str = include_str!("ddp.py");
const GIGABITS: f64 = 1.0;
const WEIGHTS: f64 = 24_925_082.0;
/// Bytes on an Ethernet line for each byte of a gradient. A packet's headers are 14 bytes of
/// Ethernet, 20 of IP and 32 of TCP with timestamps.
const FRAMING: f64 = 1514.0 / 1448.0;
/// No run takes longer, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// Steps at the beginning that do not count. A group makes a new plan after sixteen.
const WARM_UP: usize = 17;

/// Seconds that the line takes for all gradients.
const LINE_SECONDS: f64 = WEIGHTS * 4.0 * FRAMING * 8.0 / (GIGABITS * 1e9);
/// Samples a worker in a job that does little beside its sums.
const FEW_SAMPLES: u32 = 16;
/// Two numbers of samples whose step times are measured. They yield the number with which backward
/// takes as long as the line.
const TRIED_SAMPLES: [u32; 2] = [32, 128];
/// The ratio of a step's computation to its backward: backward does two of the three products for
/// each weight.
const STEP_BY_BACKWARD: f64 = 1.5;
/// The address of the coordinator of a worker that trains alone.
const LOOPBACK: &str = "127.0.0.1";

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// The computation alone: a job of one worker at each end at the same time. Workers that train
    /// together share the machine's memory and caches in the same way.
    Alone,
    /// One bucket, ready when backward ends, and one for the last layer.
    NoOverlap,
    /// Buckets of a fixed size.
    Fixed,
    /// Buckets merged by measurements.
    Merged,
    /// The same, with gradients in bf16 on the line.
    Bf16,
    Ddp,
    /// DDP's computation alone, at each end too.
    DdpAlone,
}

const SIDES: [Side; 7] =
    [Side::Alone, Side::NoOverlap, Side::Fixed, Side::Merged, Side::Bf16, Side::Ddp, Side::DdpAlone];

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let (rounds, steps) = match effort {
        Effort::Quick => (1, 8),
        Effort::Full => (5, 12),
    };
    let folder = folders::target().join("bench/overlap");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("ddp.py"), DDP)?;
    let programs = Programs {
        trainer: cargo::build()?.join("lockstep-trainer"),
        python: torch::python()?,
        line: Line::of(GIGABITS)?,
        folder,
    };
    let balanced = programs.samples_to_compute_for(LINE_SECONDS * STEP_BY_BACKWARD, steps)?;
    println!("balanced: {balanced} samples a worker, communication-bound: {FEW_SAMPLES}");
    // The last number is the wanted share of DDP's step time with gradients in bf16.
    for (case, samples, bf16_goal) in [("communication-bound", FEW_SAMPLES, 0.6), ("balanced", balanced, 0.95)] {
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
        // Each worker sends and receives every gradient once, beginning with the first one that is
        // ready. No step is shorter than that, or than its computation.
        let (alone, ddp_alone) = (middle(Side::Alone), middle(Side::DdpAlone));
        let bound = alone.max(median(&mut first_ready) + LINE_SECONDS);
        let (merged, bf16, ddp) = (middle(Side::Merged), middle(Side::Bf16), middle(Side::Ddp));
        let ddp_name = format!("{} DDP over gloo", torch::NAME);
        // Without each side's own computation, it does not matter which side computes faster.
        let exposed = |step: f64, alone: f64| (step - alone).max(0.0);
        let figures = [
            ("", merged, "the bound", bound, 1.0 / 1.05),
            ("", merged, "one bucket", middle(Side::NoOverlap), 1.0),
            ("", merged, "buckets of 25 MiB", middle(Side::Fixed), 1.0),
            ("", merged, &ddp_name, ddp, 1.0 / 0.95),
            (", beside its computation", exposed(merged, alone), &ddp_name, exposed(ddp, ddp_alone), 1.0),
            (", its computation alone", alone, torch::NAME, ddp_alone, 1.0),
            (", bf16 on the wire", bf16, "f32 on the wire", merged, 1.0),
            (", bf16 on the wire", bf16, &ddp_name, ddp, 1.0 / bf16_goal),
        ];
        for (wire, ours, name, theirs, goal) in figures {
            book.write(&Figure {
                case: &format!("{GIGABITS} Gb/s, {case}{wire}"),
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
    /// Returns the median seconds of a step.
    fn step(&self, side: Side, samples: u32, steps: usize) -> anyhow::Result<f64> {
        match side {
            Side::Alone => self.alone(samples, steps),
            Side::NoOverlap => self.together(samples, steps, json!({"bucketBytes": "1Gi", "algorithm": "ring"})),
            Side::Fixed => self.together(samples, steps, json!({"bucketBytes": "25Mi", "algorithm": "ring"})),
            Side::Merged => self.together(samples, steps, json!({})),
            Side::Bf16 => self.together(samples, steps, json!({"wire": "bf16"})),
            Side::Ddp => self.torch(line::ENDS.len(), samples, steps),
            Side::DdpAlone => self.torch(1, samples, steps),
        }
    }

    /// Returns how many samples a worker computes in so many seconds if one step takes them all.
    fn samples_to_compute_for(&self, seconds: f64, steps: usize) -> anyhow::Result<u32> {
        let [fewer, more] = TRIED_SAMPLES;
        let (found, _) = load::rounds(1, || Ok([self.alone(fewer, steps)?, self.alone(more, steps)?]))?;
        let &[short, long] = found.first().context("a round")?;
        ensure!(short < long, "{fewer} samples take {short} s, {more} take {long} s");
        let found = f64::from(fewer) + (seconds - short) * f64::from(more - fewer) / (long - short);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
        Ok(found.round().clamp(f64::from(FEW_SAMPLES), 4096.0) as u32)
    }

    /// Runs two workers, one at each end.
    fn together(&self, samples: u32, steps: usize, communication: Value) -> anyhow::Result<f64> {
        let output = self.folder.join("run");
        let processes = self.start(&output, line::COORDINATOR, &[0, 1], samples, steps, communication)?;
        Processes(processes).end_well().with_context(|| format!("see {}", output.display()))?;
        step_seconds(&output)
    }

    /// Runs two jobs of one worker each, at both ends at the same time.
    fn alone(&self, samples: u32, steps: usize) -> anyhow::Result<f64> {
        let outputs = [0, 1].map(|end| self.folder.join(format!("alone-{end}")));
        let mut all = Processes(Vec::new());
        for (end, output) in outputs.iter().enumerate() {
            all.0.extend(self.start(output, LOOPBACK, &[end], samples, steps, json!({}))?);
        }
        all.end_well().with_context(|| format!("see {}/alone-*", self.folder.display()))?;
        let [first, second] = outputs.map(|output| step_seconds(&output));
        Ok(first?.midpoint(second?))
    }

    /// Starts a job with a worker at each of `ends`. Its coordinator is at the first of them.
    fn start(
        &self,
        output: &Path,
        coordinator: &str,
        ends: &[usize],
        samples: u32,
        steps: usize,
        communication: Value,
    ) -> anyhow::Result<Vec<Child>> {
        let _ = fs::remove_dir_all(output);
        fs::create_dir_all(output)?;
        let workers = ends.len() as u32;
        let global_batch = samples * workers;
        let workload: Workload = serde_json::from_value(json!({
            "model": {"name": "mlp25m"},
            // A tenth of the samples is held out.
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
                coordinator: Address { host: coordinator.into(), port: Ports::POD.control },
                address: address.parse()?,
                ports: Ports::POD,
                inherits_listener: false,
                output: output.to_owned(),
                objects: None,
                store: RecordStore::File(output.join("record.json")),
                credentials: None,
                grace_seconds: DEFAULT_GRACE_SECONDS,
                ending: output.join("ending"),
                task: Task::Train(Box::new(workload.clone())),
            };
            let mut command = self.line.command(end, &self.trainer);
            command.arg(role).envs(launch.variables().into_iter().map(|(variable, value)| (variable.name(), value)));
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn().context("starting the trainer")
        };
        let mut all = vec![start("coordinator", String::new(), ends[0], coordinator)?];
        for (rank, end) in ends.iter().enumerate() {
            all.push(start("worker", format!("overlap-worker-{rank}"), *end, line::ENDS[*end])?);
        }
        Ok(all)
    }

    /// Returns the seconds after which the first gradient of a step was ready in the newest run.
    fn first_ready(&self) -> anyhow::Result<f64> {
        let log = fs::read_to_string(self.folder.join("run/workeroverlap-worker-0.log"))?;
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let planned = lines.find_map(|line| line["fields"]["first_ready_ms"].as_f64());
        Ok(planned.context("rank 0 logs the basis of its plan")? * 1e-3)
    }

    /// Runs a PyTorch process at each end: one group of two, or two groups of one.
    fn torch(&self, world: usize, samples: u32, steps: usize) -> anyhow::Result<f64> {
        let printed = self.folder.join("ddp.json");
        let output = fs::File::create(&printed)?;
        let errors = fs::File::create(self.folder.join("ddp.log"))?;
        let mut processes = Processes(Vec::new());
        for end in 0..line::ENDS.len() {
            let mut command = self.line.command(end, &self.python);
            command.arg(self.folder.join("ddp.py")).args([samples.to_string(), steps.to_string()]);
            command.env("RANK", (end % world).to_string()).env("WORLD_SIZE", world.to_string());
            command.env("MASTER_ADDR", line::ENDS[0]).env("MASTER_PORT", "7072");
            command.env("GLOO_SOCKET_IFNAME", line::INTERFACE).env("OMP_NUM_THREADS", "1");
            processes.0.push(command.stdout(output.try_clone()?).stderr(errors.try_clone()?).spawn()?);
        }
        processes.end_well().with_context(|| format!("see {}/ddp.log", self.folder.display()))?;
        let printed = fs::read_to_string(printed)?;
        let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let seconds: Vec<f64> = lines.filter_map(|line| line["seconds"].as_f64()).collect();
        ensure!(seconds.len() == line::ENDS.len() / world, "PyTorch did not report the seconds of a step: {printed}");
        Ok(seconds.iter().sum::<f64>() / seconds.len() as f64)
    }
}

/// Returns the median seconds of a step in a job's metrics log.
fn step_seconds(output: &Path) -> anyhow::Result<f64> {
    let log = metrics_log::read(output)?;
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut seconds: Vec<f64> = lines.filter_map(|line| line["step_seconds"].as_f64()).skip(WARM_UP).collect();
    ensure!(!seconds.is_empty(), "{} holds no step", output.display());
    Ok(median(&mut seconds))
}

/// Processes that are killed when they are dropped.
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
            ensure!(Instant::now() < deadline, "the processes take longer than {PATIENCE:?}");
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
