//! The processes of a job: starts, output, ends and signals.

use std::{
    fs::{File, OpenOptions},
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context;
use futures::future::select_all;
use lockstep_launch::{Ending, Exit, GroupChange, Launch, PARENT, Progress, REPLAY, Replay};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{Instant, timeout_at},
};

use super::restart::{ProcessEnd, ProcessRole};

/// Time that the coordinator's last lines may take after its end.
const LAST_LINES: Duration = Duration::from_secs(1);
/// Time that a process of a failed job has to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// A process to start.
pub(crate) struct Process {
    /// Its role in the job.
    pub(crate) role: ProcessRole,
    /// Its environment.
    pub(crate) launch: Launch,
    /// Decisions to repeat in a replay.
    pub(crate) replay: Option<Replay>,
    /// Control port of the coordinator.
    pub(crate) listener: Option<OwnedFd>,
    /// File for its output.
    pub(crate) log: PathBuf,
}

/// A line of the coordinator's output.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CoordinatorLine {
    /// The coordinator listens on this address.
    Listening(String),
    /// This member has joined.
    Joined(String),
    /// These members belong to the group.
    Members(Vec<String>),
    /// The group changed.
    Change(Box<GroupChange>),
    /// A group that was recorded before, and may have been announced before.
    Found(Box<GroupChange>),
    /// A report.
    Progress(Box<Progress>),
    /// The coordinator's ending.
    Ending(Box<Ending>),
}

/// An event among the processes.
#[derive(Debug)]
pub(crate) enum ProcessEvent {
    /// The coordinator wrote a line.
    Line(CoordinatorLine),
    /// A process ended.
    Ended(ProcessRole, ProcessEnd),
}

/// The processes of a job. A drop kills those that still run.
pub(crate) struct Children {
    running: Vec<(ProcessRole, Child)>,
    /// The coordinator's output, until its end.
    lines: Option<Lines<BufReader<ChildStdout>>>,
    /// The coordinator's end, which is reported only after the rest of its output, and the deadline
    /// for reading that.
    closing: Option<(ProcessEnd, Instant)>,
    /// Events that were read but not returned yet.
    pending: std::collections::VecDeque<ProcessEvent>,
}

impl Children {
    /// Starts `trainer` once for each process.
    pub(crate) fn start(trainer: &Path, processes: Vec<Process>) -> anyhow::Result<Self> {
        let mut children =
            Self { running: Vec::new(), lines: None, closing: None, pending: std::collections::VecDeque::new() };
        for process in processes {
            children.add(trainer, process)?;
        }
        Ok(children)
    }

    /// Starts one more process.
    pub(crate) fn add(&mut self, trainer: &Path, process: Process) -> anyhow::Result<()> {
        let role = process.role;
        let mut child = spawn(trainer, process).with_context(|| format!("start {} as {role}", trainer.display()))?;
        if let Some(stdout) = child.stdout.take() {
            self.lines = Some(BufReader::new(stdout).lines());
        }
        self.running.push((role, child));
        Ok(())
    }

    /// Returns true if no process runs and every event was returned.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.pending.is_empty() && self.closing.is_none()
    }

    /// Returns the running processes in the order of their numbers.
    pub(crate) fn running(&self) -> Vec<ProcessRole> {
        let mut roles: Vec<ProcessRole> = self.running.iter().map(|(role, _)| *role).collect();
        roles.sort();
        roles
    }

    /// Returns true if this process runs, or its end was not returned yet.
    pub(crate) fn has(&self, role: ProcessRole) -> bool {
        let closes = role == ProcessRole::Coordinator && self.closing.is_some();
        closes || self.running.iter().any(|(running, _)| *running == role)
    }

    /// Sends `signal` to this process, if it runs.
    pub(crate) fn signal(&self, role: ProcessRole, signal: Signal) {
        self.signal_where(signal, |running| running == role);
    }

    /// Waits for the next event, or for ever once all processes have ended. The wait may be dropped
    /// and repeated.
    pub(crate) async fn next(&mut self) -> anyhow::Result<ProcessEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            if let Some((end, deadline)) = self.closing {
                self.read_last_lines(deadline).await;
                if self.pending.is_empty() {
                    self.closing = None;
                    return Ok(ProcessEvent::Ended(ProcessRole::Coordinator, end));
                }
                continue;
            }
            if self.running.is_empty() {
                return std::future::pending().await;
            }
            let waits = self.running.iter_mut().map(|(_, child)| Box::pin(child.wait()));
            let first_end = async {
                let (status, index, _) = select_all(waits).await;
                (status, index)
            };
            tokio::select! {
                biased;
                line = next_line(&mut self.lines), if self.lines.is_some() => match line {
                    Some(line) => self.pending.extend(parse(&line)),
                    None => self.lines = None,
                },
                (status, index) = first_end => {
                    let end = end(status.context("wait for a child process")?);
                    match self.running.remove(index) {
                        (ProcessRole::Coordinator, _) => self.closing = Some((end, Instant::now() + LAST_LINES)),
                        (role, _) => return Ok(ProcessEvent::Ended(role, end)),
                    }
                }
            }
        }
    }

    /// Sends `signal` to every worker that still runs.
    pub(crate) fn signal_workers(&self, signal: Signal) {
        self.signal_where(signal, |role| role != ProcessRole::Coordinator);
    }

    /// Sends `signal` to every process that still runs.
    pub(crate) fn signal_all(&self, signal: Signal) {
        self.signal_where(signal, |_| true);
    }

    /// Returns true if a worker still runs.
    pub(crate) fn has_workers(&self) -> bool {
        self.running.iter().any(|(role, _)| *role != ProcessRole::Coordinator)
    }

    /// Lets the processes end by themselves for `settle`, then sends SIGTERM, then SIGKILL. Returns
    /// the events until then.
    pub(crate) async fn end_all(&mut self, settle: Duration) -> anyhow::Result<Vec<ProcessEvent>> {
        let mut events = self.events_for(settle).await?;
        for signal in [Signal::TERM, Signal::KILL] {
            if self.running.is_empty() {
                break;
            }
            self.signal_all(signal);
            events.extend(self.events_for(TERM_GRACE).await?);
        }
        Ok(events)
    }

    async fn events_for(&mut self, time: Duration) -> anyhow::Result<Vec<ProcessEvent>> {
        let deadline = Instant::now() + time;
        let mut events = Vec::new();
        while !self.is_empty()
            && let Ok(event) = timeout_at(deadline, self.next()).await
        {
            events.push(event?);
        }
        Ok(events)
    }

    fn signal_where(&self, signal: Signal, wanted: impl Fn(ProcessRole) -> bool) {
        for (_, child) in self.running.iter().filter(|(role, _)| wanted(*role)) {
            // A reaped process has no id any more, so the signal cannot hit a stranger.
            if let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
                let _ended_meanwhile = kill_process_group(group, signal);
            }
        }
    }

    async fn read_last_lines(&mut self, deadline: Instant) {
        let Self { lines, pending, .. } = self;
        let reading = async {
            while let Some(line) = next_line(lines).await {
                pending.extend(parse(&line));
            }
        };
        let _too_slow = timeout_at(deadline, reading).await;
        self.lines = None;
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.signal_all(Signal::KILL);
    }
}

