//! The processes of a job: started, heard and signalled here.

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

/// How long the coordinator's last lines may take after its end.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How long a process may take to end after SIGTERM when its job is lost anyway.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// One process to start.
pub(crate) struct Process {
    /// What it is.
    pub(crate) role: ProcessRole,
    /// Its environment.
    pub(crate) launch: Launch,
    /// What it is to repeat, if it is.
    pub(crate) replay: Option<Replay>,
    /// The control port, if it is to listen there.
    pub(crate) listener: Option<OwnedFd>,
    /// File that takes its output.
    pub(crate) log: PathBuf,
}

/// A line of the coordinator's output.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CoordinatorLine {
    /// It listens on this address.
    Listening(String),
    /// This member has joined.
    Joined(String),
    /// These belong to the group.
    Members(Vec<String>),
    /// The group changed.
    Change(Box<GroupChange>),
    /// A group that was recorded before, which may have been told.
    Found(Box<GroupChange>),
    /// A report.
    Progress(Box<Progress>),
    /// Its last words.
    Ending(Box<Ending>),
}

/// What happens next among the processes.
#[derive(Debug)]
pub(crate) enum ProcessEvent {
    /// The coordinator said something.
    Said(CoordinatorLine),
    /// A process ended.
    Ended(ProcessRole, ProcessEnd),
}

/// The processes of a job. Dropping it kills those that still run.
pub(crate) struct Children {
    running: Vec<(ProcessRole, Child)>,
    /// The coordinator's output, until it is read to its end.
    lines: Option<Lines<BufReader<ChildStdout>>>,
    /// How the coordinator ended, and by when the rest of its output is read: that comes first.
    closing: Option<(ProcessEnd, Instant)>,
    /// Heard while something else was waited for.
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

    /// Starts one more.
    pub(crate) fn add(&mut self, trainer: &Path, process: Process) -> anyhow::Result<()> {
        let role = process.role;
        let mut child = spawn(trainer, process).with_context(|| format!("start {} as {role}", trainer.display()))?;
        if let Some(stdout) = child.stdout.take() {
            self.lines = Some(BufReader::new(stdout).lines());
        }
        self.running.push((role, child));
        Ok(())
    }

    /// Whether none runs, and everything that happened was told.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.pending.is_empty() && self.closing.is_none()
    }

    /// Those that run, in the order of their numbers.
    pub(crate) fn running(&self) -> Vec<ProcessRole> {
        let mut roles: Vec<ProcessRole> = self.running.iter().map(|(role, _)| *role).collect();
        roles.sort();
        roles
    }

    /// Whether this one runs, or its end is yet to be told.
    pub(crate) fn has(&self, role: ProcessRole) -> bool {
        let closes = role == ProcessRole::Coordinator && self.closing.is_some();
        closes || self.running.iter().any(|(running, _)| *running == role)
    }

    /// Sends `signal` to one, if it runs.
    pub(crate) fn signal(&self, role: ProcessRole, signal: Signal) {
        self.signal_where(signal, |running| running == role);
    }

    /// Waits for the next happening, for ever once all have ended; may be dropped and called again.
    pub(crate) async fn next(&mut self) -> anyhow::Result<ProcessEvent> {
        loop {
            if let Some(happening) = self.pending.pop_front() {
                return Ok(happening);
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
                    Some(line) => self.pending.extend(understand(&line)),
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

    /// Whether a worker still runs.
    pub(crate) fn has_workers(&self) -> bool {
        self.running.iter().any(|(role, _)| *role != ProcessRole::Coordinator)
    }

    /// Lets the processes end by themselves for `settle`, then asks them to, then kills them. Returns what happened.
    pub(crate) async fn end_all(&mut self, settle: Duration) -> anyhow::Result<Vec<ProcessEvent>> {
        let mut heard = self.hear_for(settle).await?;
        for signal in [Signal::TERM, Signal::KILL] {
            if self.running.is_empty() {
                break;
            }
            self.signal_all(signal);
            heard.extend(self.hear_for(TERM_GRACE).await?);
        }
        Ok(heard)
    }

    async fn hear_for(&mut self, time: Duration) -> anyhow::Result<Vec<ProcessEvent>> {
        let deadline = Instant::now() + time;
        let mut heard = Vec::new();
        while !self.is_empty()
            && let Ok(happening) = timeout_at(deadline, self.next()).await
        {
            heard.push(happening?);
        }
        Ok(heard)
    }

    fn signal_where(&self, signal: Signal, wanted: impl Fn(ProcessRole) -> bool) {
        for (_, child) in self.running.iter().filter(|(role, _)| wanted(*role)) {
            // A process that was reaped has no id any more, so nobody else's can be hit.
            if let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
                let _ended_meanwhile = kill_process_group(group, signal);
            }
        }
    }

    async fn read_last_lines(&mut self, deadline: Instant) {
        let Self { lines, pending, .. } = self;
        let reading = async {
            while let Some(line) = next_line(lines).await {
                pending.extend(understand(&line));
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
        // Its own group: Ctrl-C on the terminal reaches this process alone, which then stops the children in order.
        .process_group(0)
        .kill_on_drop(true);
    Ok(command.spawn()?)
}

fn append(log: &Path) -> anyhow::Result<File> {
    OpenOptions::new().create(true).append(true).open(log).with_context(|| format!("open the log {}", log.display()))
}

async fn next_line(lines: &mut Option<Lines<BufReader<ChildStdout>>>) -> Option<String> {
    match lines {
        // Output that is no text ends the listening, as its end does.
        Some(lines) => lines.next_line().await.ok().flatten(),
        None => None,
    }
}

fn understand(line: &str) -> Option<ProcessEvent> {
    match serde_json::from_str(line) {
        Ok(said) => Some(ProcessEvent::Said(said)),
        Err(error) => {
            tracing::debug!(line, %error, "the coordinator said something else");
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
    fn the_coordinators_lines_are_understood() {
        let said = |line| match understand(line) {
            Some(ProcessEvent::Said(said)) => format!("{said:?}"),
            other => format!("{other:?}"),
        };
        assert_eq!(said(r#"{"listening":"127.0.0.1:7070"}"#), r#"Listening("127.0.0.1:7070")"#);
        assert_eq!(said(r#"{"joined":"lenet-worker-1"}"#), r#"Joined("lenet-worker-1")"#);
        assert_eq!(said(r#"{"members":["lenet-worker-1"]}"#), r#"Members(["lenet-worker-1"])"#);
        let progress = said(r#"{"progress":{"step":3,"totalSteps":9,"epoch":0,"generation":1,"worldSize":2}}"#);
        assert!(progress.contains("step: 3, total_steps: 9"), "{progress}");
        assert!(said(r#"{"ending":{"message":"out of disk"}}"#).contains("out of disk"));
        for line in ["", "warning: x", r#"{"later":1}"#] {
            assert_eq!(said(line), "None", "{line}");
        }
    }

    #[test]
    fn an_exit_status_is_read_as_the_contract_says() {
        let raw = |raw| end(ExitStatus::from_raw(raw));
        assert_eq!(raw(0), ProcessEnd::Exit(Exit::Done));
        assert_eq!(raw(75 << 8), ProcessEnd::Exit(Exit::Retry));
        assert_eq!(raw(101 << 8), ProcessEnd::Crash(101));
        assert_eq!(raw(9), ProcessEnd::Signal(9));
    }
}
