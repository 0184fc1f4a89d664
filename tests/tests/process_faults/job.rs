//! A job in a network of its own. Its processes start as the launch contract demands and are
//! restarted if they end too early. A group that does no step for a minute is wedged.

use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use lockstep_elastic::Digest;
use lockstep_launch::{
    Address, AgreedPlan, DEFAULT_GRACE_SECONDS, Elastic, Exit, GroupChange, Job as JobId, Launch, PLANS_FILE, Ports,
    RecordStore, StateComparison, Task, Workload, metrics_log, names,
};
use lockstep_tests::{cluster::ensure_packages, products, samples, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    disks::Disk,
    network::{DATA, Host, Network, WORKERS},
};

const NAME: &str = "fault";
const EPOCHS: u64 = 3;
/// Steps of the run: 9,000 samples in batches of 64, times the epochs.
const STEPS: u64 = EPOCHS * 141;
/// A step sends about 2 Mb, so the network decides its duration on any machine.
const MEGABITS: f64 = 100.0;
/// Mb/s that make a job last longer than the fault.
pub(crate) const SLOW: f64 = 25.0;
/// Mb/s that are no limit.
pub(crate) const FAST: f64 = 10_000.0;
/// A group with enough living workers that does no step for this long is wedged.
const WEDGED: Duration = Duration::from_secs(60);
/// Far more than any wait takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than a worker may be silent.
const SILENCE: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(20);

/// A job that runs. Its processes and its network end with it.
pub(crate) struct Job {
    // Dropped in this order: the processes end before their network and their folder are removed.
    processes: Vec<Process>,
    pub(crate) network: Network,
    setting: Setting,
    folder: tempfile::TempDir,
    workers: u32,
    newest: u64,
    since: Instant,
}

/// The special surroundings of a job.
#[derive(Default)]
pub(crate) struct Setting {
    /// A disk in its folder.
    pub(crate) disk: Option<Disk>,
    /// The folder of the record, if it is not the job's own.
    pub(crate) record: Option<PathBuf>,
    /// Variables beside those of the launch contract.
    pub(crate) environment: Vec<(&'static str, String)>,
}

struct Process {
    host: Host,
    child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The results of a job.
pub(crate) struct Ended {
    pub(crate) changes: Vec<GroupChange>,
    pub(crate) logs: String,
    metrics_log: String,
    model: Vec<u8>,
}

/// Returns true if this machine can make namespaces and cut network links. Installs the programs
/// for that. Prints a loud line if it cannot.
pub(crate) fn may_run(test: &str) -> bool {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal = REFUSAL.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            return Some("network namespaces, limits of lines and mounts need root".to_owned());
        }
        ensure_packages().err().map(|error| format!("{error:#}"))
    });
    if let Some(why) = refusal {
        skip(test, why);
    }
    refusal.is_none()
}

impl Job {
    /// Starts all workers, in a network that decides how long a step takes.
    pub(crate) fn start(name: &'static str) -> Self {
        Self::with(name, |_| Setting::default())
    }

    /// Starts all workers in surroundings that `surround` makes in the job's folder.
    pub(crate) fn with(name: &'static str, surround: impl FnOnce(&Path) -> Setting) -> Self {
        // The undisturbed job and its builds must not count against this job's time.
        undisturbed();
        Self::of(Network::of(name, MEGABITS), WORKERS, surround)
    }

    fn of(network: Network, workers: u32, surround: impl FnOnce(&Path) -> Setting) -> Self {
        let folder = tempfile::Builder::new().prefix("lockstep-fault-").tempdir().expect("a scratch folder");
        let run = folder.path().join("run");
        fs::create_dir_all(run.join("checkpoints")).expect("the job's folder");
        let setting = surround(&run);
        let (newest, since) = (0, Instant::now());
        let mut job = Self { processes: Vec::new(), network, setting, folder, workers, newest, since };
        for host in Host::all().take(1 + workers as usize) {
            let child = job.spawn(host);
            job.processes.push(Process { host, child });
        }
        // The first start may have built the products.
        job.since = Instant::now();
        job
    }

    pub(crate) fn disk(&self) -> &Disk {
        self.setting.disk.as_ref().expect("the job has a disk")
    }

    /// Returns the folder that all its processes see, with checkpoints and metrics log.
    pub(crate) fn run_folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn record(&self) -> PathBuf {
        self.setting.record.as_deref().unwrap_or(self.folder.path()).join("record.json")
    }

