//! The names of checkpoints.
//!
//! In a folder, the checkpoint of step 120 is named `step-00000120`. A damaged checkpoint or one of
//! an older group may have this name already. The new one is then named `step-00000120.g4`, with
//! its generation. A bucket always uses the longer name: objects cannot be renamed, so generations
//! must not share a name.

use std::{fmt, path::PathBuf};

use crate::Position;

const STEP: &str = "step-";
const GENERATION: &str = ".g";
/// The least number of digits of a step in a name. Names then sort as steps do.
const STEP_DIGITS: usize = 8;

/// Identifies a checkpoint. A later checkpoint is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckpointId {
    pub(crate) step: u64,
    /// `None` if the name does not show the generation. Such a checkpoint sorts before those that
    /// show it.
    pub(crate) generation: Option<u64>,
}

impl CheckpointId {
    /// Parses the name of a checkpoint. Returns `None` for any other name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(STEP)?;
        let (step, generation) = match rest.split_once(GENERATION) {
            None => (rest, None),
            Some((step, generation)) => (step, Some(generation.parse().ok()?)),
        };
        Some(Self { step: step.parse().ok()?, generation })
    }

    /// True if a checkpoint of this name may hold the state of this position.
    pub(crate) fn may_hold(self, position: Position) -> bool {
        self.step == position.step && self.generation.is_none_or(|generation| generation == position.generation)
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, generation } = self;
        write!(f, "{STEP}{step:0STEP_DIGITS$}")?;
        generation.iter().try_for_each(|generation| write!(f, "{GENERATION}{generation}"))
    }
}

/// An unfinished save, or another temporary file or folder of an interrupted operation.
pub(crate) struct Leftover {
    pub(crate) path: PathBuf,
    /// The checkpoint that the save was to become. `None` if it is no save.
    pub(crate) staged: Option<Staged>,
}

/// Identifies an unfinished save by the checkpoint that it is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) step: u64,
    pub(crate) generation: u64,
}

impl Staged {
    /// Parses the name of an unfinished save.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let CheckpointId { step, generation } = CheckpointId::of_name(name)?;
        Some(Self { step, generation: generation? })
    }
}
