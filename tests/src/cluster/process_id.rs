//! Process ids with start times. Together they name a process for good, unlike an id alone.

use std::fs;

use anyhow::Context as _;
use rustix::process::Pid;

/// Returns `ID START` of this process, by which it can be recognised later.
pub(crate) fn myself() -> anyhow::Result<String> {
    recorded(rustix::process::getpid()).context("reading this process's start time")
}

/// Returns `ID START` of a process that runs.
pub(crate) fn recorded(pid: Pid) -> Option<String> {
    Some(format!("{} {}", pid.as_raw_nonzero(), start_time(pid)?))
}

/// Returns the process of `ID START` if it still runs.
pub(crate) fn alive(recorded: &str) -> Option<Pid> {
    let (pid, start) = recorded.trim().split_once(' ')?;
    let pid = Pid::from_raw(pid.parse().ok()?)?;
    (start_time(pid)? == start).then_some(pid)
}

/// Returns the clock ticks since boot at which a process started; `None` if it is gone or only
/// waits for its parent to reap it. A process with a living thread is not gone: its ports are still
/// taken.
fn start_time(pid: Pid) -> Option<String> {
    // Fields of proc_pid_stat(5), counted from the state, which is the first after the name.
    const THREADS: usize = 17;
    const START: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ended = matches!(*fields.first()?, "Z" | "X") && fields.get(THREADS)?.parse::<u32>().ok()? <= 1;
    (!ended).then_some((*fields.get(START)?).to_owned())
}

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Duration};

    use super::{super::wait_for, *};

    #[test]
    fn a_process_is_recognised_by_its_id_and_start_time_together() {
        let recorded = myself().expect("this process");
        assert_eq!(alive(&recorded), Some(rustix::process::getpid()));
        assert_eq!(alive(&format!("{recorded}0")), None, "a later process has the same id");
    }

    #[test]
    fn an_ended_process_is_not_alive_even_before_its_parent_has_waited_for_it() {
        let mut child = Command::new("true").spawn().expect("a process");
        let pid = Pid::from_child(&child);
        wait_for("the process to end", Duration::from_secs(5), || start_time(pid).is_none()).expect("ended");
        child.wait().expect("waited for");
    }
}
