//! Starts `lockstep run` and reads the files that it leaves.

use std::{
    cell::Cell,
    fs,
    io::{self, PipeReader, PipeWriter, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use lockstep_api::ValidJob;
use lockstep_launch::{Task, Workload, metrics_log};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::Deserialize;

/// The longest time that a local run of these tests takes, even on busy cores.
const DEADLINE: Duration = Duration::from_secs(240);

/// The capacity of an unread pipe, see pipe(7).
const PIPE_BYTES: usize = 64 << 10;

/// A job as YAML.
pub(crate) struct Manifest(String);

impl Manifest {
    /// Returns a job that trains LeNet-5 on so many glyphs.
    pub(crate) fn glyphs(samples: u32, epochs: u32) -> Self {
        Self::with(&format!("{{format: glyphs, samples: {samples}}}"), epochs)
    }

    /// Returns a job that trains LeNet-5 on the IDX files of a folder.
    pub(crate) fn idx(folder: &Path, epochs: u32) -> Self {
        Self::with(&format!("{{format: idx, uri: \"file://{}\"}}", folder.display()), epochs)
    }

    /// Returns a job that trains LeNet-5 on augmented pictures of a folder.
    pub(crate) fn pictures(folder: &Path, decoding_threads: u32, epochs: u32) -> Self {
        let dataset = format!(
            "{{format: imagefolder, uri: \"file://{}\", image: {{channels: 3, height: 28, width: 28}}, \
             decodingThreads: {decoding_threads}, augment: {{randomResizedCrop: {{}}, randomHorizontalFlip: 0.5}}}}",
            folder.display()
        );
        Self::with(&dataset, epochs)
    }

    /// Returns a benchmark of the collectives between two workers, with these fields.
    pub(crate) fn collectives(collectives: &str, communication: &str) -> Self {
        Self(format!(
            "apiVersion: lockstep.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{name: collectives}}\nspec:\n  replicas: 2\n  \
             benchmark: {{collectives: {{{collectives}}}}}\n  communication: {{{communication}}}\n  \
             failurePolicy: {{backoffLimit: 2}}\n"
        ))
    }

    /// Returns a job that trains LeNet-5 on a data set.
    pub(crate) fn with(dataset: &str, epochs: u32) -> Self {
        Self(format!(
            "apiVersion: lockstep.dev/v1alpha1\nkind: TrainingJob\nmetadata: {{name: lenet}}\nspec:\n  replicas: 2\n  \
             model: {{name: lenet5}}\n  dataset: {dataset}\n  training: {{epochs: {epochs}, globalBatchSize: 64, seed: 7}}\n  \
             communication: {{bucketBytes: 64Ki}}\n  checkpoint: {{uri: \"file:///checkpoints\", intervalSeconds: 1}}\n  \
             failurePolicy: {{backoffLimit: 2}}\n"
        ))
    }

    pub(crate) fn replaced(&self, from: &str, to: &str) -> Self {
        assert!(self.0.contains(from), "{from} is not in the manifest");
        Self(self.0.replace(from, to))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// A run that is active or has ended. Dropping it kills its processes.
pub(crate) struct Run {
    // Dropped after `Run::drop`, when the processes have ended.
    _scratch: tempfile::TempDir,
    folder: PathBuf,
    output: PathBuf,
    /// Variables of its environment beside those of the tests.
    variables: Vec<(String, String)>,
    child: Child,
    pub(crate) code: Option<i32>,
    /// The last step that the metrics log was seen to hold.
    furthest: Cell<u64>,
    /// True once the metrics log held fewer steps than before.
    took_back: Cell<bool>,
}

/// A line of metrics.jsonl about a step.
#[derive(Debug, Deserialize)]
pub(crate) struct StepLine {
    pub(crate) step: u64,
    pub(crate) generation: u64,
    pub(crate) world_size: u32,
    /// `None` if no surviving worker had seen the step.
    pub(crate) loss: Option<f64>,
    pub(crate) step_seconds: f64,
    /// Digests of the samples that all ranks took, by their numbers and by their pixels.
    pub(crate) sample_hash: Option<u64>,
    pub(crate) data_hash: Option<u64>,
}

/// A line of history.jsonl.
#[derive(Debug, Deserialize)]
pub(crate) struct Change {
    pub(crate) generation: u64,
    pub(crate) workers: u32,
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) rollback: bool,
    #[serde(default)]
    pub(crate) redone: u64,
    #[serde(default)]
    pub(crate) lost: Vec<Gone>,
    #[serde(default)]
    pub(crate) left: Vec<Gone>,
    pub(crate) seconds: f64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Gone {
    pub(crate) pod: String,
    pub(crate) reason: String,
}

/// A line of metrics.jsonl about an evaluation.
#[derive(Debug, Deserialize)]
pub(crate) struct EvaluationLine {
    pub(crate) evaluation: Evaluation,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Evaluation {
    pub(crate) loss: f64,
    pub(crate) accuracy: f64,
}

impl StepLine {
    /// Returns the loss of a step that a surviving worker has seen.
    pub(crate) fn seen_loss(&self) -> f64 {
        self.loss.unwrap_or_else(|| panic!("step {} has no loss", self.step))
    }
}

impl Run {
    /// Starts a run in a new folder.
    pub(crate) fn of(name: &str, manifest: &Manifest, arguments: &[&str]) -> Self {
        Self::with_variables(name, manifest, arguments, Vec::new())
    }

    /// Starts a run in a new folder, with these variables in its environment.
    pub(crate) fn with_variables(
        name: &str,
        manifest: &Manifest,
        arguments: &[&str],
        variables: Vec<(String, String)>,
    ) -> Self {
        let scratch =
            tempfile::Builder::new().prefix(&format!("lockstep-{name}-")).tempdir().expect("a scratch folder");
        let folder = scratch.path().join("run");
        Self::start(scratch, folder, manifest, arguments, variables, None)
    }

    /// Starts a run whose standard error is a full pipe. Returns the reading end too.
    pub(crate) fn unread(name: &str, manifest: &Manifest) -> (Self, PipeReader) {
        let (unread, mut full) = io::pipe().expect("a pipe");
        full.write_all(&[b'.'; PIPE_BYTES]).expect("filled");
        let scratch =
            tempfile::Builder::new().prefix(&format!("lockstep-{name}-")).tempdir().expect("a scratch folder");
        let folder = scratch.path().join("run");
        (Self::start(scratch, folder, manifest, &[], Vec::new(), Some(full)), unread)
    }

    /// Starts a run in the same folder again.
    pub(crate) fn again(mut self, manifest: &Manifest, arguments: &[&str]) -> Self {
        self.stop_now();
        let scratch = std::mem::replace(&mut self._scratch, tempfile::tempdir().expect("a scratch folder"));
        let variables = std::mem::take(&mut self.variables);
        Self::start(scratch, self.folder.clone(), manifest, arguments, variables, None)
    }

    fn start(
        scratch: tempfile::TempDir,
        folder: PathBuf,
        Manifest(yaml): &Manifest,
        arguments: &[&str],
        variables: Vec<(String, String)>,
        errors: Option<PipeWriter>,
    ) -> Self {
        let manifest = scratch.path().join("job.yaml");
        fs::write(&manifest, yaml).expect("the manifest is written");
        let output = scratch.path().join("said.txt");
        let said = fs::File::create(&output).expect("a file for the output");
        let child = Command::new(lockstep())
            .arg("run")
            .arg(&manifest)
            .arg("--output")
            .arg(&folder)
            .args(arguments)
            .envs(variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(said.try_clone().expect("a second handle"))
            .stderr(errors.map_or(Stdio::from(said), Stdio::from))
            .spawn()
            .expect("lockstep starts");
        let (furthest, took_back) = (Cell::new(0), Cell::new(false));
        Self { _scratch: scratch, folder, output, variables, child, code: None, furthest, took_back }
    }

    /// Waits for the end. Checks that no step of the metrics log was taken back without a reported
    /// rollback.
    pub(crate) fn finished(mut self) -> Self {
        let mut status = None;
        wait_for("the run to end", || {
            self.look();
            status = self.child.try_wait().expect("a child of this process");
            status.is_some()
        });
        self.code = status.and_then(|status| status.code());
        let history = self.history();
        let may_have = history.iter().any(|change| change.rollback);
        assert!(
            may_have || !self.took_back.get(),
            "steps were taken back without a rollback: {history:?}\n{}",
            self.said()
        );
        self
    }

    /// Notes the last step of the metrics log.
    fn look(&self) {
        let newest = self.newest_step();
        self.took_back.set(self.took_back.get() || newest < self.furthest.get());
        self.furthest.set(self.furthest.get().max(newest));
    }

    /// Returns the last step in the metrics log.
    pub(crate) fn newest_step(&self) -> u64 {
        let last: Vec<serde_json::Value> = metrics_log::read_last(&self.folder).unwrap_or_default();
        last.last().and_then(|line| line["step"].as_u64()).unwrap_or(0)
    }

    /// Waits until a condition holds. Panics if the run ends before.
    pub(crate) fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        wait_for(what, || {
            let is_over = self.is_over();
            let holds = holds();
            self.look();
            assert!(holds || !is_over, "the run ended before {what}:\n{}", self.said());
            holds
        });
    }

    /// Returns true if the command line has ended. Its exit code can still be read.
    fn is_over(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), options).is_ok_and(|ended| ended.is_some())
    }

    /// Waits until the metrics log holds a step, or a later one.
    pub(crate) fn wait_for_step(&self, step: u64) {
        self.wait_until(&format!("step {step}"), || self.steps().last().is_some_and(|line| line.step >= step));
    }

    /// Waits until the metrics log holds a step of this generation, or of a later one.
    pub(crate) fn wait_for_generation(&self, generation: u64) {
        self.wait_until(&format!("generation {generation}"), || {
            self.steps().last().is_some_and(|line| line.generation >= generation)
        });
    }

    /// Waits until so many workers train in a generation after the first.
    pub(crate) fn wait_for_workers_again(&self, workers: u32) {
        self.wait_until(&format!("{workers} workers again"), || {
            let changed = self.history().pop().filter(|change| change.generation > 1 && change.workers == workers);
            let newest = self.steps().pop();
            changed.zip(newest).is_some_and(|(change, line)| line.generation >= change.generation)
        });
    }

    /// Returns the memberships of the run.
    pub(crate) fn history(&self) -> Vec<Change> {
        let text = fs::read_to_string(self.folder.join("history.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns the tensors of the final model.
    pub(crate) fn model(&self) -> Vec<u8> {
        let bytes = fs::read(self.folder.join("model.safetensors")).expect("a model");
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        bytes[8 + length..].to_vec()
    }

    /// Waits until there is a checkpoint.
    pub(crate) fn wait_for_checkpoint(&self) {
        self.wait_until("a checkpoint", || self.checkpoints() > 0);
    }

    /// Returns the plan of communication in the newest checkpoint.
    pub(crate) fn communication(&self) -> serde_json::Value {
        let folders = fs::read_dir(self.folder.join("checkpoints")).expect("checkpoints").flatten();
        let newest = folders.map(|entry| entry.path().join("manifest.json")).filter(|path| path.exists()).max();
        let text = fs::read_to_string(newest.expect("a checkpoint")).expect("its manifest");
        let manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        serde_json::from_str(manifest["communication"].as_str().expect("a plan")).expect("JSON")
    }

    pub(crate) fn checkpoints(&self) -> usize {
        let listed = fs::read_dir(self.folder.join("checkpoints")).map(|entries| {
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("step-")).count()
        });
        listed.unwrap_or(0)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the process id of the command line itself.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the process ids of the run's trainers whose command line ends with `role` and whose
    /// member name ends with `suffix`.
    pub(crate) fn trainers(&self, role: &str, suffix: &str) -> Vec<Pid> {
        let folder = self.folder.to_string_lossy().into_owned();
        processes()
            .filter(|(_, line, environment)| {
                ["lockstep-trainer", "own_model"].iter().any(|program| line.contains(program))
                    && line.trim_end().ends_with(role)
                    && environment.contains(&format!(r#""output":"{folder}""#))
                    && environment
                        .split('\0')
                        .any(|entry| entry.starts_with("LOCKSTEP_MEMBER=") && entry.ends_with(suffix))
            })
            .map(|(pid, _, _)| pid)
            .collect()
    }

    /// Asks for so many workers, as a user does.
    pub(crate) fn scale(&self, workers: u32) {
        let scaled = Command::new(lockstep()).arg("scale").arg(&self.folder).arg(workers.to_string()).status();
        assert!(scaled.as_ref().is_ok_and(std::process::ExitStatus::success), "{scaled:?}");
    }

    /// Returns the log of this member.
    pub(crate) fn log(&self, member: &str) -> String {
        fs::read_to_string(self.folder.join("logs").join(format!("{member}.log"))).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the run is alive");
    }

    /// Returns the output of the command line.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    pub(crate) fn steps(&self) -> Vec<StepLine> {
        self.lines()
    }

    pub(crate) fn evaluations(&self) -> Vec<EvaluationLine> {
        self.lines()
    }

    /// Returns the accuracy of the last evaluation.
    pub(crate) fn accuracy(&self) -> f64 {
        self.evaluations().last().map_or(0.0, |line| line.evaluation.accuracy)
    }

    /// Returns the workload of the run.
    pub(crate) fn workload(&self) -> Workload {
        let manifest = fs::read_to_string(self.folder.join("manifest.yaml")).expect("the manifest of the run");
        match ValidJob::from_manifest(&manifest).expect("a valid manifest").task {
            Task::Train(workload) => *workload,
            Task::Benchmark { .. } => panic!("a benchmark trains nothing"),
        }
    }

    /// Returns the metrics log, also while the run writes it.
    pub(crate) fn metrics_log(&self) -> String {
        metrics_log::read(&self.folder).unwrap_or_default()
    }

    /// Returns the lines of the metrics log. The last line may be incomplete and is then left out.
    fn lines<T: for<'de> Deserialize<'de>>(&self) -> Vec<T> {
        self.metrics_log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn stop_now(&mut self) {
        // The run may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop_now();
    }
}

/// Returns the error output of a run that cannot use `folder`.
pub(crate) fn refused_output(Manifest(yaml): &Manifest, folder: &str) -> String {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let manifest = scratch.path().join("job.yaml");
    fs::write(&manifest, yaml).expect("the manifest is written");
    let output = Command::new(lockstep())
        .arg("run")
        .arg(&manifest)
        .args(["--output", folder])
        .output()
        .expect("lockstep starts");
    assert!(!output.status.success(), "a run in {folder} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks a condition repeatedly until it holds.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "waited {DEADLINE:?} for {what}");
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// Returns process id, command line and environment of every readable process.
fn processes() -> impl Iterator<Item = (Pid, String, String)> {
    fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let environment = fs::read(entry.path().join("environ")).ok()?;
        Some((Pid::from_raw(number)?, line, String::from_utf8_lossy(&environment).into_owned()))
    })
}

/// Returns the command line's binary, with the trainer beside it.
pub(crate) fn lockstep() -> PathBuf {
    lockstep_tests::products().join("lockstep")
}

/// Locks the machine's cores for a test while its processes run.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
