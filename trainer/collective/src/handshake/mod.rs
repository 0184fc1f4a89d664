//! Connects the ranks of one generation.
//!
//! Each rank dials the ranks after it and accepts those before it. Both ends name their job,
//! generation and rank before a connection counts.

mod accept;
mod dial;
mod greeting;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::error::Missing;
use crate::limits::Limits;
use crate::listener::Listener;
use crate::rank_id::RankId;
use crate::sockets::Sockets;
use crate::{Abort, CollectiveError, Identity};
use dial::{Dial, DialState};
use greeting::{PendingPeer, SocketIndex};

/// The longest pause before dialling again, and the pause in accepting while the system has no
/// room.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// The longest time for which a forming group may overlook an abort.
const ABORT_TICK: Duration = Duration::from_millis(5);

/// The pairs of ranks that are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Every pair.
    Mesh,
    /// The last rank with each of the others.
    Star,
}

/// Connects `id` with the other ranks of `peers`, which holds the address of every rank. Returns
/// the connections by rank, none to itself.
pub(crate) fn form(
    listener: &Listener,
    id: RankId,
    peers: &[SocketAddr],
    shape: Shape,
    limits: Limits,
    abort: &Abort,
) -> Result<Vec<Vec<Connection>>, CollectiveError> {
    let hub = peers.len() - 1;
    let (dialled, called) = match shape {
        Shape::Mesh => (id.rank + 1..peers.len(), 0..id.rank),
        Shape::Star if id.rank == hub => (0..0, 0..hub),
        Shape::Star => (hub..peers.len(), 0..0),
    };
    let sockets = match shape {
        Shape::Mesh => limits.sockets,
        // A star carries one part of a state at a time.
        Shape::Star => Sockets::ONE,
    };
    let indices = |rank| (0..sockets.get()).map(move |stripe| SocketIndex { rank, stripe, of: sockets });
    let started = Instant::now();
    let mut handshake = Handshake {
        id,
        sockets,
        silence: limits.silence,
        dials: dialled.flat_map(indices).map(|index| Dial::new(index, peers[index.rank])).collect(),
        pending: Vec::new(),
        accepted: called.flat_map(indices).map(|_| None).collect(),
        listens: shape == Shape::Mesh || id.rank == hub,
        accepts_after: started,
        last_refused: None,
    };
    loop {
        abort.check()?;
        handshake.dial(listener.identity.as_ref())?;
        handshake.accept(listener)?;
        handshake.read_greetings()?;
        if handshake.is_joined() {
            return Ok(handshake.into_connections(peers.len()));
        }
        if started.elapsed() >= limits.forming {
            return Err(CollectiveError::NotFormed {
                generation: id.generation,
                waited: limits.forming,
                missing: handshake.missing(),
            });
        }
        handshake.wait(listener, limits.forming.saturating_sub(started.elapsed()))?;
    }
}

struct Handshake {
    id: RankId,
    sockets: Sockets,
    silence: Duration,
    /// Connections to the ranks after this one, in rank order, one for each socket.
    dials: Vec<Dial>,
    pending: Vec<PendingPeer>,
    /// Connections from the ranks before this one, in rank order, one for each socket.
    accepted: Vec<Option<Connection>>,
    /// True if incoming connections are for this group.
    listens: bool,
    /// The end of a pause for lack of room.
    accepts_after: Instant,
    last_refused: Option<String>,
}

impl Handshake {
    fn dial(&mut self, identity: Option<&Identity>) -> Result<(), CollectiveError> {
        let Self { id, silence, .. } = *self;
        self.dials.iter_mut().try_for_each(|dial| dial.advance(id, silence, identity))
    }

    fn is_joined(&self) -> bool {
        self.dials.iter().all(|dial| matches!(dial.state, DialState::Joined(_)))
            && self.accepted.iter().all(Option::is_some)
    }

    /// Returns the established connections by rank.
    fn into_connections(self, world: usize) -> Vec<Vec<Connection>> {
        let mut connections: Vec<Vec<Connection>> = (0..world).map(|_| Vec::new()).collect();
        for (index, accepted) in self.accepted.into_iter().enumerate() {
            connections[index / self.sockets.get()].extend(accepted);
        }
        for Dial { index, state, .. } in self.dials {
            if let DialState::Joined(connection) = state {
                connections[index.rank].push(connection);
            }
        }
        connections
    }

    fn missing(&self) -> Missing {
        let unreached: Vec<&Dial> =
            self.dials.iter().filter(|dial| !matches!(dial.state, DialState::Joined(_))).collect();
        let unheard = (0..self.accepted.len()).filter(|index| self.accepted[*index].is_none());
        let mut unheard: Vec<usize> = unheard.map(|index| index / self.sockets.get()).collect();
        unheard.dedup();
        let mut ranks: Vec<usize> = unreached.iter().map(|dial| dial.index.rank).collect();
        ranks.dedup();
        let others = ranks.len() + unheard.len() - 1;
        match (unreached.first(), unheard.first()) {
            (Some(Dial { index, address, last_attempt, .. }), _) => {
                Missing::Unreached { rank: index.rank, address: *address, last_attempt: last_attempt.clone(), others }
            }
            (None, rank) => Missing::Unheard {
                rank: rank.copied().unwrap_or_default(),
                last_refused: self.last_refused.clone(),
                others,
            },
        }
    }

    fn wait(&self, listener: &Listener, left: Duration) -> Result<(), CollectiveError> {
        let mut limit = left.min(ABORT_TICK);
        let mut watched = Vec::new();
        if self.listens && self.accepts_after <= Instant::now() {
            watched.push(PollFd::new(&listener.socket, PollFlags::IN));
        }
        for dial in &self.dials {
            match &dial.state {
                DialState::Resting { until } => limit = limit.min(until.saturating_duration_since(Instant::now())),
                DialState::Connecting { socket, .. } => watched.push(PollFd::new(socket, PollFlags::OUT)),
                DialState::Greeting(peer) => watched.push(PollFd::new(peer.connection.socket(), PollFlags::IN)),
                DialState::Joined(_) => {}
            }
        }
        watched.extend(self.pending.iter().map(|peer| PollFd::new(peer.connection.socket(), PollFlags::IN)));
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut watched, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(CollectiveError::system("wait for the peers to connect", error.into())),
        }
    }
}
