//! The limits of a job, and the reason and words with which it fails beyond them.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// How often a job may fail, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Failures before the job fails.
    pub backoff_limit: u32,
    /// Seconds from the start after which it fails.
    pub active_deadline_seconds: Option<u32>,
    /// Seconds that training may wait for workers.
    pub startup_timeout_seconds: u32,
}

/// The workers that have joined, among those that a job needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attendance {
    /// Workers that have joined.
    pub joined: u32,
    /// Workers that the job wants.
    pub all: u32,
    /// The smallest number of workers with which it trains.
    pub least: u32,
}

/// Why a job failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobFailure {
    /// The trainer refused its input.
    InvalidInput,
    /// More failures than `failurePolicy.backoffLimit`.
    BackoffLimitExceeded {
        /// Their number.
        failures: u32,
        /// The number that is allowed.
        limit: u32,
    },
    /// Training waited for workers for longer than `failurePolicy.startupTimeoutSeconds`.
    StartupTimeout {
        /// The time that is allowed.
        seconds: u32,
        /// The workers that had joined.
        attendance: Attendance,
    },
    /// The job took longer than `activeDeadlineSeconds`.
    DeadlineExceeded {
        /// The time that is allowed.
        seconds: u32,
    },
}

impl Limits {
    /// Returns the failure of a job with so many failures that count, if they are too many.
    #[must_use]
    pub const fn after(&self, failures: u32) -> Option<JobFailure> {
        let limit = self.backoff_limit;
        if failures > limit { Some(JobFailure::BackoffLimitExceeded { failures, limit }) } else { None }
    }

    /// The time by which a job that began at `start` has to be done, if there is one.
    #[must_use]
    pub fn deadline(&self, start: Timestamp) -> Option<Timestamp> {
        self.active_deadline_seconds.map(|seconds| start + SignedDuration::from_secs(seconds.into()))
    }

    /// Returns the failure of a job that began at `start`, once its time is over.
    #[must_use]
    pub fn at_deadline(&self, start: Timestamp, now: Timestamp) -> Option<JobFailure> {
        let seconds = self.active_deadline_seconds?;
        (self.deadline(start)? <= now).then_some(JobFailure::DeadlineExceeded { seconds })
    }

    /// The time by which a job has to train (again) whose workers were asked for at `asked` and
    /// that has not trained since `stopped`.
    #[must_use]
    pub fn patience_ends(&self, asked: Timestamp, stopped: Timestamp) -> Timestamp {
        asked.max(stopped) + SignedDuration::from_secs(self.startup_timeout_seconds.into())
    }

    /// The failure of such a job, once that time is over.
    #[must_use]
    pub const fn out_of_patience(&self, attendance: Attendance) -> JobFailure {
        JobFailure::StartupTimeout { seconds: self.startup_timeout_seconds, attendance }
    }
}

impl JobFailure {
    /// The reason in one word.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::InvalidInput => "InvalidInput",
            Self::BackoffLimitExceeded { .. } => "BackoffLimitExceeded",
            Self::StartupTimeout { .. } => "StartupTimeout",
            Self::DeadlineExceeded { .. } => "DeadlineExceeded",
        }
    }

    /// The reason in one sentence. `detail` describes the newest failure, or the worker that did
    /// not come up.
    #[must_use]
    pub fn message(self, detail: &str) -> String {
        match self {
            Self::InvalidInput => detail.to_owned(),
            Self::BackoffLimitExceeded { failures, limit } => {
                format!("failure {failures}, backoffLimit is {limit}; the last: {detail}")
            }
            Self::StartupTimeout { seconds, attendance } => {
                format!("{attendance} within {seconds} s, failurePolicy.startupTimeoutSeconds: {detail}")
            }
            Self::DeadlineExceeded { seconds } => {
                format!("not complete {seconds} s after its start, activeDeadlineSeconds")
            }
        }
    }
}

impl fmt::Display for Attendance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { joined, all, least } = self;
        if least < all {
            write!(f, "{joined} of at least {least} workers, spec.elastic.minReplicas, have joined")
        } else {
            write!(f, "{joined} of {all} workers have joined")
        }
    }
}
