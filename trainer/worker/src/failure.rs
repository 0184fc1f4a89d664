//! Why a process ends before its work is done, and what that means for the job.

use std::{borrow::Borrow, error::Error, fmt::Display, fs, iter, path::Path};

use lockstep_collective::CollectiveError;
use lockstep_elastic::Break;
use lockstep_launch::{Ending, Exit};
use tracing::error;

use crate::grace::Drain;

/// An ending that is not success. Each becomes an exit code and the message of the process's `Ending`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The job cannot succeed as described; starting again would fail again.
    #[error("{0}")]
    Fatal(String),
    /// This worker can never take part, which says nothing about the others.
    #[error("{0}")]
    Unfit(String),
    /// A peer or the infrastructure was lost; the job can go on from its newest checkpoint.
    #[error("{0}")]
    Retry(String),
    /// What the workers hold differs, or is not what they computed; all begin anew with the newest checkpoint.
    #[error("{0}")]
    Diverged(String),
    /// This generation cannot go on, or was not formed: the worker goes on in the next one.
    #[error("{}", .0.reason)]
    Broken(Break),
    /// Asked to stop: after this step the group goes on without this worker, or its checkpoint was saved.
    #[error("stopped on request after step {step}{}", of_grace(drain.as_ref()))]
    Drained {
        /// Optimiser steps that are done.
        step: u64,
        /// Of a process that was itself asked.
        drain: Option<Drain>,
    },
}

impl Failure {
    /// The job cannot succeed: `problem` names the field or file, the value and what to do.
    pub(crate) fn fatal(problem: impl ToString) -> Self {
        Self::Fatal(problem.to_string())
    }

    /// Something outside the job broke: `cause` names it.
    pub(crate) fn retry(cause: impl ToString) -> Self {
        Self::Retry(cause.to_string())
    }

    /// The states of ranks or devices differ: `difference` says where that was seen.
    pub(crate) fn diverged(difference: impl Display) -> Self {
        Self::Diverged(format!(
            "{difference}: the memory or a processor of one of their hosts is faulty; training begins anew with the newest checkpoint, \
             which all of them held alike"
        ))
    }

    /// The group is of no use any more.
    pub(crate) fn broken(reason: impl ToString) -> Self {
        Self::Broken(Break::from(reason.to_string()))
    }

    /// An operation of the group failed, or it could not be formed: `error` names the peer.
    pub(crate) fn lost(error: impl Borrow<CollectiveError>) -> Self {
        let error = error.borrow();
        let missing = error.peer().filter(|_| matches!(error, CollectiveError::NotFormed { .. }));
        let unreached = missing.map(|rank| rank as u32);
        Self::Broken(Break { reason: with_causes(error), unreached, origin: error.origin() })
    }

    /// What the coordinator is told of a group that broke.
    ///
    /// # Errors
    /// The failure itself where it is another one.
    pub(crate) fn into_break(self) -> Result<Break, Self> {
        match self {
            Self::Broken(broken) => Ok(broken),
            Self::Fatal(_) | Self::Unfit(_) | Self::Retry(_) | Self::Diverged(_) | Self::Drained { .. } => Err(self),
        }
    }

    /// What the process leaves.
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

/// An error and what caused it, in one line.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let chain = iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn of_grace(drain: Option<&Drain>) -> String {
    drain.map(|drain| format!(": {drain}")).unwrap_or_default()
}

/// Writes a process's ending where the kubelet, or `lockstep run`, finds it.
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
    fn a_group_that_breaks_says_what_the_system_or_the_peer_said() {
        let source = Arc::new(io::Error::other("no buffer space"));
        let error = CollectiveError::System { attempted: "exchange bytes with rank 3".to_owned(), source };
        let Failure::Broken(broken) = Failure::lost(error) else { panic!("the group is broken") };
        assert_eq!(broken.reason, "cannot exchange bytes with rank 3: no buffer space");
    }
}