fn spawn(trainer: &Path, process: Process) -> anyhow::Result<Child> {
    let Process { role, launch, replay, listener, log } = process;
    let log_file = append(&log)?;
    let mut command = Command::new(trainer);
    match role {
        ProcessRole::Coordinator => command.arg("coordinator").stdout(Stdio::piped()),
        ProcessRole::Worker(_) => command.arg("worker").stdout(log_file.try_clone().context("share the log file")?),
    };
    command
        .envs(launch.variables().into_iter().map(|(variable, value)| (variable.name(), value)))
        .envs(replay.map(|replay| (REPLAY, replay.to_value())))
        .env(PARENT, std::process::id().to_string())
        .stdin(listener.map_or_else(Stdio::null, Stdio::from))
        .stderr(log_file)
        // Ctrl-C on the terminal reaches only this process, because each child has its own group.
        // This process then stops the children in order.
        .process_group(0)
        .kill_on_drop(true);
    Ok(command.spawn()?)
}

fn append(log: &Path) -> anyhow::Result<File> {
    OpenOptions::new().create(true).append(true).open(log).with_context(|| format!("open the log {}", log.display()))
}

async fn next_line(lines: &mut Option<Lines<BufReader<ChildStdout>>>) -> Option<String> {
    match lines {
        // Output that is not text ends the reading, as its end does.
        Some(lines) => lines.next_line().await.ok().flatten(),
        None => None,
    }
}

fn parse(line: &str) -> Option<ProcessEvent> {
    match serde_json::from_str(line) {
        Ok(line) => Some(ProcessEvent::Line(line)),
        Err(error) => {
            tracing::debug!(line, %error, "the coordinator wrote an unknown line");
            None
        }
    }
}

fn end(status: ExitStatus) -> ProcessEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::from_code(code).map_or(ProcessEnd::Crash(code), ProcessEnd::Exit),
        (None, Some(signal)) => ProcessEnd::Signal(signal),
        (None, None) => ProcessEnd::Crash(-1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coordinators_lines_are_parsed() {
        let parsed = |line| match parse(line) {
            Some(ProcessEvent::Line(line)) => format!("{line:?}"),
            other => format!("{other:?}"),
        };
        assert_eq!(parsed(r#"{"listening":"127.0.0.1:7070"}"#), r#"Listening("127.0.0.1:7070")"#);
        assert_eq!(parsed(r#"{"joined":"lenet-worker-1"}"#), r#"Joined("lenet-worker-1")"#);
        assert_eq!(parsed(r#"{"members":["lenet-worker-1"]}"#), r#"Members(["lenet-worker-1"])"#);
        let progress = parsed(r#"{"progress":{"step":3,"totalSteps":9,"epoch":0,"generation":1,"worldSize":2}}"#);
        assert!(progress.contains("step: 3, total_steps: 9"), "{progress}");
        assert!(parsed(r#"{"ending":{"message":"out of disk"}}"#).contains("out of disk"));
        for line in ["", "warning: x", r#"{"later":1}"#] {
            assert_eq!(parsed(line), "None", "{line}");
        }
    }

    #[test]
    fn an_exit_status_is_read_by_the_launch_contract() {
        let raw = |raw| end(ExitStatus::from_raw(raw));
        assert_eq!(raw(0), ProcessEnd::Exit(Exit::Done));
        assert_eq!(raw(75 << 8), ProcessEnd::Exit(Exit::Retry));
        assert_eq!(raw(101 << 8), ProcessEnd::Crash(101));
        assert_eq!(raw(9), ProcessEnd::Signal(9));
    }
}