    fn spawn(&self, host: Host) -> Child {
        let (role, member) = match host {
            Host::Coordinator => ("coordinator", names::coordinator(NAME)),
            Host::Worker(index) => ("worker", names::worker(NAME, index)),
        };
        let launch = Launch {
            job: JobId { namespace: "local".into(), name: NAME.into(), uid: "process-faults".into() },
            attempt: 0,
            member: member.clone(),
            replicas: self.workers,
            elastic: Elastic { min_replicas: 1, max_replicas: self.workers },
            coordinator: Address { host: Host::Coordinator.address().to_string(), port: Ports::POD.control },
            address: host.address().into(),
            ports: Ports { data: DATA, ..Ports::POD },
            inherits_listener: false,
            output: self.run_folder(),
            objects: None,
            store: RecordStore::File(self.record()),
            credentials: None,
            grace_seconds: DEFAULT_GRACE_SECONDS,
            ending: self.folder.path().join(format!("{member}.ending")),
            task: Task::Train(Box::new(workload())),
        };
        let mut command = self.network.command(host, &products().join("lockstep-trainer"));
        command
            .arg(role)
            .envs(launch.variables().into_iter().map(|(variable, value)| (variable.name(), value)))
            .envs(self.setting.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(self.append(&format!("{member}.out")))
            .stderr(self.append(&format!("{member}.log")));
        command.spawn().expect("the trainer starts")
    }

    fn append(&self, name: &str) -> File {
        OpenOptions::new().create(true).append(true).open(self.folder.path().join(name)).expect("a log")
    }

    /// Sends a signal to the process of a host.
    pub(crate) fn signal(&self, host: Host, signal: Signal) {
        let process = self.processes.iter().find(|process| process.host == host).expect("it was started");
        kill_process(Pid::from_child(&process.child), signal).expect("it is alive");
    }

    /// Returns the process id of a host. The training thread has the same id.
    pub(crate) fn pid(&self, host: Host) -> u32 {
        self.processes.iter().find(|process| process.host == host).expect("it was started").child.id()
    }

    /// Restarts processes that ended too early, as an operator would. Returns true once all are
    /// done.
    fn tend(&mut self) -> bool {
        let mut over = true;
        for index in 0..self.processes.len() {
            let Some(status) = self.processes[index].child.try_wait().expect("the child is ours") else {
                over = false;
                continue;
            };
            let (host, exit) = (self.processes[index].host, status.code().and_then(Exit::from_code));
            assert!(exit != Some(Exit::Fatal), "{host:?} gave up:\n{}", self.logs());
            if exit != Some(Exit::Done) {
                self.processes[index].child = self.spawn(host);
                over = false;
            }
        }
        let newest = self.steps().last().copied().unwrap_or(0);
        let before = self.newest;
        assert!(newest >= before, "step {before} was reported and taken back, to step {newest}\n{}", self.logs());
        if newest != self.newest {
            (self.newest, self.since) = (newest, Instant::now());
        }
        assert!(self.since.elapsed() < WEDGED, "no step after {newest} for {WEDGED:?}: wedged\n{}", self.logs());
        over
    }

    /// Checks a condition repeatedly until it holds.
    pub(crate) fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(!self.tend(), "the job ended before {what}:\n{:?}", self.changes());
            assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}\n{}", self.logs());
            thread::park_timeout(LOOK);
        }
    }

    /// Waits for so many more steps.
    pub(crate) fn wait_for_steps(&mut self, steps: u64) {
        let first = self.steps().last().copied().unwrap_or(0);
        self.wait_for(&format!("step {}", first + steps), |job| job.steps().last() >= Some(&(first + steps)));
    }

    /// Waits for longer than any worker may be silent.
    pub(crate) fn wait_for_silence(&mut self) {
        let begun = Instant::now();
        self.wait_for("a long silence", |_| begun.elapsed() > SILENCE);
    }

    /// Waits until so many workers train together, after the first `known` changes.
    pub(crate) fn wait_for_workers(&mut self, workers: u32, known: usize) {
        self.wait_for(&format!("{workers} workers"), |job| {
            let changes = job.changes();
            changes.len() > known && changes.last().is_some_and(|change| change.workers == workers)
        });
    }

    /// Returns the steps of the metrics log.
    pub(crate) fn steps(&self) -> Vec<u64> {
        let lines = self.log_lines();
        lines.iter().filter(|line| line["evaluation"].is_null()).filter_map(|line| line["step"].as_u64()).collect()
    }

    fn log_lines(&self) -> Vec<Value> {
        let log = metrics_log::read(&self.run_folder()).unwrap_or_default();
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns true if the time of the last step is so many seconds from now, within the minutes
    /// that a test takes.
    pub(crate) fn clock_is_off_by(&self, seconds: i64) -> bool {
        let lines = self.log_lines();
        let newest = lines.iter().rev().find_map(|line| line["time"].as_str()?.parse::<jiff::Timestamp>().ok());
        newest.is_some_and(|time| (time.as_second() - jiff::Timestamp::now().as_second() - seconds).abs() < 300)
    }

    /// Returns the changes of the membership that coordinators reported.
    pub(crate) fn changes(&self) -> Vec<GroupChange> {
        let said = lines::<Value>(&self.folder.path().join(format!("{}.out", names::coordinator(NAME))));
        said.iter().filter_map(|line| serde_json::from_value(line["change"].clone()).ok()).collect()
    }

    /// Returns the logs of all processes.
    pub(crate) fn logs(&self) -> String {
        let read = |host| {
            let member = match host {
                Host::Coordinator => names::coordinator(NAME),
                Host::Worker(index) => names::worker(NAME, index),
            };
            let text = fs::read_to_string(self.folder.path().join(format!("{member}.log"))).unwrap_or_default();
            format!("== {member}\n{text}")
        };
        Host::all().map(read).collect()
    }

    /// Waits for the end and checks the promises of every run. Each step was done once with the
    /// next samples. The memberships form one chain. The states and weights are those of an
    /// undisturbed job.
    pub(crate) fn finished(mut self) -> Ended {
        while !self.tend() {
            thread::park_timeout(LOOK);
        }
        let changes = self.changes();
        assert_eq!(self.steps(), (1..=STEPS).collect::<Vec<_>>(), "steps are missing, repeated or out of order");
        let metrics_log = metrics_log::read(&self.run_folder()).expect("a metrics log");
        let checked = samples::each_was_taken_once(&workload(), &metrics_log).expect("each sample of an epoch once");
        assert!(checked > 0, "no step reports its samples");
        for pair in changes.windows(2) {
            let in_order = pair[0].generation < pair[1].generation && pair[0].step <= pair[1].step;
            assert!(in_order && pair[0].history != pair[1].history && !pair[1].rollback, "{pair:?}\n{}", self.logs());
        }
        self.check_chain(&changes);
        let ended = Ended { changes, logs: self.logs(), metrics_log, model: model(&self.run_folder()) };
        if self.workers == WORKERS {
            let other = undisturbed();
            assert!(ended.model == other.model, "the weights differ from those of an undisturbed job");
            let states = StateComparison::between(&ended.metrics_log, &other.metrics_log);
            assert!(states.steps > 0 && states.differ_from.is_none(), "the states of both jobs: {states}");
        }
        ended
    }

    /// Checks that the coordinators' reports, the workers' stored plans and the durable record have
    /// the same history.
    fn check_chain(&self, changes: &[GroupChange]) {
        let planned: Vec<AgreedPlan> = lines(&self.run_folder().join(PLANS_FILE));
        for AgreedPlan { generation, workers, step, .. } in &planned {
            let reported = changes.iter().find(|change| change.generation == *generation);
            let reported = reported.map(|change| (change.workers, change.step));
            // A coordinator that is killed may not report a change.
            assert!(reported.is_none_or(|change| change == (*workers, *step)), "generation {generation}: {reported:?}");
        }
        let record = fs::read_to_string(self.record()).expect("a record");
        let record: Value = serde_json::from_str(&record).expect("JSON");
        let last = changes.last().expect("a group");
        assert_eq!(record["active"]["generation"], last.generation, "{record}");
        let mut history: Digest = last.history.parse().expect("a digest");
        let plans: Vec<_> = planned.iter().filter(|planned| planned.generation == last.generation).collect();
        assert!(!plans.is_empty(), "generation {} has no plan", last.generation);
        for AgreedPlan { step, plan, .. } in plans {
            let plan = Digest::of(plan.as_bytes());
            history = Digest::of(&[history.as_bytes().as_slice(), &step.to_le_bytes(), plan.as_bytes()].concat());
        }
        assert_eq!(record["history"], history.to_string(), "{record}");
    }
}

