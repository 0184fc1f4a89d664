//! The names of checkpoints: `step-00000120` in a folder, and `step-00000120.g4` where a damaged one, or what an older group has left, has
//! that name; always `step-00000120.g4` in a bucket, where nothing can be renamed and each generation has names of its own.

use std::{fmt, path::PathBuf};

use crate::Position;

const STEP: &str = "step-";
const GENERATION: &str = ".g";
/// Digits of a step in a name, so that names sort as steps do; greater steps take more.
const STEP_DIGITS: usize = 8;

/// Which checkpoint. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) step: u64,
    /// `None` where any generation may have saved it; it is older than those that say which.
    pub(crate) generation: Option<u64>,
}

impl Slot {
    /// What a name says, if it is one of these.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(STEP)?;
        let (step, generation) = match rest.split_once(GENERATION) {
            None => (rest, None),
            Some((step, generation)) => (step, Some(generation.parse().ok()?)),
        };
        Some(Self { step: step.parse().ok()?, generation })
    }

    /// Whether a checkpoint of this name can be where training stood there.
    pub(crate) fn is_of(self, position: Position) -> bool {
        self.step == position.step && self.generation.is_none_or(|generation| generation == position.generation)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, generation } = self;
        write!(f, "{STEP}{step:0STEP_DIGITS$}")?;
        generation.iter().try_for_each(|generation| write!(f, "{GENERATION}{generation}"))
    }
}

/// Something beside the checkpoints that is none.
pub(crate) struct Leftover {
    pub(crate) path: PathBuf,
    /// Which checkpoint it was to become.
    pub(crate) staged: Option<Staged>,
}

/// Which checkpoint a save is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) step: u64,
    pub(crate) generation: u64,
}

impl Staged {
    /// What the name of a save says that is to become a checkpoint.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let Slot { step, generation } = Slot::of_name(name)?;
        Some(Self { step, generation: generation? })
    }
}
