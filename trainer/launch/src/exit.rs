use std::fmt;

/// How a trainer process ends, as its exit code. Any other code, and any signal, is a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The job's last step is done and its results are stored.
    Done,
    /// Nothing is wrong with the job: a peer or the infrastructure was lost. Start again from the newest checkpoint.
    Retry,
    /// Asked to stop (SIGTERM), after a step: the group goes on without this worker, or a checkpoint was saved. Nothing is lost.
    Drained,
    /// The job cannot succeed as it is described: bad input, refused storage. Starting again would fail again; where others train, another
    /// process is tried all the same.
    Fatal,
}

impl Exit {
    /// Every exit, for reading a code back.
    pub const ALL: [Self; 4] = [Self::Done, Self::Retry, Self::Drained, Self::Fatal];

    /// The process's exit code; 75 and 78 are `EX_TEMPFAIL` and `EX_CONFIG` of sysexits.h.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Retry => 75,
            Self::Drained => 76,
            Self::Fatal => 78,
        }
    }

    /// The exit that a code stands for; `None` is a crash.
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
    fn every_exit_is_read_back_from_its_code() {
        for exit in Exit::ALL {
            assert_eq!(Exit::from_code(i32::from(exit.code())), Some(exit));
        }
    }

    #[test]
    fn a_killed_or_panicked_process_is_no_exit_of_ours() {
        for code in [1, 101, 134, 137, 143] {
            assert_eq!(Exit::from_code(code), None);
        }
    }
}
