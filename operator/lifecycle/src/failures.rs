//! The count of failures. A loss that something outside the job caused never counts, and losses at
//! the same time count once.

use jiff::{SignedDuration, Timestamp};

use crate::{LossKind, Pauses, WorkerEnd};

/// Failures within this time are one, because one cause may hit several workers.
const INCIDENT: SignedDuration = SignedDuration::from_secs(10);
/// The count starts again once the job has trained for so long without a loss.
const FORGIVEN_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// Time without a report after which a group does not train any more.
pub const STANDSTILL: SignedDuration = SignedDuration::from_secs(15);

/// The side that is at fault for a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The job itself; the loss counts as a failure.
    Job,
    /// Something outside the job; the loss does not count.
    Outside,
}

/// How a worker stood to its group when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It took part.
    Member,
    /// It had yet to join, and training waited for it.
    Awaited,
    /// It had yet to join, and held nobody up: the others train, or the coordinator was not there.
    Newcomer,
}

/// A worker that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Its number.
    pub worker: u32,
    /// How it ended.
    pub end: WorkerEnd,
    /// How it stood to its group.
    pub standing: Standing,
    /// The time from its start to now, if known.
    pub lived: Option<SignedDuration>,
}

/// The failures of a job that count against `failurePolicy.backoffLimit`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Their number.
    pub count: u32,
    /// The counted workers that have not joined again.
    pub recent: Vec<Counted>,
}

/// A loss that was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The worker's number.
    pub worker: u32,
    /// The time of the loss.
    pub at: Timestamp,
}

/// The judgement of a lost worker: whose fault it is, and when the next one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// The side that is at fault.
    pub fault: Fault,
    /// True if the count grew by this loss.
    pub counted: bool,
    /// The time until another process takes its place.
    pub pause: SignedDuration,
}

impl Loss {
    /// The side that is at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        fault(&self.end, self.standing)
    }

    /// The kind of the loss.
    #[must_use]
    pub fn kind(&self) -> LossKind {
        self.end.kind()
    }
}

fn fault(end: &WorkerEnd, standing: Standing) -> Fault {
    match (end, standing) {
        (WorkerEnd::Done | WorkerEnd::Drained | WorkerEnd::TakenAway(_), _)
        | (WorkerEnd::Retry, Standing::Newcomer) => Fault::Outside,
        (WorkerEnd::Crash | WorkerEnd::OutOfMemory | WorkerEnd::Hung | WorkerEnd::Fatal | WorkerEnd::Retry, _) => {
            Fault::Job
        }
    }
}

impl Failures {
    /// Takes the loss of one worker while the others stay.
    pub fn lost(&mut self, loss: &Loss, pauses: &Pauses, now: Timestamp) -> Replacement {
        let fault = loss.fault();
        // The same worker's next failure is another one.
        self.recent.retain(|counted| counted.worker != loss.worker);
        let counted = self.count_once(fault, now);
        if counted {
            self.recent.push(Counted { worker: loss.worker, at: now });
        }
        let lived_shortly = loss.lived.is_some_and(|lived| lived < pauses.short_life);
        let asked = loss.end == WorkerEnd::Retry;
        let pause = match fault {
            // The thing that it lacked may take longer to appear than it lived.
            Fault::Job if asked && (lived_shortly || loss.standing != Standing::Member) => {
                pauses.after_absence(self.count)
            }
            Fault::Job => pauses.after(self.count),
            Fault::Outside => SignedDuration::ZERO,
        };
        let waits = lived_shortly || (asked && loss.standing != Standing::Member);
        Replacement { fault, counted, pause: if waits { pause.max(pauses.short_life) } else { pause } }
    }

    /// Takes the loss of all workers, of which the one that ended so took the others with it.
    /// Returns the side that is at fault.
    pub fn lost_all(&mut self, first: &WorkerEnd, now: Timestamp) -> Fault {
        let fault = fault(first, Standing::Member);
        self.count_once(fault, now);
        fault
    }

    /// Notes that a worker has joined again.
    pub fn joined(&mut self, worker: u32) {
        self.recent.retain(|counted| counted.worker != worker);
    }

    fn count_once(&mut self, fault: Fault, now: Timestamp) -> bool {
        let is_known = self.recent.iter().any(|counted| now.duration_since(counted.at) < INCIDENT);
        let counted = fault == Fault::Job && !is_known;
        self.count += u32::from(counted);
        counted
    }
}

/// True once the count of failures starts again at 0: the job has trained for ten minutes since its
/// newest loss, beyond the furthest step before. A job that fails at the same step again and again
/// is never forgiven.
#[must_use]
pub fn is_forgiven(lost_at: Timestamp, furthest_step: u64, step: u64, now: Timestamp) -> bool {
    step > furthest_step && now.duration_since(lost_at) >= FORGIVEN_AFTER
}

/// True while steps are reported.
#[must_use]
pub fn is_training(reported: Option<Timestamp>, now: Timestamp) -> bool {
    reported.is_some_and(|reported| now.duration_since(reported) < STANDSTILL)
}
