//! The task of a job's processes: training or a measurement.

use serde::{Deserialize, Serialize};

use crate::{Benchmark, Communication, InvalidField, Workload};

/// The work of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Task {
    /// Trains a network.
    Train(Box<Workload>),
    /// Trains nothing, and measures.
    Benchmark {
        /// The measurement.
        benchmark: Benchmark,
        /// The way in which numbers travel between the workers.
        communication: Communication,
    },
}

impl Task {
    /// Returns the way in which numbers travel between the workers.
    #[must_use]
    pub fn communication(&self) -> &Communication {
        match self {
            Self::Train(workload) => &workload.communication,
            Self::Benchmark { benchmark: _, communication } => communication,
        }
    }

    /// Checks the rules that no schema can state, between fields or inside a string. Each is a CEL
    /// rule of the CRD as well.
    ///
    /// # Errors
    /// A field breaks a rule. The error names the first one.
    pub fn check(&self) -> Result<(), InvalidField> {
        match self {
            Self::Train(workload) => workload.check(),
            Self::Benchmark { benchmark: Benchmark::Collectives(collectives), communication } => {
                collectives.check()?;
                communication.check()
            }
        }
    }
}
