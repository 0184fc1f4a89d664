//! What follows when a process of the job has ended: values in, values out.

use std::{fmt, time::Duration};

use lockstep_launch::Exit;

/// Pause before the second restart; every further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// Longest pause before a restart.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// Processes that others ended in a row, without a step between, before the job fails: it never comes to one.
const FRUITLESS_LIMIT: u32 = 20;
/// Signals by which others end a process: by hand, for want of memory, or as a test.
const FROM_OUTSIDE: [i32; 2] = [9, 15];

/// One process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProcessRole {
    /// Forms the group and keeps its record.
    Coordinator,
    /// Trains; the number is the one in its name.
    Worker(u32),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// With an exit code of the launch contract.
    Exit(Exit),
    /// With any other exit code.
    Crash(i32),
    /// Killed by this signal.
    Signal(i32),
    /// Killed by the kernel for want of memory.
    OutOfMemory,
}

/// The one of several ends, in the order in which they were seen, that explains the others. A
/// process that cannot go on for now may have lost one that crashed, and be seen to end before it.
pub(crate) fn first_cause<T>(ends: Vec<T>, end: impl Fn(&T) -> ProcessEnd) -> Option<T> {
    let follows = |end: ProcessEnd| match end {
        ProcessEnd::Crash(_) | ProcessEnd::OutOfMemory | ProcessEnd::Exit(Exit::Fatal) => 0,
        ProcessEnd::Signal(_) => 1,
        ProcessEnd::Exit(Exit::Retry) => 2,
        ProcessEnd::Exit(Exit::Drained | Exit::Done) => 3,
    };
    // Of equal ones the first is taken.
    ends.into_iter().min_by_key(|ended| follows(end(ended)))
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing: it is done, or was to go.
    Nothing,
    /// A new process takes its place after a pause; the others go on.
    Restart {
        /// Pause before the start.
        delay: Duration,
    },
    /// The job has failed because of it.
    Fail(GiveUp),
}

/// GiveUp there is no further start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// It would end in the same way.
    Fatal,
    /// So many were allowed.
    Limit(u32),
    /// The job does no step any more.
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

/// Whether a process is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The job is not done.
    Yes,
    /// It was told to go, or the last step is done and its results are stored.
    No,
}

/// Who has the state of a job when one of its processes has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    /// Other workers, which train on.
    Others,
    /// Other workers, to which this one had yet to come.
    OthersBefore,
    /// Nobody that runs.
    Nobody,
}

/// How often processes were started again. What several processes do one after another without a step between, each once, is one
/// incident: one of them took the others with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restarts {
    /// Incidents that began with a process that ended by itself.
    faults: u32,
    /// Those that began with a process that others ended, without a step since.
    fruitless: u32,
    /// How often in a row workers that were to come could not, for now, while others held the state.
    awaited: u32,
    /// Of these, how often without a step since.
    stood: u32,
    /// Whether a step was done since the last incident began.
    stepped: bool,
    /// Who has ended in the newest incident.
    incident: Vec<ProcessRole>,
}

impl Restarts {
    /// A step was done: what others did to the job is behind it.
    pub(crate) fn progressed(&mut self) {
        (self.fruitless, self.stood, self.stepped) = (0, 0, true);
        self.incident.clear();
    }

    /// Whoever was to come has.
    pub(crate) fn joined(&mut self) {
        self.awaited = 0;
    }

