//! How a worker or a coordinator ended, and what that is called.

use lockstep_launch::Exit;

/// The first signal's exit code of a container is one above this.
const SIGNALS: i32 = 128;
/// Kubernetes' word, and ours, for a process that ran out of memory.
const OUT_OF_MEMORY: &str = "OOMKilled";
/// Reasons for which a node refuses or ends a pod because of its template. Another node would do
/// the same.
const OWN_FAULTS: [&str; 3] = ["AppArmor", "DeadlineExceeded", "SysctlForbidden"];
/// Reasons of a container whose program cannot be started.
const CANNOT_START: [&str; 2] = ["ContainerCannotRun", "StartError"];
/// The words for workers that were taken away, by kind. Any other word is an eviction.
const TAKEN: [(LossKind, &[&str]); 3] = [
    (LossKind::Preempted, &["PreemptionByScheduler", "Preempting", "Chaos"]),
    (
        LossKind::NodeLost,
        &["DeletionByTaintManager", "DeletionByPodGC", "NodeLost", "NodeShutdown", "ContainerStatusUnknown", "Unknown"],
    ),
    (LossKind::Hung, &["Hung"]),
];

/// The part that a process plays in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It forms the group and keeps its record.
    Coordinator,
    /// It trains.
    Worker,
}

/// The facts about a process that has ended or is being taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen<'a> {
    /// How it ended, if it has.
    pub ended: Option<Ended<'a>>,
    /// Why something outside the job takes it away, if so: an eviction, a preemption.
    pub disrupted: Option<&'a str>,
    /// True if its deletion was asked for.
    pub is_deleted: bool,
}

/// An end as the machine tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended<'a> {
    /// The process's status; none if no process told one.
    pub status: Option<Status>,
    /// The machine's word for it, such as OOMKilled or Evicted.
    pub word: Option<&'a str>,
}

/// The status that a process leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Status {
    /// Reads a container's exit code: 128 and a signal's number stand for that signal.
    #[must_use]
    pub const fn of_container(code: i32) -> Self {
        if code > SIGNALS { Self::Signal(code - SIGNALS) } else { Self::Code(code) }
    }
}

/// The way in which a process left the job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkerEnd {
    /// It saw the end of the training.
    Done,
    /// It refused its input. Another start would fail again.
    Fatal,
    /// It asked to be started again, because something that it needs was not there.
    Retry,
    /// It stopped after a step because it was asked to.
    Drained,
    /// It failed by itself, or by a signal that nobody announced.
    Crash,
    /// The kernel ended it because memory ran out.
    OutOfMemory,
    /// It stood still.
    Hung,
    /// Something outside the job took it away, for this reason.
    TakenAway(String),
}

/// The kind of a loss, as metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// A failure of the worker itself.
    Crash,
    /// Memory ran out.
    Oom,
    /// Its room was given to others.
    Preempted,
    /// It was drained, evicted or deleted.
    Evicted,
    /// Its node was lost.
    NodeLost,
    /// It stood still.
    Hung,
}

impl WorkerEnd {
    /// Classifies an end, or returns `None` while the process takes part or will.
    #[must_use]
    pub fn of(seen: &Seen<'_>) -> Option<Self> {
        let Seen { ended, disrupted, is_deleted } = *seen;
        let taken = |reason: Option<&str>| Self::TakenAway(reason.unwrap_or("Lost").to_owned());
        let Some(Ended { status, word }) = ended else {
            let deleted = is_deleted.then(|| taken(Some("Deleted")));
            return disrupted.map(|reason| taken(Some(reason))).or(deleted);
        };
        let exit = match status {
            Some(Status::Code(code)) => Exit::from_code(code),
            Some(Status::Signal(_)) => None,
            None if disrupted.is_none() && word.is_some_and(|word| OWN_FAULTS.contains(&word)) => {
                return Some(Self::Crash);
            }
            None => return Some(taken(word)),
        };
        Some(match exit {
            Some(Exit::Done) => Self::Done,
            Some(Exit::Fatal) => Self::Fatal,
            Some(Exit::Drained | Exit::Retry) | None if disrupted.is_some() => taken(disrupted),
            Some(Exit::Drained) => Self::Drained,
            Some(Exit::Retry) => Self::Retry,
            // Its own deletion killed it; it is not at fault.
            None if is_deleted => taken(Some("Deleted")),
            None if word == Some(OUT_OF_MEMORY) => Self::OutOfMemory,
            None => Self::Crash,
        })
    }

    /// The end of a process that the kernel killed because memory ran out.
    #[must_use]
    pub const fn out_of_memory() -> Ended<'static> {
        Ended { status: Some(Status::Signal(9)), word: Some(OUT_OF_MEMORY) }
    }

    /// The reason in one word.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Done => "Done",
            Self::Fatal => "Refused",
            Self::Retry => "Retry",
            Self::Drained => "Drained",
            Self::Crash => "Crashed",
            Self::OutOfMemory => OUT_OF_MEMORY,
            Self::Hung => "Hung",
            Self::TakenAway(reason) => reason,
        }
    }

    /// The kind of the loss.
    #[must_use]
    pub fn kind(&self) -> LossKind {
        match self {
            Self::Done | Self::Fatal | Self::Retry | Self::Crash => LossKind::Crash,
            Self::OutOfMemory => LossKind::Oom,
            Self::Hung => LossKind::Hung,
            Self::Drained => LossKind::Evicted,
            Self::TakenAway(reason) => LossKind::of_taken(reason),
        }
    }

    /// True if the job fails at once with this end. A worker that refuses its input counts as any
    /// other failure while others hold the state, because another start may do better.
    #[must_use]
    pub fn fails_the_job(&self, role: Role, others_hold_the_state: bool) -> bool {
        *self == Self::Fatal && (role == Role::Coordinator || !others_hold_the_state)
    }

    /// How likely this end caused others at the same time; the smallest is the likeliest. A process
    /// that cannot go on for now may have lost one that crashed.
    #[must_use]
    pub const fn depth(&self) -> u8 {
        match self {
            Self::TakenAway(_) => 0,
            Self::Crash | Self::OutOfMemory | Self::Hung | Self::Fatal => 1,
            Self::Retry => 2,
            Self::Drained => 3,
            Self::Done => 4,
        }
    }
}

/// True for the word of an end that is the process's own failure. Any other word names what took
/// the process away.
#[must_use]
pub fn is_own_failure(word: &str) -> bool {
    let own = [WorkerEnd::Fatal, WorkerEnd::Retry, WorkerEnd::Crash, WorkerEnd::OutOfMemory, WorkerEnd::Hung];
    OWN_FAULTS.contains(&word) || CANNOT_START.contains(&word) || own.iter().any(|end| end.word() == word)
}

impl LossKind {
    /// The kind of a loss by the word for what took the worker away.
    #[must_use]
    pub fn of_taken(reason: &str) -> Self {
        TAKEN.iter().find(|(_, words)| words.contains(&reason)).map_or(Self::Evicted, |(kind, _)| *kind)
    }

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Oom => "oom",
            Self::Preempted => "preempted",
            Self::Evicted => "evicted",
            Self::NodeLost => "node_lost",
            Self::Hung => "hung",
        }
    }
}
