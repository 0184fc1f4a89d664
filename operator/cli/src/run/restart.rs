//! What follows when the processes of an attempt have ended: values in, values out.

use std::{fmt, time::Duration};

use lockstep_launch::Exit;

/// Pause before the second restart; every further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// Longest pause before a restart.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// One process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Forms the group and keeps its record.
    Coordinator,
    /// Trains; the number is the one in its name.
    Worker(u32),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With an exit code of the launch contract.
    Exit(Exit),
    /// With any other exit code.
    Crash(i32),
    /// Killed by this signal.
    Signal(i32),
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The job is complete.
    Complete,
    /// Start every process anew after a pause, from the newest checkpoint, because of the process named.
    Restart {
        /// The process that was lost first.
        lost: Role,
        /// How it ended.
        end: End,
        /// Pause before the start.
        delay: Duration,
    },
    /// The job has failed because of the process named.
    Fail {
        /// The process whose end decided it.
        lost: Role,
        /// How it ended.
        end: End,
    },
}

/// Decides after `restarts` restarts of `limit`, when the processes ended as listed, in the order in which they did.
pub(crate) fn next(ended: &[(Role, End)], restarts: u32, limit: u32) -> Next {
    let mut workers = ended.iter().filter(|(role, _)| *role != Role::Coordinator).peekable();
    let (lost, end) = match cause(ended) {
        None => return Next::Complete,
        Some(cause) => cause,
    };
    if end == End::Exit(Exit::Fatal) {
        return Next::Fail { lost, end };
    }
    // The results are stored once every worker is done; a coordinator that is lost later loses nothing.
    if workers.peek().is_some() && workers.all(|(_, end)| *end == End::Exit(Exit::Done)) {
        return Next::Complete;
    }
    if restarts >= limit {
        return Next::Fail { lost, end };
    }
    Next::Restart { lost, end, delay: delay(restarts) }
}

/// The end that explains the others: bad input before a crash, a crash before what its peers did about it.
fn cause(ended: &[(Role, End)]) -> Option<(Role, End)> {
    let weight = |end: End| match end {
        End::Exit(Exit::Fatal) => 3,
        End::Crash(_) | End::Signal(_) => 2,
        End::Exit(Exit::Retry | Exit::Drained) => 1,
        End::Exit(Exit::Done) => 0,
    };
    let heaviest = ended.iter().map(|(_, end)| weight(*end)).max().filter(|weight| *weight > 0)?;
    ended.iter().find(|(_, end)| weight(*end) == heaviest).copied()
}

fn delay(restarts: u32) -> Duration {
    match restarts.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_DELAY.saturating_mul(2_u32.saturating_pow(doublings)).min(MAX_DELAY),
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("the coordinator"),
            Self::Worker(index) => write!(f, "worker {index}"),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(Exit::Done) => f.write_str("is done"),
            Self::Exit(Exit::Retry) => f.write_str("lost a peer"),
            Self::Exit(Exit::Drained) => f.write_str("was told to stop"),
            Self::Exit(Exit::Fatal) => f.write_str("cannot go on"),
            Self::Crash(code) => write!(f, "crashed with exit code {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: End = End::Exit(Exit::Done);
    const RETRY: End = End::Exit(Exit::Retry);
    const FATAL: End = End::Exit(Exit::Fatal);
    const KILLED: End = End::Signal(9);
    const C: Role = Role::Coordinator;
    const W0: Role = Role::Worker(0);
    const W1: Role = Role::Worker(1);

    #[test]
    fn the_end_that_explains_the_others_decides() {
        let restart = |lost, end| Next::Restart { lost, end, delay: Duration::ZERO };
        let cases = [
            ("all are done", vec![(W0, DONE), (W1, DONE), (C, DONE)], Next::Complete),
            ("a peer noticed first", vec![(W0, RETRY), (W1, KILLED), (C, RETRY)], restart(W1, KILLED)),
            ("only peers lost", vec![(C, RETRY), (W0, RETRY), (W1, RETRY)], restart(C, RETRY)),
            ("a panic", vec![(W0, End::Crash(101)), (W1, RETRY)], restart(W0, End::Crash(101))),
            ("bad input", vec![(W1, KILLED), (W0, FATAL), (C, DONE)], Next::Fail { lost: W0, end: FATAL }),
            (
                "one was stopped from outside",
                vec![(W0, End::Exit(Exit::Drained)), (W1, RETRY), (C, DONE)],
                restart(W0, End::Exit(Exit::Drained)),
            ),
            ("the coordinator is lost after the results", vec![(W0, DONE), (W1, DONE), (C, KILLED)], Next::Complete),
            ("the coordinator is lost before", vec![(C, KILLED), (W0, RETRY), (W1, RETRY)], restart(C, KILLED)),
        ];
        for (situation, ended, expected) in cases {
            assert_eq!(next(&ended, 0, 3), expected, "{situation}");
        }
    }

    #[test]
    fn the_limit_counts_restarts() {
        let ended = [(W1, KILLED)];
        assert!(matches!(next(&ended, 2, 3), Next::Restart { .. }));
        assert_eq!(next(&ended, 3, 3), Next::Fail { lost: W1, end: KILLED });
        assert_eq!(next(&ended, 0, 0), Next::Fail { lost: W1, end: KILLED });
    }

    #[test]
    fn every_restart_waits_longer_up_to_a_limit() {
        let delays = [0, 1, 2, 3, 40].map(|restarts| delay(restarts).as_millis());
        assert_eq!(delays, [0, 500, 1000, 2000, 10_000]);
    }
}
