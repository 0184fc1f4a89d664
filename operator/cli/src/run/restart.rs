//! Decides what follows when a process of the job has ended.

use std::{fmt, time::Duration};

use lockstep_launch::Exit;

/// Pause before the second restart. Every further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// Longest pause before a restart.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// Ends from outside in a row, without a step between them, that a job survives.
const FRUITLESS_LIMIT: u32 = 20;
/// Signals by which others end a process: by hand, because memory ran out, or as a test.
const FROM_OUTSIDE: [i32; 2] = [9, 15];

/// One process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProcessRole {
    /// Forms the group and keeps its record.
    Coordinator,
    /// Trains. The number is the one in its name.
    Worker(u32),
}

/// The way in which a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// With an exit code of the launch contract.
    Exit(Exit),
    /// With any other exit code.
    Crash(i32),
    /// Killed by this signal.
    Signal(i32),
    /// Killed by the kernel because memory ran out.
    OutOfMemory,
}

/// Returns the end that explains the others, out of ends in the order in which they were seen. A
/// process that cannot go on for now may have lost one that crashed, and may still be seen to end
/// before it.
pub(crate) fn first_cause<T>(ends: Vec<T>, end: impl Fn(&T) -> ProcessEnd) -> Option<T> {
    let depth = |end: ProcessEnd| match end {
        ProcessEnd::Crash(_) | ProcessEnd::OutOfMemory | ProcessEnd::Exit(Exit::Fatal) => 0,
        ProcessEnd::Signal(_) => 1,
        ProcessEnd::Exit(Exit::Retry) => 2,
        ProcessEnd::Exit(Exit::Drained | Exit::Done) => 3,
    };
    // The first of equal ends is taken.
    ends.into_iter().min_by_key(|ended| depth(end(ended)))
}

/// The decision after an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing: the process is done, or was asked to leave.
    Nothing,
    /// A new process takes its place after a pause, and the others go on.
    Restart {
        /// Pause before the start.
        delay: Duration,
    },
    /// The job has failed because of this end.
    Fail(GiveUp),
}

/// The reason to start no further process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// It would end in the same way.
    Fatal,
    /// The allowed number of restarts is used up.
    Limit(u32),
    /// The job does no steps any more.
    Fruitless,
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fatal => Ok(()),
            Self::Limit(limit) => {
                write!(f, ", after {limit} of {limit} restarts (spec.failurePolicy.backoffLimit)")
            }
            Self::Fruitless => write!(f, ", after {FRUITLESS_LIMIT} restarts without a step"),
        }
    }
}

/// The need for a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The job is not done.
    Yes,
    /// It was asked to leave, or the last step is done and its results are stored.
    No,
}

/// The holders of a job's state when one of its processes has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    /// Other workers, which train on.
    Others,
    /// Other workers, which this one had not joined yet.
    OthersNotJoined,
    /// No running process.
    Nobody,
}

/// Counts restarts. The ends of several processes, one after another and each once, without a step
/// between them, are one incident: one of them caused the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restarts {
    /// Incidents that began with a process that ended by itself.
    faults: u32,
    /// Incidents since the last step that began with an end from outside.
    fruitless: u32,
    /// Failures in a row of workers to join, while others held the state.
    failed_joins: u32,
    /// Failed joins since the last step.
    failed_joins_since_step: u32,
    /// True if a step was done since the last incident began.
    stepped: bool,
    /// Processes that have ended in the newest incident.
    incident: Vec<ProcessRole>,
}

impl Restarts {
    /// Records a step: ends from outside before it no longer count.
    pub(crate) fn progressed(&mut self) {
        (self.fruitless, self.failed_joins_since_step, self.stepped) = (0, 0, true);
        self.incident.clear();
    }

    /// Records that the workers have joined.
    pub(crate) fn joined(&mut self) {
        self.failed_joins = 0;
    }

