//! Decides what follows when a process of the job has ended, by the rules that the operator follows
//! too.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use lockstep_launch::Exit;
use lockstep_lifecycle::{
    Ended, Failures, JobFailure, Limits, Loss, Pauses, Replacement, Role, Seen, Standing, Status, WorkerEnd,
    is_forgiven, is_training,
};

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
    /// Killed because the user asked for chaos.
    Chaos,
}

impl ProcessEnd {
    /// The end in the words of the policy.
    fn of_worker(self) -> WorkerEnd {
        let status = |status| Some(Ended { status: Some(status), word: None });
        let (ended, disrupted) = match self {
            Self::Exit(exit) => (status(Status::Code(exit.code().into())), None),
            Self::Crash(code) => (status(Status::Code(code)), None),
            Self::Signal(signal) => (status(Status::Signal(signal)), None),
            Self::OutOfMemory => (Some(WorkerEnd::out_of_memory()), None),
            Self::Chaos => (None, Some("Chaos")),
        };
        WorkerEnd::of(&Seen { ended, disrupted, is_deleted: false }).unwrap_or(WorkerEnd::Crash)
    }
}

/// Returns the end that explains the others, out of ends in the order in which they were seen. A
/// process that cannot go on for now may have lost one that crashed, and may still be seen to end
/// before it.
pub(crate) fn first_cause<T>(ends: Vec<T>, end: impl Fn(&T) -> ProcessEnd) -> Option<T> {
    // The first of equal ends is taken.
    ends.into_iter().min_by_key(|ended| end(ended).of_worker().depth())
}

/// The decision after an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing: the process is done, or was asked to leave.
    Nothing,
    /// A new process takes its place after a pause, and the others go on.
    Restart {
        /// Pause before the start.
        pause: SignedDuration,
    },
    /// The job has failed because of this end.
    Fail(JobFailure),
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

/// The losses of a run, and its limits.
#[derive(Clone, Debug)]
pub(crate) struct Restarts {
    limits: Limits,
    failures: Failures,
    /// The newest loss of a worker: its time, and the furthest step before it.
    last: Option<(Timestamp, u64)>,
    /// The furthest reported step.
    step: u64,
    /// The time of the newest report.
    reported: Option<Timestamp>,
}

impl Restarts {
    /// Begins to count.
    pub(crate) fn within(limits: Limits) -> Self {
        Self { limits, failures: Failures::default(), last: None, step: 0, reported: None }
    }

    /// Records a report of this step.
    pub(crate) fn reported(&mut self, step: u64, now: Timestamp) {
        self.step = self.step.max(step);
        self.reported = Some(now);
        if self.last.is_some_and(|(lost_at, furthest)| is_forgiven(lost_at, furthest, self.step, now)) {
            self.failures.count = 0;
        }
    }

    /// Records that a worker has joined.
    pub(crate) fn joined(&mut self, worker: u32) {
        self.failures.joined(worker);
    }

    /// Decides after the end of a process that lived for so long.
    pub(crate) fn next(
        &mut self,
        role: ProcessRole,
        end: ProcessEnd,
        wanted: Wanted,
        holders: Holders,
        lived: SignedDuration,
        now: Timestamp,
    ) -> Decision {
        let end = end.of_worker();
        let part = match role {
            ProcessRole::Coordinator => Role::Coordinator,
            ProcessRole::Worker(_) => Role::Worker,
        };
        if end.fails_the_job(part, holders != Holders::Nobody) {
            return Decision::Fail(JobFailure::InvalidInput);
        }
        if end == WorkerEnd::Done || wanted == Wanted::No {
            return Decision::Nothing;
        }
        let pauses = Pauses::OF_PROCESSES;
        let ProcessRole::Worker(worker) = role else {
            return Decision::Restart { pause: pauses.after_short_life(lived) };
        };
        let standing = match holders {
            Holders::Others => Standing::Member,
            Holders::OthersNotJoined if is_training(self.reported, now) => Standing::Newcomer,
            Holders::OthersNotJoined | Holders::Nobody => Standing::Awaited,
        };
        let loss = Loss { worker, end, standing, lived: Some(lived) };
        let Replacement { pause, .. } = self.failures.lost(&loss, &pauses, now);
        self.last = Some((now, self.step));
        match self.limits.after(self.failures.count) {
            Some(failure) => Decision::Fail(failure),
            None => Decision::Restart { pause },
        }
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
            Self::Chaos => f.write_str("was killed by chaos"),
            Self::OutOfMemory => f.write_str("was killed by the kernel, for want of memory"),
        }
    }
}

