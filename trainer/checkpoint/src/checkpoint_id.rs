//! The names of checkpoints.
//!
//! A folder uses `step-00000120`. It uses `step-00000120.g4` if a damaged checkpoint or one of an
//! older group has the first name. A bucket always uses `step-00000120.g4`: nothing can be renamed
//! there, so each generation needs names of its own.

use std::{fmt, path::PathBuf};

use crate::Position;

const STEP: &str = "step-";
const GENERATION: &str = ".g";
/// The least number of digits of a step in a name, so that names sort as steps do.
const STEP_DIGITS: usize = 8;

/// Identifies a checkpoint. A later checkpoint is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckpointId {
    pub(crate) step: u64,
    /// `None` if any generation may have saved it. Such a checkpoint sorts before those of a known
    /// generation.
    pub(crate) generation: Option<u64>,
}

impl CheckpointId {
    /// Parses a name. Returns `None` if it is no name of a checkpoint.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(STEP)?;
        let (step, generation) = match rest.split_once(GENERATION) {
            None => (rest, None),
            Some((step, generation)) => (step, Some(generation.parse().ok()?)),
        };
        Some(Self { step: step.parse().ok()?, generation })
    }

    /// True if a checkpoint of this name can have this position.
    pub(crate) fn is_of(self, position: Position) -> bool {
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

/// Something beside the checkpoints that is no checkpoint.
pub(crate) struct Leftover {
    pub(crate) path: PathBuf,
    /// The checkpoint that it was to become.
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