    /// Decides after the end of a process, with `limit` restarts allowed. A worker's fatal end
    /// fails the job at once if no other worker trains on.
    pub(crate) fn next(
        &mut self,
        role: ProcessRole,
        end: ProcessEnd,
        wanted: Wanted,
        holders: Holders,
        limit: u32,
    ) -> Decision {
        let has_yet_to_join = matches!(role, ProcessRole::Worker(_)) && holders == Holders::OthersNotJoined;
        if has_yet_to_join && wanted == Wanted::Yes && end == ProcessEnd::Exit(Exit::Retry) {
            self.failed_joins += 1;
            self.failed_joins_since_step += 1;
            return match self.failed_joins_since_step > FRUITLESS_LIMIT {
                true => Decision::Fail(GiveUp::Fruitless),
                false => Decision::Restart { delay: delay(self.failed_joins + 1) },
            };
        }
        let from_outside = match end {
            ProcessEnd::Exit(Exit::Fatal) if holders == Holders::Nobody || role == ProcessRole::Coordinator => {
                return Decision::Fail(GiveUp::Fatal);
            }
            ProcessEnd::Exit(Exit::Done) => return Decision::Nothing,
            _ if wanted == Wanted::No => return Decision::Nothing,
            ProcessEnd::Exit(Exit::Drained) => true,
            ProcessEnd::Signal(signal) => FROM_OUTSIDE.contains(&signal),
            // A process that did steps before may do them again, once its neighbours leave it the
            // memory.
            ProcessEnd::OutOfMemory => self.stepped,
            ProcessEnd::Exit(Exit::Retry | Exit::Fatal) | ProcessEnd::Crash(_) => false,
        };
        if self.incident.is_empty() || self.incident.contains(&role) {
            self.incident.clear();
            self.stepped = false;
            *if from_outside { &mut self.fruitless } else { &mut self.faults } += 1;
        }
        self.incident.push(role);
        if self.faults > limit {
            return Decision::Fail(GiveUp::Limit(limit));
        }
        if self.fruitless > FRUITLESS_LIMIT {
            return Decision::Fail(GiveUp::Fruitless);
        }
        Decision::Restart { delay: delay(self.faults + self.fruitless) }
    }
}

fn delay(restarts: u32) -> Duration {
    match restarts.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_DELAY.saturating_mul(2_u32.saturating_pow(doublings)).min(MAX_DELAY),
    }
}

