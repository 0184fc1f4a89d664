//! `lockstep run` with a trainer that speaks the launch contract and trains nothing.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

struct Run {
    place: TempDir,
    command: Command,
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples").join(name)
}

/// Prepares `lockstep run` of the glyphs example with these fates, in a folder of its own.
fn run(fates: &str, arguments: &[&str]) -> Run {
    run_manifest(&example("glyphs.yaml"), fates, arguments)
}

fn run_manifest(manifest: &Path, fates: &str, arguments: &[&str]) -> Run {
    let place = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command
        .arg("run")
        .arg(manifest)
        .args(["--trainer", env!("CARGO_BIN_EXE_fake-trainer"), "--output", "out"])
        .args(arguments)
        .env("FAKE_TRAINER", fates)
        .current_dir(place.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Run { place, command }
}

impl Run {
    fn output(&mut self) -> Output {
        self.command.output().expect("lockstep starts")
    }

    fn out(&self) -> PathBuf {
        self.place.path().join("out")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {DEADLINE:?}");
        std::thread::park_timeout(POLL);
    }
}

/// Returns the processes that wrote their ids, once there are `count`.
fn pids(out: &Path, count: usize) -> Vec<Pid> {
    let read = || -> Vec<Pid> {
        let Ok(files) = out.join("pids").read_dir() else { return Vec::new() };
        files.filter_map(|file| Pid::from_raw(fs::read_to_string(file.ok()?.path()).ok()?.parse().ok()?)).collect()
    };
    wait_until("every process starts", || read().len() == count);
    read()
}

fn lives(pid: Pid) -> bool {
    // A killed process that its new parent has not reaped yet is dead too.
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
    test_kill_process(pid).is_ok() && !state.contains(") Z ")
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Reads lines until one contains `part`.
fn read_until(lines: &mut impl BufRead, part: &str) -> String {
    let mut all = String::new();
    while !all.contains(part) {
        let read = lines.read_line(&mut all).expect("text");
        assert!(read > 0, "`{part}` was never said:\n{all}");
    }
    all
}

#[test]
fn a_complete_job_ends_with_its_results_on_stdout() {
    let mut run = run("", &[]);
    let output = run.output();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results = text(&output.stdout);
    for part in ["accuracy    0.9000", "model.safetensors", "samples/s   1000", "efficiency  95%", "duration"] {
        assert!(results.contains(part), "{part}:\n{results}");
    }
    let progress = text(&output.stderr);
    assert!(progress.contains("loss 2.0000"), "{progress}");
    assert!(progress.contains("epoch 1: accuracy 0.9000"), "{progress}");
}

#[test]
fn a_run_keeps_its_manifest_and_the_log_of_every_process() {
    let mut run = run("", &["--workers", "3", "--set", "spec.training.epochs=9"]);
    assert!(run.output().status.success());
    let manifest = fs::read_to_string(run.out().join("manifest.yaml")).expect("kept");
    assert!(manifest.contains("replicas: 3") && manifest.contains("epochs: 9"), "{manifest}");
    for log in ["coordinator.log", "worker-0.log", "worker-1.log", "worker-2.log"] {
        let text = fs::read_to_string(run.out().join("logs").join(log)).expect(log);
        assert!(text.contains("attempt 0"), "{log}: {text}");
    }
}

#[test]
fn a_killed_worker_is_replaced_while_the_others_go_on() {
    let mut run = run("worker-1@0=killed", &[]);
    let output = run.output();
    let progress = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{progress}");
    assert!(progress.contains("worker 1 was killed by signal 9; a new one takes its place"), "{progress}");
    let starts = |member: &str| fs::read_to_string(run.out().join("starts").join(member)).expect(member);
    assert_eq!([starts("glyphs-worker-0"), starts("glyphs-worker-1"), starts("glyphs-coordinator")], ["1", "2", "1"]);
}

#[test]
fn a_killed_coordinator_is_replaced() {
    let mut run = run("coordinator@0=killed", &[]);
    let output = run.output();
    let progress = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{progress}");
    assert!(progress.contains("the coordinator was killed by signal 9; a new one takes its place"), "{progress}");
}

#[test]
fn a_worker_that_fails_too_often_fails_the_job() {
    let fates = "worker-0@0=crash,worker-0@1=retry,worker-0@2=crash";
    let mut run = run(fates, &["--set", "spec.failurePolicy.backoffLimit=1"]);
    let output = run.output();
    let progress = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{progress}");
    assert!(progress.contains("worker 0 crashed with exit code 101; a new one takes its place"), "{progress}");
    assert!(
        progress.contains("error: failure 2, backoffLimit is 1; the last: worker 0 cannot go on for now"),
        "{progress}"
    );
    assert!(progress.contains("logs/worker-0.log"), "{progress}");
}

#[test]
fn a_run_is_scaled_from_another_terminal_within_its_bounds() {
    let fates = "worker-0@0=endless,worker-1@0=endless,worker-2@0=endless";
    let mut run = run(fates, &["--set", "spec.elastic={minReplicas: 1, maxReplicas: 3}"]);
    let mut child = run.command.spawn().expect("lockstep starts");
    let mut progress = BufReader::new(child.stderr.take().expect("piped"));
    pids(&run.out(), 3);
    let scale = |workers: &str| {
        let scaled = Command::new(env!("CARGO_BIN_EXE_lockstep")).arg("scale").arg(run.out()).arg(workers).output();
        let scaled = scaled.expect("lockstep starts");
        (scaled.status.code(), text(&scaled.stderr))
    };
    let (code, refusal) = scale("4");
    assert!(code == Some(2) && refusal.contains("4: 1 to 3 (spec.elastic)"), "{refusal}");
    assert_eq!(scale("3").0, Some(0));
    read_until(&mut progress, "scaling from 2 to 3 workers");
    pids(&run.out(), 4);
    assert_eq!(scale("1").0, Some(0));
    read_until(&mut progress, "worker 1 left");
    kill_process(pid(&child), Signal::TERM).expect("asked to stop");
    child.wait().expect("it ends");
    let (code, refusal) = scale("2");
    assert!(code == Some(2) && refusal.contains("no `lockstep run` is at work"), "{refusal}");
}

#[test]
fn a_job_of_a_fixed_size_is_not_scaled() {
    let mut run = run("", &[]);
    run.output();
    let scaled = Command::new(env!("CARGO_BIN_EXE_lockstep")).arg("scale").arg(run.out()).arg("3").output();
    let refusal = text(&scaled.expect("lockstep starts").stderr);
    assert!(refusal.contains("3: this job always has 2 workers"), "{refusal}");
}

#[test]
fn the_history_of_a_folder_that_is_no_run_is_refused() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep")).arg("history").arg(place.path()).output();
    let refusal = text(&output.expect("lockstep starts").stderr);
    assert!(refusal.contains("not the folder of a run"), "{refusal}");
}

#[test]
fn a_fatal_end_says_why_and_is_not_tried_again() {
    let mut run = run("worker-1@0=fatal", &[]);
    let output = run.output();
    let progress = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{progress}");
    assert!(progress.contains("labels: 12: 0 to 9") && progress.contains("logs/worker-1.log"), "{progress}");
    assert!(!progress.contains("takes its place"), "{progress}");
}

#[test]
fn a_worker_that_never_comes_up_is_named_with_its_log() {
    let mut run = run("worker-1@0=silent", &["--set", "spec.failurePolicy.startupTimeoutSeconds=5"]);
    let output = run.output();
    let progress = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{progress}");
    assert!(progress.contains("worker 1 did not come up") && progress.contains("logs/worker-1.log"), "{progress}");
    assert!(!progress.contains("worker-0.log"), "{progress}");
}

#[test]
fn ctrl_c_stops_cleanly_and_says_how_to_continue() {
    let mut run = run("worker-0@0=endless,worker-1@0=endless", &[]);
    let mut child = run.command.spawn().expect("lockstep starts");
    let mut progress = BufReader::new(child.stderr.take().expect("piped"));
    let processes = pids(&run.out(), 3);
    read_until(&mut progress, "loss");
    kill_process(pid(&child), Signal::INT).expect("Ctrl-C");
    let said = read_until(&mut progress, "lockstep run");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{said}");
    assert!(said.contains("the checkpoint of step 20 is kept"), "{said}");
    assert!(said.contains(&format!("--output {}", run.out().canonicalize().expect("kept").display())), "{said}");
    assert!(processes.iter().all(|pid| !lives(*pid)));
    let ending = fs::read_to_string(run.out().join("endings/glyphs-worker-0.json")).expect("an ending");
    assert!(ending.contains("lastCheckpoint"), "{ending}");
}

#[test]
fn a_reader_that_leaves_does_not_stop_the_job() {
    let mut run = run("", &[]);
    let mut child = run.command.spawn().expect("lockstep starts");
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_stopped_run_continues_in_its_folder() {
    let mut run = run("worker-0@0=endless,worker-1@0=endless", &[]);
    let mut child = run.command.spawn().expect("lockstep starts");
    pids(&run.out(), 3);
    read_until(&mut BufReader::new(child.stderr.take().expect("piped")), "loss");
    kill_process(pid(&child), Signal::TERM).expect("asked to stop");
    assert_eq!(child.wait().expect("it ends").code(), Some(143));
    run.command.env("FAKE_TRAINER", "");
    let output = run.output();
    let progress = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{progress}");
    assert!(progress.contains("glyphs continues"), "{progress}");
}

#[test]
fn another_seed_is_refused_in_the_folder_of_a_run_that_has_trained() {
    let mut run = run("", &[]);
    assert!(run.output().status.success());
    for file in ["plans.jsonl", "metrics.jsonl"] {
        fs::write(run.out().join(file), "{}\n").expect("as a trainer does");
    }
    run.command.args(["--set", "spec.training.seed=8"]);
    let output = run.output();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("spec.training.seed: 8: 7"), "{}", text(&output.stderr));
}

#[test]
fn another_object_store_is_refused_once_the_run_has_trained() {
    let mut run = run("", &["--set", "spec.checkpoint.uri=s3://bucket/jobs"]);
    assert!(run.output().status.success());
    fs::write(run.out().join("plans.jsonl"), "").expect("as a trainer does");
    run.command.args(["--set", "spec.checkpoint.uri=s3://bucket/others"]);
    let output = run.output();
    assert_eq!(output.status.code(), Some(2));
    let refusal = text(&output.stderr);
    assert!(refusal.contains("spec.checkpoint.uri: s3://bucket/others: s3://bucket/jobs"), "{refusal}");
}

#[test]
fn a_killed_lockstep_leaves_no_process() {
    let mut run = run("worker-0@0=endless,worker-1@0=endless", &[]);
    let mut child = run.command.spawn().expect("lockstep starts");
    let processes = pids(&run.out(), 3);
    kill_process(pid(&child), Signal::KILL).expect("kill");
    child.wait().expect("it ends");
    wait_until("its children die", || processes.iter().all(|pid| !lives(*pid)));
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    let mut run = run("", &["--port", &port]);
    let output = run.output();
    assert_eq!(output.status.code(), Some(2));
    let progress = text(&output.stderr);
    assert!(progress.contains(&port) && progress.contains("--port"), "{progress}");
    assert!(!run.out().exists());
}

#[test]
fn a_data_set_on_a_volume_needs_a_local_folder() {
    let mut run = run_manifest(&example("mnist.yaml"), "", &[]);
    let output = run.output();
    assert_eq!(output.status.code(), Some(2));
    let progress = text(&output.stderr);
    for part in ["spec.dataset.uri", "file:///data/mnist", "--data"] {
        assert!(progress.contains(part), "{part}: {progress}");
    }
    let data = run.place.path().join("data");
    fs::create_dir(&data).expect("a folder");
    run.command.args(["--data", "data"]);
    let output = run.output();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let manifest = fs::read_to_string(run.out().join("manifest.yaml")).expect("kept");
    assert!(manifest.contains(&data.canonicalize().expect("there").display().to_string()), "{manifest}");
}

#[test]
fn a_benchmark_takes_no_data_set() {
    let mut run = run_manifest(&example("collectives.yaml"), "", &["--data", "."]);
    let output = run.output();
    assert_eq!(output.status.code(), Some(2));
    let progress = text(&output.stderr);
    assert!(progress.contains("--data .: a benchmark reads no data set"), "{progress}");
}

#[test]
fn a_missing_trainer_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg("run")
        .arg(example("glyphs.yaml"))
        .args(["--trainer", "absent/trainer"])
        .output()
        .expect("lockstep starts");
    assert_eq!(output.status.code(), Some(2));
    let progress = text(&output.stderr);
    assert!(progress.contains("--trainer absent/trainer: no such file"), "{progress}");
}

#[test]
fn a_run_that_takes_longer_than_its_deadline_fails_and_keeps_its_state() {
    let fates = "worker-0@0=endless,worker-1@0=endless";
    let mut run = run(fates, &["--set", "spec.activeDeadlineSeconds=2"]);
    let output = run.output();
    let progress = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{progress}");
    let error = "error: not complete 2 s after its start, activeDeadlineSeconds\n  the checkpoint of step 20 is kept";
    assert!(progress.contains(error), "{progress}");
}
