//! Why a link no longer works, below the errors that name its peer.

use rustix::io::Errno;

/// Why a connection is of no use any more; [`Errno::AGAIN`] when it is, but not yet.
#[derive(Clone, Debug)]
pub(crate) enum LinkError {
    System(Errno),
    Tls(rustls::Error),
    Segment(WrongSegment),
    /// The other end closed before both had proved who they are.
    Unproved,
}

/// A segment that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongSegment {
    pub(crate) field: &'static str,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl LinkError {
    /// Whether it is not broken, but has nothing to do now.
    pub(crate) fn would_block(&self) -> bool {
        matches!(self, Self::System(Errno::AGAIN | Errno::INTR))
    }
}

impl WrongSegment {
    pub(crate) fn of(field: &'static str, expected: impl ToString, found: impl ToString) -> Self {
        Self { field, expected: expected.to_string(), found: found.to_string() }
    }
}

impl From<WrongSegment> for LinkError {
    fn from(wrong: WrongSegment) -> Self {
        Self::Segment(wrong)
    }
}

impl From<Errno> for LinkError {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

impl From<rustls::Error> for LinkError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}
