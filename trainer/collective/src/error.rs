use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::error_site::{ErrorSite, Origin, PeerFault, within};
use crate::frame::FrameError;

/// Why an operation or the forming of a group failed, and which rank caused it. A copy goes into
/// every operation that fails for the same cause.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CollectiveError {
    /// Another process listens on the data port.
    #[error(
        "cannot listen on {address}: the port is in use; stop the process that holds it or choose another data port"
    )]
    PortInUse {
        /// The requested address.
        address: SocketAddr,
    },
    /// The data port cannot be opened, although it is not in use.
    #[error("cannot listen on {address}; check that this host owns the address and may open the port")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The caller's rank is not among the addresses of the group.
    #[error("rank {rank} is not in a group of {world}; pass the address of every rank, this one included")]
    NotInGroup {
        /// The caller's rank.
        rank: usize,
        /// The number of addresses.
        world: usize,
    },
    /// A rank did not join before the deadline.
    #[error("generation {generation} did not form within {waited:?}: {missing}")]
    NotFormed {
        /// The generation that was to form.
        generation: u64,
        /// How long this rank tried.
        waited: Duration,
        /// The missing rank, and the last thing known about it.
        missing: Missing,
    },
    /// A rank is already in a newer generation.
    #[error("rank {rank} is in generation {newer} already, this rank tried to form {generation}; join the newer one")]
    Superseded {
        /// The rank, numbered as in either generation.
        rank: usize,
        /// The generation that this rank tried to form.
        generation: u64,
        /// The rank's generation.
        newer: u64,
    },
    /// A peer closed its end, or its machine did.
    #[error("{}rank {rank} closed its connection", within(.at))]
    PeerClosed {
        /// The peer.
        rank: usize,
        /// The first transfer that the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// A peer left the group earlier and has said why.
    #[error("rank {rank} gave up because {origin}")]
    PeerGaveUp {
        /// The peer.
        rank: usize,
        /// The failure that the peer met or was told about.
        origin: Origin,
    },
    /// Within the limit no frame came from a peer or could be sent to it.
    #[error("{}nothing came from rank {rank}, or could be sent to it, for {waited:?}", within(.at))]
    PeerSilent {
        /// The peer that was waited for.
        rank: usize,
        /// The time that this rank waited.
        waited: Duration,
        /// The first transfer that the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// A peer sent bytes that are no frame.
    #[error("{}rank {rank} sent bytes that are no frame", within(.at))]
    BadFrame {
        /// The peer.
        rank: usize,
        /// The fault in the bytes.
        source: FrameError,
        /// The first transfer that the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// A peer sent bytes that TLS refuses.
    #[error("{}rank {rank} sent bytes that are no record of its encrypted connection", within(.at))]
    BadRecord {
        /// The peer.
        rank: usize,
        /// The fault in the bytes.
        source: rustls::Error,
        /// The first transfer that the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// A peer sent a frame that does not belong here.
    #[error("{}rank {rank} sent a frame with {field} {found}, expected {expected}", within(.at))]
    WrongFrame {
        /// The peer.
        rank: usize,
        /// The field that differs.
        field: &'static str,
        /// The value that this rank expected.
        expected: String,
        /// The value in the frame.
        found: String,
        /// The first transfer that the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// This process aborted the operation. No rank caused it.
    #[error("{}aborted{}: {reason}", within(.at), awaited(.waited_for))]
    Aborted {
        /// The reason given to [`Abort::abort`](crate::Abort::abort).
        reason: String,
        /// The rank whose bytes or room the operation needed first, if it was under way.
        waited_for: Option<usize>,
        /// The first transfer that the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// The system refused something else.
    #[error("cannot {attempted}")]
    System {
        /// The attempted action and its object.
        attempted: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

impl CollectiveError {
    /// Returns the peer that the failure is attributed to, if there is one.
    ///
    /// It is the peer that this rank waited for, or the rank that a leaving peer named, which may
    /// be this rank itself. When a group breaks, ranks see different peers go.
    /// [`CollectiveError::origin`] leads to the first.
    pub fn peer(&self) -> Option<usize> {
        match self {
            Self::PeerClosed { rank, .. }
            | Self::PeerSilent { rank, .. }
            | Self::BadFrame { rank, .. }
            | Self::BadRecord { rank, .. }
            | Self::WrongFrame { rank, .. } => Some(*rank),
            Self::PeerGaveUp { origin, .. } => Some(origin.rank),
            Self::NotFormed { missing, .. } => Some(missing.rank()),
            Self::PortInUse { .. }
            | Self::Listen { .. }
            | Self::NotInGroup { .. }
            | Self::Superseded { .. }
            | Self::Aborted { .. }
            | Self::System { .. } => None,
        }
    }

    /// Returns the rank that an aborted operation was waiting for, if it was under way.
    pub fn waited_for(&self) -> Option<usize> {
        match self {
            Self::Aborted { waited_for, .. } => *waited_for,
            _ => None,
        }
    }

    /// Returns the origin of the failure as far as this rank knows, if a peer failed.
    /// [`Origin::first`] finds the origin for the whole group.
    pub fn origin(&self) -> Option<Origin> {
        let (rank, at, fault) = match self {
            Self::PeerGaveUp { origin, .. } => return Some(*origin),
            Self::PeerClosed { rank, at } => (*rank, at, PeerFault::Closed),
            Self::PeerSilent { rank, at, .. } => (*rank, at, PeerFault::Silent),
            Self::BadFrame { rank, at, .. } | Self::BadRecord { rank, at, .. } | Self::WrongFrame { rank, at, .. } => {
                (*rank, at, PeerFault::Refused)
            }
            Self::PortInUse { .. }
            | Self::Listen { .. }
            | Self::NotInGroup { .. }
            | Self::NotFormed { .. }
            | Self::Superseded { .. }
            | Self::Aborted { .. }
            | Self::System { .. } => return None,
        };
        at.as_deref().map(|site| Origin { site: *site, rank, fault })
    }

    /// Returns this error with the transfer that the operation lacked.
    pub(crate) fn at_site(mut self, site: ErrorSite) -> Self {
        match &mut self {
            Self::PeerClosed { at, .. }
            | Self::PeerSilent { at, .. }
            | Self::BadFrame { at, .. }
            | Self::BadRecord { at, .. }
            | Self::WrongFrame { at, .. }
            | Self::Aborted { at, .. } => *at = Some(site.into()),
            Self::PortInUse { .. }
            | Self::Listen { .. }
            | Self::NotInGroup { .. }
            | Self::NotFormed { .. }
            | Self::Superseded { .. }
            | Self::PeerGaveUp { .. }
            | Self::System { .. } => {}
        }
        self
    }

    /// Returns this error with the rank that an aborted operation was waiting for.
    pub(crate) fn awaiting(mut self, rank: usize) -> Self {
        if let Self::Aborted { waited_for, .. } = &mut self {
            *waited_for = Some(rank);
        }
        self
    }

    pub(crate) fn system(attempted: impl Into<String>, source: io::Error) -> Self {
        Self::System { attempted: attempted.into(), source: Arc::new(source) }
    }
}

/// Shows the rank that an aborted operation was waiting for.
fn awaited(rank: &Option<usize>) -> impl fmt::Display {
    fmt::from_fn(|f| rank.iter().try_for_each(|rank| write!(f, " while it waited for rank {rank}")))
}

/// A rank that a forming group lacks: the first one that cannot be reached, or else the first that
/// has not connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A rank before this one has not connected.
    Unheard {
        /// Its rank.
        rank: usize,
        /// The reason of the last refusal here.
        last_refused: Option<String>,
        /// The number of other missing ranks.
        others: usize,
    },
    /// A rank after this one cannot be reached or refuses.
    Unreached {
        /// Its rank.
        rank: usize,
        /// Its address.
        address: SocketAddr,
        /// The result of the last attempt.
        last_attempt: String,
        /// The number of other missing ranks.
        others: usize,
    },
}

impl Missing {
    fn rank(&self) -> usize {
        match self {
            Self::Unheard { rank, .. } | Self::Unreached { rank, .. } => *rank,
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = match self {
            Self::Unheard { rank, last_refused: None, others } => {
                write!(f, "rank {rank} has not connected; check that it runs and reaches this address")?;
                others
            }
            Self::Unheard { rank, last_refused: Some(refused), others } => {
                write!(f, "rank {rank} has not connected; the last that did was refused: {refused}")?;
                others
            }
            Self::Unreached { rank, address, last_attempt, others } => {
                write!(f, "rank {rank} at {address} has not answered; the last attempt: {last_attempt}")?;
                others
            }
        };
        if *others > 0 { write!(f, "; {others} more are missing") } else { Ok(()) }
    }
}