#[cfg(test)]
#[path = "../../../lifecycle/tests/endings/mod.rs"]
mod endings;

#[cfg(test)]
mod tests {
    use super::{
        endings::{How, Moment, Outcome, SECONDS_BETWEEN, Scenario, WORKERS, Who},
        *,
    };

    const RETRY: ProcessEnd = ProcessEnd::Exit(Exit::Retry);
    const CRASH: ProcessEnd = ProcessEnd::Crash(101);
    const KILLED: ProcessEnd = ProcessEnd::Signal(9);
    const LONG: SignedDuration = SignedDuration::from_secs(100);

    const C: ProcessRole = ProcessRole::Coordinator;
    const W0: ProcessRole = ProcessRole::Worker(0);
    const W1: ProcessRole = ProcessRole::Worker(1);

    fn restarts(backoff_limit: u32) -> Restarts {
        Restarts::within(Limits { backoff_limit, active_deadline_seconds: None, startup_timeout_seconds: 600 })
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn a_run_follows_the_table_of_endings() {
        endings::check(outcome);
    }

    fn outcome(scenario: &Scenario) -> Outcome {
        let mut restarts = restarts(scenario.backoff_limit);
        let (mut now, mut step) = (second(0), 10);
        if scenario.trains {
            restarts.reported(step, now);
        }
        for moment in &scenario.moments {
            now += SignedDuration::from_secs(SECONDS_BETWEEN);
            let ends = match moment {
                Moment::Trains(minutes) | Moment::Repeats(minutes) => {
                    now += SignedDuration::from_mins(*minutes);
                    step += if matches!(moment, Moment::Trains(_)) { 100 } else { 0 };
                    restarts.reported(step, now);
                    continue;
                }
                Moment::Ends(ends) => ends,
            };
            let lost = ends.iter().filter(|(who, _)| *who != Who::Coordinator).count();
            let is_held = scenario.trains && lost < WORKERS as usize;
            let holders = if is_held { Holders::Others } else { Holders::Nobody };
            for (who, how) in ends {
                let role = match who {
                    Who::Coordinator => C,
                    Who::Worker(worker) => ProcessRole::Worker(*worker),
                };
                let end = match how {
                    How::Exits(code) => Exit::from_code(*code).map_or(ProcessEnd::Crash(*code), ProcessEnd::Exit),
                    How::Killed(signal) => ProcessEnd::Signal(*signal),
                    How::OutOfMemory => ProcessEnd::OutOfMemory,
                    How::TakenAway => ProcessEnd::Chaos,
                };
                if let Decision::Fail(failure) = restarts.next(role, end, Wanted::Yes, holders, LONG, now) {
                    let failed = Some((failure.reason().to_owned(), failure.message("it")));
                    return Outcome { failures: restarts.failures.count, failed };
                }
            }
            (0..WORKERS).for_each(|worker| restarts.joined(worker));
        }
        Outcome { failures: restarts.failures.count, failed: None }
    }

    #[test]
    fn nothing_follows_the_end_of_a_process_that_is_not_wanted() {
        for (situation, end) in [
            ("asked to leave by the run itself", ProcessEnd::Exit(Exit::Drained)),
            ("killed after the results were stored", KILLED),
            ("killed by chaos", ProcessEnd::Chaos),
        ] {
            let next = restarts(3).next(W0, end, Wanted::No, Holders::Others, LONG, second(0));
            assert_eq!(next, Decision::Nothing, "{situation}");
        }
    }

    #[test]
    fn a_newcomer_that_lacks_something_counts_only_while_nobody_does_steps() {
        let mut restarts = restarts(0);
        restarts.reported(5, second(100));
        let mut next = |now| restarts.next(W1, RETRY, Wanted::Yes, Holders::OthersNotJoined, LONG, second(now));
        for now in [101, 105, 114] {
            assert_eq!(next(now), Decision::Restart { pause: SignedDuration::from_secs(1) });
        }
        assert!(matches!(next(115), Decision::Fail(JobFailure::BackoffLimitExceeded { .. })), "no step since");
    }

    #[test]
    fn a_coordinator_that_lived_shortly_is_replaced_after_a_pause() {
        let next = |lived| restarts(0).next(C, CRASH, Wanted::Yes, Holders::Nobody, lived, second(0));
        assert_eq!(next(SignedDuration::ZERO), Decision::Restart { pause: SignedDuration::from_secs(1) });
        assert_eq!(next(LONG), Decision::Restart { pause: SignedDuration::ZERO });
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
}
