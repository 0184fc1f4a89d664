//! A debugger holds a training thread. The other threads of its process go on, heartbeats included.

use std::{
    env, fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        ptrace::{self, Options},
        wait::waitpid,
    },
    unistd::Pid,
};

use crate::{
    job::{Job, may_run, worker},
    network::Host,
};

/// A variable of a process that holds the thread of this number until the process is killed. It
/// must be a separate process: a traced thread answers to its tracer instead of its parent.
const HELD: &str = "LOCKSTEP_TEST_HELD_THREAD";

/// A worker that is held while it computes leaves after five seconds. A worker that is held while
/// it waits or sums does not.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 5;
const BUSY_LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);

/// Holds a process's first thread, which trains. The thread resumes when this is dropped.
struct Debugger(Child);

impl Debugger {
    fn hold(pid: u32) -> Self {
        let debugger = Command::new(env::current_exe().expect("this test's binary"))
            .args(["--ignored", "--exact", "threads::a_debugger_that_holds_a_thread", "--nocapture"])
            .env(HELD, pid.to_string())
            .stdout(Stdio::null())
            .spawn();
        Self(debugger.expect("a debugger starts"))
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "is started, and killed, by other tests"]
fn a_debugger_that_holds_a_thread() {
    let Ok(thread) = env::var(HELD) else { return };
    let thread = Pid::from_raw(thread.parse().expect("a thread's number"));
    ptrace::seize(thread, Options::empty()).expect("it may be traced");
    let mut busy = 0;
    loop {
        ptrace::interrupt(thread).expect("it is alive");
        waitpid(thread, None).expect("it stops");
        // The thread computes if it is in no system call for longer than it polls for messages.
        let call = fs::read_to_string(format!("/proc/{thread}/syscall")).expect("it is there");
        busy = if call.starts_with("-1 ") { busy + 1 } else { 0 };
        if busy == BUSY_LOOKS {
            break;
        }
        ptrace::cont(thread, None).expect("it goes on");
        thread::park_timeout(BETWEEN_LOOKS);
    }
    // The parent learns of the end only after the tracer.
    waitpid(thread, None).expect("it ends");
}

/// Holds a worker's training thread while it computes. The others then continue without the worker.
fn hold_while_it_computes(job: &mut Job, host: Host) -> Debugger {
    for _ in 0..ATTEMPTS {
        let debugger = Debugger::hold(job.pid(host));
        let begun = Instant::now();
        let left = |job: &Job| job.changes().last().is_some_and(|change| change.workers == 2);
        job.wait_for("a change, or enough time", |job| left(job) || begun.elapsed() > LEAVES_WITHIN);
        if left(job) {
            return debugger;
        }
    }
    panic!("{host:?} was held {ATTEMPTS} times without a change:\n{}", job.logs());
}

#[test]
fn a_worker_whose_training_thread_is_stuck_leaves_and_joins_again_when_it_moves() {
    if !may_run("stuck") {
        return;
    }
    let mut job = Job::start("stuck");
    job.wait_for_steps(30);
    let debugger = hold_while_it_computes(&mut job, Host::Worker(1));
    job.wait_for_steps(20);
    let known = job.changes().len();
    drop(debugger);
    job.wait_for_workers(3, known);
    let ended = job.finished();
    assert_eq!(ended.lost(), [worker(1)]);
    let reason = &ended.changes.iter().find_map(|change| change.lost.first()).expect("it was lost").reason;
    assert!(reason.contains("its training thread, computing, has not moved for"), "{reason}");
}

#[test]
fn a_process_whose_training_thread_stays_stuck_ends_and_is_replaced() {
    if !may_run("hung") {
        return;
    }
    let mut job = Job::start("hung");
    job.wait_for_steps(30);
    let held = job.pid(Host::Worker(0));
    let _debugger = hold_while_it_computes(&mut job, Host::Worker(0));
    // The others must not finish before: a step takes most of a second.
    job.network.shape(Host::Worker(2), 1.0);
    let known = job.changes().len();
    job.wait_for("another process of the worker", |job| job.pid(Host::Worker(0)) != held);
    job.wait_for_workers(3, known);
    job.network.shape(Host::Worker(2), 100.0);
    let ended = job.finished();
    assert_eq!(ended.lost(), [worker(0)]);
    assert!(ended.logs.contains(r#""exit":"retry""#), "{}", ended.logs);
}
