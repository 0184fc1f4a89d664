//! The reasons for which a process ends before its work is done, and their meaning for the job.

use std::{borrow::Borrow, error::Error, fmt::Display, fs, iter, path::Path};

use lockstep_collective::CollectiveError;
use lockstep_elastic::Break;
use lockstep_launch::{Ending, Exit};
use tracing::error;

use crate::grace::Drain;

/// An ending without success. It becomes an exit code and the message of the process's `Ending`.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The job cannot succeed as described. A new start would fail again.
    #[error("{0}")]
    Fatal(String),
    /// This worker can never take part. The others may.
    #[error("{0}")]
    Unfit(String),
    /// A peer or the infrastructure was lost. The job can go on from its newest checkpoint.
    #[error("{0}")]
    Retry(String),
    /// The workers hold different states, or a state that they did not compute. All start again
    /// from the newest checkpoint.
    #[error("{0}")]
    Diverged(String),
    /// This generation cannot go on, or was not formed. The worker enters the next one.
    #[error("{}", .0.reason)]
    Broken(Break),
    /// The worker was asked to stop. After this step the group goes on without it, or has saved a
    /// checkpoint.
    #[error("stopped on request after step {step}{}", of_grace(drain.as_ref()))]
    Drained {
        /// The number of steps that are done.
        step: u64,
        /// The drain of a process that was itself asked to end.
        drain: Option<Drain>,
    },
}

impl Failure {
    /// Makes a failure of the job. `problem` names the field or file, the value and the remedy.
    pub fn fatal(problem: impl ToString) -> Self {
        Self::Fatal(problem.to_string())
    }

    /// Makes a failure outside the job. `cause` names it.
    pub fn retry(cause: impl ToString) -> Self {
        Self::Retry(cause.to_string())
    }

    /// Makes a failure of ranks or devices whose states differ. `difference` names the place.
    pub fn diverged(difference: impl Display) -> Self {
        Self::Diverged(format!(
            "{difference}: the memory or a processor of one of their hosts is faulty; training begins anew with the newest checkpoint, \
             which all of them held alike"
        ))
    }

    /// Makes a failure of the present group.
    pub(crate) fn broken(reason: impl ToString) -> Self {
        Self::Broken(Break::from(reason.to_string()))
    }

    /// Makes the failure of a collective or of a group that could not be formed. `error` names the
    /// peer.
    pub(crate) fn lost(error: impl Borrow<CollectiveError>) -> Self {
        let error = error.borrow();
        let missing = error.peer().filter(|_| matches!(error, CollectiveError::NotFormed { .. }));
        let unreached = missing.map(|rank| rank as u32);
        Self::Broken(Break { reason: with_causes(error), unreached, origin: error.origin() })
    }

    /// Returns what the coordinator must learn about a group that broke.
    ///
    /// # Errors
    /// `self` if it is another failure.
    pub(crate) fn into_break(self) -> Result<Break, Self> {
        match self {
            Self::Broken(broken) => Ok(broken),
            Self::Fatal(_) | Self::Unfit(_) | Self::Retry(_) | Self::Diverged(_) | Self::Drained { .. } => Err(self),
        }
    }

    /// Returns the ending that the process leaves.
    pub(crate) fn ending(&self) -> Ending {
        Ending { message: self.to_string(), ..Ending::default() }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Fatal(_) | Self::Unfit(_) => Exit::Fatal,
            Self::Retry(_) | Self::Diverged(_) | Self::Broken(_) => Exit::Retry,
            Self::Drained { .. } => Exit::Drained,
        }
    }
}

/// Returns an error and its causes in one line.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let chain = iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn of_grace(drain: Option<&Drain>) -> String {
    drain.map(|drain| format!(": {drain}")).unwrap_or_default()
}

/// Writes a process's ending to the place in which the kubelet or `lockstep run` looks for it.
pub(crate) fn leave(path: &Path, ending: &Ending) {
    if let Err(problem) = fs::write(path, ending.to_line()) {
        error!(path = %path.display(), %problem, "the ending could not be written");
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use super::*;

    #[test]
    fn the_reason_of_a_broken_group_includes_the_systems_error() {
        let source = Arc::new(io::Error::other("no buffer space"));
        let error = CollectiveError::System { attempted: "exchange bytes with rank 3".to_owned(), source };
        let Failure::Broken(broken) = Failure::lost(error) else { panic!("the group is broken") };
        assert_eq!(broken.reason, "cannot exchange bytes with rank 3: no buffer space");
    }
}
