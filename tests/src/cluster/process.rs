//! Processes that may outlive the one that started them: found again by process id and start time, and marked in their
//! environment, so that none but ours is ever ended.

use std::{
    fs::{self, OpenOptions},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{state::State, wait_for};

/// Names a process's cluster by its state folder; deploy/cluster/teardown.sh ends whatever carries it.
pub(crate) const MARK: &str = "LOCKSTEP_CLUSTER";

/// How long a killed process may take to be gone.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// A name in the cluster's folder of process ids.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    state: PathBuf,
    file: PathBuf,
    log: PathBuf,
}

impl Process {
    /// The process of this name, whether it runs or not.
    pub(crate) fn named(state: &State, name: &str) -> Self {
        Self {
            state: state.folder().to_owned(),
            file: state.folder().join("pids").join(name),
            log: state.logs().join(format!("{name}.log")),
        }
    }

    /// Every process that was started and not stopped.
    pub(crate) fn all(state: &State) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(state.folder().join("pids")) else { return Vec::new() };
        entries.flatten().filter_map(|entry| Some(Self::named(state, entry.file_name().to_str()?))).collect()
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
        let start =
            start_time(pid).with_context(|| format!("{command:?} ended at once, see {}", self.log.display()))?;
        fs::write(&self.file, format!("{} {start}", pid.as_raw_nonzero()))?;
        Ok(())
    }

    /// Its process id while it runs.
    pub(crate) fn pid(&self) -> Option<Pid> {
        alive(&fs::read_to_string(&self.file).ok()?)
    }

    /// Ends it and its children at once.
    pub(crate) fn kill(&self) {
        if let Some(pid) = self.pid() {
            // It may end by itself in between, and whatever stays is found by the cluster's end.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = wait_for("its end", ENDS_WITHIN, || self.pid().is_none());
        }
        // Without the file there is nothing left to end.
        let _ = fs::remove_file(&self.file);
    }
}

/// A process by which it can be recognised later: its id and start time.
pub(crate) fn myself() -> anyhow::Result<String> {
    let pid = rustix::process::getpid();
    Ok(format!("{} {}", pid.as_raw_nonzero(), start_time(pid).context("reading this process's start time")?))
}

/// The process of `ID START`, if it still runs.
pub(crate) fn alive(recorded: &str) -> Option<Pid> {
    let (pid, start) = recorded.trim().split_once(' ')?;
    let pid = Pid::from_raw(pid.parse().ok()?)?;
    (start_time(pid)? == start).then_some(pid)
}

/// Clock ticks since boot at which a process started; `None` when it is gone or only waits for its parent to take notice. While a
/// thread of it is left it is not gone: its ports are still taken.
fn start_time(pid: Pid) -> Option<String> {
    // Fields of proc_pid_stat(5), counted from the state, the first after the name.
    const THREADS: usize = 17;
    const START: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ended = matches!(*fields.first()?, "Z" | "X") && fields.get(THREADS)?.parse::<u32>().ok()? <= 1;
    (!ended).then_some((*fields.get(START)?).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_recognised_by_its_id_and_start_time_together() {
        let recorded = myself().expect("this process");
        assert_eq!(alive(&recorded), Some(rustix::process::getpid()));
        assert_eq!(alive(&format!("{recorded}0")), None, "the id is taken by a later process");
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_is_not_alive() {
        let mut child = Command::new("true").spawn().expect("a process");
        let pid = Pid::from_child(&child);
        wait_for("the process to end", ENDS_WITHIN, || start_time(pid).is_none()).expect("ended");
        child.wait().expect("waited for");
    }
}
