//! Processes that outlive the one that started them: found again by process id and start time, so that none but ours is killed.

use std::{
    fs::{self, OpenOptions},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::wait_for;

/// How long a process may take to end after TERM.
const PATIENCE: Duration = Duration::from_secs(5);

/// A name in the cluster's folder of process ids.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    file: PathBuf,
    log: PathBuf,
}

impl Process {
    /// The process of this name in a cluster's state folder, whether it runs or not.
    pub(crate) fn named(state: &Path, name: &str) -> Self {
        Self { file: state.join("pids").join(name), log: state.join("log").join(format!("{name}.log")) }
    }

    /// Every process that was ever started there.
    pub(crate) fn all(state: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(state.join("pids")) else { return Vec::new() };
        entries.flatten().filter_map(|entry| Some(Self::named(state, entry.file_name().to_str()?))).collect()
    }

    /// Starts it in a process group of its own, unless it runs.
    pub(crate) fn start(&self, command: &mut Command) -> anyhow::Result<()> {
        if self.pid().is_some() {
            return Ok(());
        }
        for path in [&self.file, &self.log] {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let pid = Pid::from_child(&child);
        let start = start_time(pid).with_context(|| format!("{command:?} ended at once, see {}", self.log.display()))?;
        fs::write(&self.file, format!("{} {start}", pid.as_raw_nonzero()))?;
        Ok(())
    }

    /// Its process id while it runs.
    pub(crate) fn pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(&self.file).ok()?;
        let (pid, start) = text.split_once(' ')?;
        let pid = Pid::from_raw(pid.parse().ok()?)?;
        (start_time(pid)? == start).then_some(pid)
    }

    /// Ends it: TERM, and KILL when that takes too long.
    pub(crate) fn stop(&self) {
        self.end(Signal::TERM);
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        self.end(Signal::KILL);
    }

    fn end(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may end by itself in between.
            let _ = kill_process(pid, signal);
            if wait_for("its end", PATIENCE, || self.pid().is_none()).is_err() {
                let _ = kill_process(pid, Signal::KILL);
                let _ = wait_for("its end", PATIENCE, || self.pid().is_none());
            }
        }
        // Without the file there is nothing left to stop.
        let _ = fs::remove_file(&self.file);
    }
}

/// Clock ticks since boot at which a process started; `None` when it is gone or only waits for its parent to take notice.
fn start_time(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.nth(18).map(str::to_owned))?
}
