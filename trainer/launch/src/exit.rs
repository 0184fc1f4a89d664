use std::fmt;

/// The way in which a trainer process ends, as its exit code. Any other code, and any signal, is a
/// crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The job's last step is done and its results are stored.
    Done,
    /// The job is sound, but a peer or the infrastructure was lost. Start again from the newest
    /// checkpoint.
    Retry,
    /// A worker was asked to stop (SIGTERM) and did so after a step. The group goes on without it,
    /// or a checkpoint was saved. Nothing is lost.
    Drained,
    /// The job cannot succeed as it is described: bad input, refused storage. Another start would
    /// fail again. While other workers train, a new process is tried all the same.
    Fatal,
}

impl Exit {
    /// All exits.
    pub const ALL: [Self; 4] = [Self::Done, Self::Retry, Self::Drained, Self::Fatal];

    /// Returns the process's exit code. 75 and 78 are `EX_TEMPFAIL` and `EX_CONFIG` of sysexits.h.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Retry => 75,
            Self::Drained => 76,
            Self::Fatal => 78,
        }
    }

    /// Returns the exit with this code, or `None` for a crash.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| i32::from(exit.code()) == code)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Retry => "retry",
            Self::Drained => "drained",
            Self::Fatal => "fatal",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_reads_back_from_its_code() {
        for exit in Exit::ALL {
            assert_eq!(Exit::from_code(i32::from(exit.code())), Some(exit));
        }
    }

    #[test]
    fn the_code_of_a_killed_or_panicked_process_is_no_exit() {
        for code in [1, 101, 134, 137, 143] {
            assert_eq!(Exit::from_code(code), None);
        }
    }
}