impl fmt::Display for ProcessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("the coordinator"),
            Self::Worker(index) => write!(f, "worker {index}"),
        }
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(Exit::Done) => f.write_str("is done"),
            Self::Exit(Exit::Retry) => f.write_str("cannot go on for now"),
            Self::Exit(Exit::Drained) => f.write_str("was told to stop"),
            Self::Exit(Exit::Fatal) => f.write_str("cannot go on"),
            Self::Crash(code) => write!(f, "crashed with exit code {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::OutOfMemory => f.write_str("was killed by the kernel, for want of memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: ProcessEnd = ProcessEnd::Exit(Exit::Retry);
    const CRASH: ProcessEnd = ProcessEnd::Crash(101);
    const KILLED: ProcessEnd = ProcessEnd::Signal(9);

    const C: ProcessRole = ProcessRole::Coordinator;
    const W0: ProcessRole = ProcessRole::Worker(0);
    const W1: ProcessRole = ProcessRole::Worker(1);

    fn at_first(end: ProcessEnd, wanted: Wanted, limit: u32) -> Decision {
        Restarts::default().next(W0, end, wanted, Holders::Nobody, limit)
    }

    #[test]
    fn the_decision_follows_from_the_end() {
        let again = Decision::Restart { delay: Duration::ZERO };
        for (situation, end, wanted, expected) in [
            ("killed", KILLED, Wanted::Yes, again),
            ("crashed", CRASH, Wanted::Yes, again),
            ("its storage was unreachable", RETRY, Wanted::Yes, again),
            ("asked to stop from outside", ProcessEnd::Exit(Exit::Drained), Wanted::Yes, again),
            ("asked to leave by the run itself", ProcessEnd::Exit(Exit::Drained), Wanted::No, Decision::Nothing),
            ("killed after the results were stored", KILLED, Wanted::No, Decision::Nothing),
            ("done", ProcessEnd::Exit(Exit::Done), Wanted::Yes, Decision::Nothing),
            ("bad input", ProcessEnd::Exit(Exit::Fatal), Wanted::Yes, Decision::Fail(GiveUp::Fatal)),
            (
                "bad input of a worker that was asked to leave",
                ProcessEnd::Exit(Exit::Fatal),
                Wanted::No,
                Decision::Fail(GiveUp::Fatal),
            ),
        ] {
            assert_eq!(at_first(end, wanted, 3), expected, "{situation}");
        }
    }

    #[test]
    fn a_workers_fatal_end_fails_no_job_that_others_train() {
        const REFUSED: ProcessEnd = ProcessEnd::Exit(Exit::Fatal);
        let next = |role, wanted| Restarts::default().next(role, REFUSED, wanted, Holders::Others, 1);
        assert_eq!(next(W0, Wanted::Yes), Decision::Restart { delay: Duration::ZERO });
        assert_eq!(next(W0, Wanted::No), Decision::Nothing);
        assert_eq!(next(C, Wanted::Yes), Decision::Fail(GiveUp::Fatal), "it reports the end of a member");
        let mut restarts = Restarts::default();
        restarts.next(W0, REFUSED, Wanted::Yes, Holders::Others, 1);
        assert_eq!(restarts.next(W0, REFUSED, Wanted::Yes, Holders::Others, 1), Decision::Fail(GiveUp::Limit(1)));
    }

    #[test]
    fn workers_that_cannot_join_are_tried_again_while_the_others_do_steps() {
        let next = |restarts: &mut Restarts, role| restarts.next(role, RETRY, Wanted::Yes, Holders::OthersNotJoined, 0);
        let mut restarts = Restarts::default();
        for (role, seconds) in [W0, W1].into_iter().cycle().zip([0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]) {
            assert_eq!(next(&mut restarts, role), Decision::Restart { delay: Duration::from_secs_f64(seconds) });
        }
        restarts.joined();
        restarts.progressed();
        for _ in 0..FRUITLESS_LIMIT {
            assert!(matches!(next(&mut restarts, W1), Decision::Restart { .. }));
        }
        assert_eq!(next(&mut restarts, W1), Decision::Fail(GiveUp::Fruitless), "no step since");
        for (role, holders) in [(W1, Holders::Others), (W1, Holders::Nobody), (C, Holders::OthersNotJoined)] {
            let next = Restarts::default().next(role, RETRY, Wanted::Yes, holders, 0);
            assert_eq!(next, Decision::Fail(GiveUp::Limit(0)), "{role}, {holders:?}");
        }
    }

    #[test]
    fn the_limit_counts_ends_that_processes_caused_themselves() {
        let mut restarts = Restarts::default();
        for _ in 0..2 {
            assert!(matches!(restarts.next(W0, CRASH, Wanted::Yes, Holders::Nobody, 2), Decision::Restart { .. }));
            restarts.progressed();
        }
        assert_eq!(restarts.next(W0, CRASH, Wanted::Yes, Holders::Nobody, 2), Decision::Fail(GiveUp::Limit(2)));
        assert_eq!(at_first(CRASH, Wanted::Yes, 0), Decision::Fail(GiveUp::Limit(0)));
    }

    #[test]
    fn ends_that_one_process_causes_count_once() {
        let mut restarts = Restarts::default();
        for role in [W0, W1, C] {
            assert!(
                matches!(restarts.next(role, RETRY, Wanted::Yes, Holders::Nobody, 1), Decision::Restart { .. }),
                "{role}"
            );
        }
        assert_eq!(
            restarts.next(W1, RETRY, Wanted::Yes, Holders::Nobody, 1),
            Decision::Fail(GiveUp::Limit(1)),
            "the same process again"
        );
    }

    #[test]
    fn an_out_of_memory_kill_counts_unless_steps_were_done() {
        let next =
            |restarts: &mut Restarts| restarts.next(W0, ProcessEnd::OutOfMemory, Wanted::Yes, Holders::Nobody, 1);
        let mut restarts = Restarts::default();
        assert!(matches!(next(&mut restarts), Decision::Restart { .. }));
        assert_eq!(next(&mut restarts), Decision::Fail(GiveUp::Limit(1)), "a second time without a step");
        let mut restarts = Restarts::default();
        for _ in 0..3 {
            restarts.progressed();
            assert!(matches!(next(&mut restarts), Decision::Restart { .. }), "it did steps before");
        }
    }

    #[test]
    fn the_first_cause_explains_the_other_ends() {
        for (ends, cause) in [
            (vec![(W1, RETRY), (W0, CRASH)], W0),
            (vec![(C, RETRY), (W1, ProcessEnd::OutOfMemory), (W0, CRASH)], W1),
            (vec![(W0, KILLED), (W1, RETRY)], W0),
            (vec![(W1, RETRY), (W0, RETRY)], W1),
            (vec![(C, ProcessEnd::Exit(Exit::Drained)), (W1, ProcessEnd::Exit(Exit::Fatal))], W1),
        ] {
            assert_eq!(first_cause(ends.clone(), |(_, end)| *end).map(|(role, _)| role), Some(cause), "{ends:?}");
        }
    }

    #[test]
    fn ends_from_outside_count_until_the_next_step() {
        let mut restarts = Restarts::default();
        for _ in 0..3 {
            for _ in 0..FRUITLESS_LIMIT {
                assert!(matches!(restarts.next(W0, KILLED, Wanted::Yes, Holders::Nobody, 0), Decision::Restart { .. }));
            }
            restarts.progressed();
        }
        for _ in 0..FRUITLESS_LIMIT {
            restarts.next(W0, KILLED, Wanted::Yes, Holders::Nobody, 0);
        }
        assert_eq!(restarts.next(W0, KILLED, Wanted::Yes, Holders::Nobody, 0), Decision::Fail(GiveUp::Fruitless));
    }

    #[test]
    fn every_restart_waits_longer_up_to_a_limit() {
        let delays = [1, 2, 3, 4, 40].map(|restarts| delay(restarts).as_millis());
        assert_eq!(delays, [0, 500, 1000, 2000, 10_000]);
    }
}