    /// Decides when a process has ended, with `limit` restarts allowed. What a worker cannot do fails the job at once where nobody trains on.
    pub(crate) fn next(
        &mut self,
        role: ProcessRole,
        end: ProcessEnd,
        wanted: Wanted,
        holders: Holders,
        limit: u32,
    ) -> Decision {
        let has_yet_to_come = matches!(role, ProcessRole::Worker(_)) && holders == Holders::OthersBefore;
        if has_yet_to_come && wanted == Wanted::Yes && end == ProcessEnd::Exit(Exit::Retry) {
            self.awaited += 1;
            self.stood += 1;
            return match self.stood > FRUITLESS_LIMIT {
                true => Decision::Fail(GiveUp::Fruitless),
                false => Decision::Restart { delay: delay(self.awaited + 1) },
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
            // What did steps before may do them again, once its neighbours leave it the memory.
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
    fn what_follows_an_end() {
        let again = Decision::Restart { delay: Duration::ZERO };
        for (situation, end, wanted, expected) in [
            ("killed", KILLED, Wanted::Yes, again),
            ("crashed", CRASH, Wanted::Yes, again),
            ("its storage was away", RETRY, Wanted::Yes, again),
            ("told to stop by others", ProcessEnd::Exit(Exit::Drained), Wanted::Yes, again),
            ("told to go by us", ProcessEnd::Exit(Exit::Drained), Wanted::No, Decision::Nothing),
            ("killed after the results were stored", KILLED, Wanted::No, Decision::Nothing),
            ("done", ProcessEnd::Exit(Exit::Done), Wanted::Yes, Decision::Nothing),
            ("bad input", ProcessEnd::Exit(Exit::Fatal), Wanted::Yes, Decision::Fail(GiveUp::Fatal)),
            (
                "bad input of one that was told to go",
                ProcessEnd::Exit(Exit::Fatal),
                Wanted::No,
                Decision::Fail(GiveUp::Fatal),
            ),
        ] {
            assert_eq!(at_first(end, wanted, 3), expected, "{situation}");
        }
    }

    #[test]
    fn a_worker_that_cannot_go_on_fails_no_job_that_others_train() {
        const REFUSED: ProcessEnd = ProcessEnd::Exit(Exit::Fatal);
        let next = |role, wanted| Restarts::default().next(role, REFUSED, wanted, Holders::Others, 1);
        assert_eq!(next(W0, Wanted::Yes), Decision::Restart { delay: Duration::ZERO });
        assert_eq!(next(W0, Wanted::No), Decision::Nothing);
        assert_eq!(next(C, Wanted::Yes), Decision::Fail(GiveUp::Fatal), "it has heard that from a member");
        let mut restarts = Restarts::default();
        restarts.next(W0, REFUSED, Wanted::Yes, Holders::Others, 1);
        assert_eq!(restarts.next(W0, REFUSED, Wanted::Yes, Holders::Others, 1), Decision::Fail(GiveUp::Limit(1)));
    }

    #[test]
    fn workers_that_cannot_come_for_now_are_tried_again_for_as_long_as_the_others_do_steps() {
        let next = |restarts: &mut Restarts, role| restarts.next(role, RETRY, Wanted::Yes, Holders::OthersBefore, 0);
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
        for (role, holders) in [(W1, Holders::Others), (W1, Holders::Nobody), (C, Holders::OthersBefore)] {
            let next = Restarts::default().next(role, RETRY, Wanted::Yes, holders, 0);
            assert_eq!(next, Decision::Fail(GiveUp::Limit(0)), "{role}, {holders:?}");
        }
    }

    #[test]
    fn the_limit_counts_what_the_processes_did_themselves() {
        let mut restarts = Restarts::default();
        for _ in 0..2 {
            assert!(matches!(restarts.next(W0, CRASH, Wanted::Yes, Holders::Nobody, 2), Decision::Restart { .. }));
            restarts.progressed();
        }
        assert_eq!(restarts.next(W0, CRASH, Wanted::Yes, Holders::Nobody, 2), Decision::Fail(GiveUp::Limit(2)));
        assert_eq!(at_first(CRASH, Wanted::Yes, 0), Decision::Fail(GiveUp::Limit(0)));
    }

    #[test]
    fn what_one_process_does_to_the_others_counts_once() {
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
    fn one_that_the_kernel_kills_for_want_of_memory_counts_unless_steps_were_done() {
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
    fn the_first_cause_is_one_that_others_follow_from() {
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
    fn what_others_did_counts_until_there_is_a_step_again() {
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
