//! Why a process ends before its work is done, and what that means for the job.

use std::{fs, path::Path};

use lockstep_collective::CollectiveError;
use lockstep_elastic::Break;
use lockstep_launch::{Ending, Exit};
use tracing::error;

/// An ending that is not success. Each becomes an exit code and the message of the process's `Ending`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The job cannot succeed as described; starting again would fail again.
    #[error("{0}")]
    Fatal(String),
    /// A peer or the infrastructure was lost; the job can go on from its newest checkpoint.
    #[error("{0}")]
    Retry(String),
    /// A collective of this generation failed: the worker goes on in the next one.
    #[error("{0}")]
    Broken(String),
    /// This rank was not connected with another one when its group was formed: the worker goes on in the next one.
    #[error("{reason}")]
    Unformed {
        /// What was last seen of it.
        reason: String,
        /// The other one.
        rank: u32,
    },
    /// Asked to stop: after this step the group goes on without this worker, or its checkpoint was saved.
    #[error("stopped on request after step {step}")]
    Drained {
        /// Optimiser steps that are done.
        step: u64,
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

    /// The group broke: `error` names the peer.
    pub(crate) fn broken(error: impl ToString) -> Self {
        Self::Broken(error.to_string())
    }

    /// A group that could not be formed, or another failure of it.
    pub(crate) fn unformed(error: &CollectiveError) -> Self {
        match (error, error.peer()) {
            (CollectiveError::NotFormed { .. }, Some(rank)) => {
                Self::Unformed { reason: error.to_string(), rank: rank as u32 }
            }
            _ => Self::broken(error),
        }
    }

    /// What the coordinator is told of a group that broke.
    ///
    /// # Errors
    /// The failure itself where it is another one.
    pub(crate) fn into_break(self) -> Result<Break, Self> {
        match self {
            Self::Broken(reason) => Ok(Break { reason, unreached: None }),
            Self::Unformed { reason, rank } => Ok(Break { reason, unreached: Some(rank) }),
            Self::Fatal(_) | Self::Retry(_) | Self::Drained { .. } => Err(self),
        }
    }

    /// What the process leaves.
    pub(crate) fn ending(&self) -> Ending {
        Ending { message: self.to_string(), ..Ending::default() }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Fatal(_) => Exit::Fatal,
            Self::Retry(_) | Self::Broken(_) | Self::Unformed { .. } => Exit::Retry,
            Self::Drained { .. } => Exit::Drained,
        }
    }
}

/// Writes a process's ending where the kubelet, or `lockstep run`, finds it.
pub(crate) fn leave(path: &Path, ending: &Ending) {
    if let Err(problem) = fs::write(path, ending.to_line()) {
        error!(path = %path.display(), %problem, "the ending could not be written");
    }
}
