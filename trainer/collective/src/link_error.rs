//! The failure of a link, before it is attributed to a peer.

use rustix::io::Errno;

/// The reason why a connection no longer works. [`Errno::AGAIN`] only means that the caller must
/// wait.
#[derive(Clone, Debug)]
pub(crate) enum LinkError {
    System(Errno),
    Tls(rustls::Error),
    Segment(WrongSegment),
    /// The other end closed before both ends had proved their identity.
    Unproved,
}

/// A segment that cannot belong to the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongSegment {
    pub(crate) field: &'static str,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl LinkError {
    /// Returns true if the connection works and has nothing to do now.
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
