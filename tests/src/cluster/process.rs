//! Processes that may outlive the one that started them.
//!
//! They are found again by process id and start time. A mark in their environment ensures that only
//! the cluster's own processes are ever ended.

use std::{
    fs::{self, OpenOptions},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    process_id::{alive, recorded},
    state::State,
    wait_for,
};

/// The variable that names a process's cluster by its state folder. deploy/cluster/teardown.sh ends
/// every process that has it.
pub(crate) const MARK: &str = "LOCKSTEP_CLUSTER";

/// How long a killed process may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// A process with a name in the cluster's folder of process ids.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    state: PathBuf,
    file: PathBuf,
    log: PathBuf,
}

impl Process {
    /// Returns the process of this name. It may or may not run.
    pub(crate) fn named(state: &State, name: &str) -> Self {
        Self {
            state: state.folder().to_owned(),
            file: state.folder().join("pids").join(name),
            log: state.logs().join(format!("{name}.log")),
        }
    }

    /// Returns every process that was started and not stopped.
    fn all(state: &State) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(state.folder().join("pids")) else { return Vec::new() };
        entries.flatten().filter_map(|entry| Some(Self::named(state, entry.file_name().to_str()?))).collect()
    }

    /// Returns true if a process of the cluster runs.
    pub(crate) fn any_runs(state: &State) -> bool {
        Self::all(state).iter().any(|process| process.pid().is_some())
    }

    /// Starts it in a session of its own, unless it runs.
    pub(crate) fn start(&self, command: &Command) -> anyhow::Result<()> {
        if self.pid().is_some() {
            return Ok(());
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("opening {}", self.log.display()))?;
        let mut session = Command::new("setsid");
        session.arg(command.get_program()).args(command.get_args()).current_dir("/").env(MARK, &self.state);
        for (name, value) in command.get_envs() {
            session.env(name, value.unwrap_or_default());
        }
        let child = session
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let pid = Pid::from_child(&child);
        let started =
            recorded(pid).with_context(|| format!("{command:?} ended at once, see {}", self.log.display()))?;
        fs::write(&self.file, started)?;
        Ok(())
    }

    /// Returns its process id while it runs.
    pub(crate) fn pid(&self) -> Option<Pid> {
        alive(&fs::read_to_string(&self.file).ok()?)
    }

    /// Ends it and its children at once.
    pub(crate) fn kill(&self) {
        if let Some(pid) = self.pid() {
            // It may end by itself in between. The cluster's end finds any process that stays.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = wait_for("the process to end", ENDS_WITHIN, || self.pid().is_none());
        }
        // Without the file, there is no process to end.
        let _ = fs::remove_file(&self.file);
    }
}
