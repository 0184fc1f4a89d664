use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::error_site::{ErrorSite, Origin, PeerFault, within};
use crate::frame::FrameError;

/// What went wrong, and whose doing it was. Cloned into every operation that fails for the same cause.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CollectiveError {
    /// Another process listens on the data port.
    #[error(
        "cannot listen on {address}: the port is in use; stop the process that holds it or choose another data port"
    )]
    PortInUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The data port cannot be opened for another reason than being in use.
    #[error("cannot listen on {address}; check that this host owns the address and may open the port")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The caller's rank is not among the addresses of the group.
    #[error("rank {rank} is not in a group of {world}; pass the address of every rank, this one included")]
    NotInGroup {
        /// The caller's rank.
        rank: usize,
        /// The number of addresses passed.
        world: usize,
    },
    /// A rank did not join before the deadline.
    #[error("generation {generation} did not form within {waited:?}: {missing}")]
    NotFormed {
        /// The generation that was to form.
        generation: u64,
        /// How long this rank tried.
        waited: Duration,
        /// Who is missing and what was last seen of him.
        missing: Missing,
    },
    /// A rank is in a newer generation already.
    #[error("rank {rank} is in generation {newer} already, this rank tried to form {generation}; join the newer one")]
    Superseded {
        /// The rank, by its number in either generation.
        rank: usize,
        /// The generation that this rank tried to form.
        generation: u64,
        /// Its generation.
        newer: u64,
    },
    /// A peer closed its end, or its machine did so for it.
    #[error("{}rank {rank} closed its connection", within(.at))]
    PeerClosed {
        /// The peer.
        rank: usize,
        /// What the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// A peer gave the group up before, and has said why.
    #[error("rank {rank} gave up because {origin}")]
    PeerGaveUp {
        /// The peer.
        rank: usize,
        /// What broke the group for it, or for the one that had told it.
        origin: Origin,
    },
    /// No frame came from a peer, or could be sent to it, within the limit.
    #[error("{}nothing came from rank {rank}, or could be sent to it, for {waited:?}", within(.at))]
    PeerSilent {
        /// The peer that was waited for.
        rank: usize,
        /// How long.
        waited: Duration,
        /// What the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// A peer sent bytes that are no frame.
    #[error("{}rank {rank} sent bytes that are no frame", within(.at))]
    BadFrame {
        /// The peer.
        rank: usize,
        /// What is wrong with them.
        source: FrameError,
        /// What the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// A peer sent bytes that TLS refuses.
    #[error("{}rank {rank} sent bytes that are no record of its encrypted connection", within(.at))]
    BadRecord {
        /// The peer.
        rank: usize,
        /// What is wrong with them.
        source: rustls::Error,
        /// What the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// A peer sent a frame that does not belong here.
    #[error("{}rank {rank} sent a frame with {field} {found}, expected {expected}", within(.at))]
    WrongFrame {
        /// The peer.
        rank: usize,
        /// The field that differs.
        field: &'static str,
        /// What this rank expected there.
        expected: String,
        /// What the frame holds.
        found: String,
        /// What the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// The operation was aborted from this process, which is no rank's doing.
    #[error("{}aborted{}: {reason}", within(.at), awaited(.waited_for))]
    Aborted {
        /// The reason given to [`Abort::abort`](crate::Abort::abort).
        reason: String,
        /// The rank that had something to send or to take first, where it was under way.
        waited_for: Option<usize>,
        /// What the operation lacked.
        at: Option<Box<ErrorSite>>,
    },
    /// The system refused something else.
    #[error("cannot {attempted}")]
    System {
        /// What was attempted, on what.
        attempted: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
}

impl CollectiveError {
    /// The peer to which the failure is attributed, when there is one. It is the one that this rank waited for, or that a peer which gave up
    /// has named, be it this rank itself: when a group breaks, ranks see different peers go, and [`CollectiveError::origin`] tells who went first.
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

    /// The rank that an operation was waiting for that was aborted, if it was under way.
    pub fn waited_for(&self) -> Option<usize> {
        match self {
            Self::Aborted { waited_for, .. } => *waited_for,
            _ => None,
        }
    }

    /// What broke the operation, as far as this rank knows, when a peer did. [`Origin::first`] finds what broke it for all.
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

    /// The same of an operation that lacked this.
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

    /// The same of an operation that was waiting for a rank, in case it was aborted.
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

/// Whom an operation was waiting for that was aborted.
fn awaited(rank: &Option<usize>) -> impl fmt::Display {
    fmt::from_fn(|f| rank.iter().try_for_each(|rank| write!(f, " while it waited for rank {rank}")))
}

/// A rank that a forming group lacks: the first that cannot be reached, else the first that has not called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A rank before this one has not connected.
    Unheard {
        /// Its rank.
        rank: usize,
        /// What the last one refused here was refused for.
        last_refused: Option<String>,
        /// How many more are missing.
        others: usize,
    },
    /// A rank after this one cannot be reached or does not agree.
    Unreached {
        /// Its rank.
        rank: usize,
        /// Its address.
        address: SocketAddr,
        /// What the last attempt met.
        last_attempt: String,
        /// How many more are missing.
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
