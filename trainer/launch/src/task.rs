//! What the processes of a job do: train a network, or measure.

use serde::{Deserialize, Serialize};

use crate::{Benchmark, Communication, InvalidField, Workload};

/// The work of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Task {
    /// Train a network.
    Train(Workload),
    /// Train nothing, but measure.
    Benchmark {
        /// What is measured.
        benchmark: Benchmark,
        /// How it travels.
        communication: Communication,
    },
}

impl Task {
    /// How numbers travel between the workers.
    #[must_use]
    pub fn communication(&self) -> &Communication {
        match self {
            Self::Train(workload) => &workload.communication,
            Self::Benchmark { benchmark: _, communication } => communication,
        }
    }

    /// The rules that no schema can state, between fields or inside a string. Each is a CEL rule of the CRD as well.
    ///
    /// # Errors
    /// The first field that breaks one.
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