impl Ended {
    /// Returns the pods that were lost, in order.
    pub(crate) fn lost(&self) -> Vec<&str> {
        self.changes.iter().flat_map(|change| &change.lost).map(|gone| gone.pod.as_str()).collect()
    }
}

/// Returns the name of a worker.
pub(crate) fn worker(index: u32) -> String {
    names::worker(NAME, index)
}

/// Returns the results of an undisturbed job with one worker. It trains once.
fn undisturbed() -> &'static Ended {
    static ENDED: OnceLock<Ended> = OnceLock::new();
    ENDED.get_or_init(|| Job::of(Network::of("undisturbed", FAST), 1, |_| Setting::default()).finished())
}

fn workload() -> Workload {
    serde_json::from_value(json!({
        "model": {"name": "mlp", "hidden": [32]},
        "dataset": {"format": "glyphs", "samples": 10_000},
        "training": {"epochs": EPOCHS, "globalBatchSize": 64, "seed": 7},
        "communication": {"algorithm": "canonicalTree"},
        "checkpoint": {"uri": "file:///checkpoints", "intervalSeconds": 1},
    }))
    .expect("a workload")
}

/// Returns the tensors of a job's final model.
fn model(folder: &Path) -> Vec<u8> {
    let bytes = fs::read(folder.join("model.safetensors")).expect("a model");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[8 + length..].to_vec()
}

/// Returns lines of JSON. The last line may be incomplete and is then left out.
fn lines<T: serde::de::DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Runs a program to its end and returns true if it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
