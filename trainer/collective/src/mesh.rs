//! The connections of one rank with all others. They never block.

use std::net::Shutdown;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::link_error::{LinkError, WrongSegment};
use crate::poll_set::PollSet;
use crate::socket::set_unacknowledged;
use crate::sockets::MAX_SOCKETS;
use crate::stripes::Stripes;
use crate::{Abort, CollectiveError};

/// The longest time without a byte after a peer has closed one of its connections. It closes all of
/// them, but the last bytes may still be on their way.
const MAX_CLOSING: Duration = Duration::from_secs(2);

/// The most bytes that are read from each connection of a pair to find the last ones: as many as
/// its two sockets may hold.
const MAX_UNREAD_BYTES: usize = 16 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// The links of one generation's members, as one of them sees them.
#[derive(Debug)]
pub(crate) struct Mesh {
    /// By rank; none to this rank itself.
    peers: Box<[Option<Stripes>]>,
    silence: Duration,
    /// The longest time for which a peer's system may acknowledge nothing.
    unacknowledged: Duration,
    /// The rank whose accepted bytes are still unsent. There is one at most, so that a rank waits
    /// as if each peer had a single connection, which accepts only bytes that it sends.
    unsent: Option<usize>,
}

/// The needs of a waiting rank: at least one of the first two, unless accepted bytes are unsent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Room for bytes to this rank.
    pub(crate) to: Option<usize>,
    /// Bytes from this rank.
    pub(crate) from: Option<usize>,
    /// The rank of the transfer that comes first in the order of all ranks. If several transfers
    /// are lacking, the others may only wait for their turn.
    pub(crate) first: Option<usize>,
}

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spent {
    Silence,
    Closing,
}

impl Mesh {
    /// Takes over the connections of a formed group. `abort` shuts them down.
    pub(crate) fn over(peers: Vec<Vec<Connection>>, silence: Duration, abort: &Abort) -> Result<Self, CollectiveError> {
        peers.iter().flatten().try_for_each(|connection| abort.guard(connection.socket()))?;
        let stripes = |connections: Vec<_>| (!connections.is_empty()).then(|| Stripes::over(connections));
        Ok(Self { peers: peers.into_iter().map(stripes).collect(), silence, unacknowledged: silence, unsent: None })
    }

    pub(crate) fn world(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn set_silence(&mut self, silence: Duration, unacknowledged: Duration) -> Result<(), CollectiveError> {
        for socket in self.peers.iter().flatten().flat_map(Stripes::sockets) {
            set_unacknowledged(socket, unacknowledged)
                .map_err(|error| CollectiveError::system("set a socket's timeout", error))?;
        }
        (self.silence, self.unacknowledged) = (silence, unacknowledged);
        Ok(())
    }

    /// Accepts as much of the two parts as fits. Returns `None` if nothing fits now; the caller
    /// must repeat the same bytes later.
    pub(crate) fn send(&mut self, to: usize, header: &[u8], payload: &[u8]) -> Result<Option<usize>, CollectiveError> {
        if self.unsent.is_some_and(|rank| rank != to) {
            self.flush()?;
            if !self.is_flushed() {
                return Ok(None);
            }
        }
        let peer = self.peer(to);
        let (sent, is_left) = (peer.send(header, payload), peer.has_unsent());
        self.unsent = Some(to).filter(|_| is_left);
        self.moved(sent, to)
    }

    /// Receives the available bytes into two parts. Returns `None` if there are none.
    pub(crate) fn receive(
        &mut self,
        from: usize,
        header: &mut [u8],
        payload: &mut [u8],
    ) -> Result<Option<usize>, CollectiveError> {
        let came = self.peer(from).receive(header, payload);
        match self.moved(came, from)? {
            Some(0) => Err(CollectiveError::PeerClosed { rank: from, at: None }),
            moved => Ok(moved),
        }
    }

    /// Sends unsent bytes as far as there is room. Returns true if any moved.
    pub(crate) fn flush(&mut self) -> Result<bool, CollectiveError> {
        let Some(rank) = self.unsent else { return Ok(false) };
        let peer = self.peer(rank);
        let (flushed, is_left) = (peer.flush(), peer.has_unsent());
        self.unsent = Some(rank).filter(|_| is_left);
        flushed.map_err(|broken| self.error_of(broken, rank))
    }

    /// Returns true once all accepted bytes are sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unsent.is_none()
    }

    /// Returns the longest time without a whole frame.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// Sleeps until a need is met. Nothing was found for `idle`, and no frame was completed for
    /// `stalled`.
    pub(crate) fn wait(&self, needs: Needs, idle: Duration, stalled: Duration) -> Result<(), CollectiveError> {
        let (to, from) = (self.unsent.or(needs.to), needs.from);
        let closed_for = from.and_then(|rank| self.stripes(rank).closed_for());
        let left =
            time_left(self.silence, idle, stalled, closed_for).map_err(|spent| match (spent, needs.first, from) {
                (Spent::Silence, Some(rank), _) => CollectiveError::PeerSilent { rank, waited: stalled, at: None },
                (Spent::Closing, _, Some(rank)) => CollectiveError::PeerClosed { rank, at: None },
                (Spent::Silence, None, _) | (Spent::Closing, _, None) => {
                    unreachable!("a rank that needs nothing does not wait")
                }
            })?;
        let mut watched = PollSet::default();
        let (room, bytes) = watched.slots.split_at_mut(MAX_SOCKETS);
        if let Some(rank) = to {
            room.iter_mut().zip(self.stripes(rank).room(needs.to == to)).for_each(|(slot, socket)| *slot = socket);
        }
        if let Some(rank) = from {
            bytes.iter_mut().zip(self.stripes(rank).bytes()).for_each(|(slot, socket)| *slot = socket);
        }
        match watched.poll(left) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => return Err(CollectiveError::system("wait for the peers' sockets", error.into())),
        }
        let Some(rank) = to else { return Ok(()) };
        for (slot, socket) in watched.slots.iter().zip(self.stripes(rank).sockets()) {
            if slot.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
                return Err(match rustix::net::sockopt::socket_error(socket) {
                    Ok(Err(error)) => self.error_of(error.into(), rank),
                    // The peer has gone without the bytes that it needs.
                    _ => CollectiveError::PeerClosed { rank, at: None },
                });
            }
        }
        Ok(())
    }

    /// Fails if a rank has closed a connection, or has been silent for too long: the caller has
    /// waited for it elsewhere for `waited`.
    pub(crate) fn check(&self, rank: usize, waited: Duration) -> Result<(), CollectiveError> {
        let mut watched = PollSet::default();
        for (slot, socket) in watched.slots.iter_mut().zip(self.stripes(rank).sockets()) {
            *slot = PollFd::new(socket, PollFlags::RDHUP);
        }
        match watched.poll(Duration::ZERO) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => return Err(CollectiveError::system("look at a peer's socket", error.into())),
        }
        if watched.slots.iter().any(|slot| !slot.revents().is_empty()) {
            return Err(CollectiveError::PeerClosed { rank, at: None });
        }
        if waited < self.silence { Ok(()) } else { Err(CollectiveError::PeerSilent { rank, waited, at: None }) }
    }

    /// Sends two parts as this rank's last bytes to another, as far as there is room now.
    pub(crate) fn send_last(&mut self, rank: usize, header: &[u8], payload: &[u8]) {
        if let Some(peer) = self.peers[rank].as_mut().filter(|peer| !peer.holds_bytes()) {
            // The connection ends whether they arrive or not.
            let _ = peer.send(header, payload);
        }
    }

    /// Returns the last bytes of a rank that has closed, up to `most`. If too many bytes are
    /// unread, it returns some of them.
    pub(crate) fn last_bytes(&mut self, rank: usize, most: usize) -> Vec<u8> {
        let (mut bytes, mut filled, mut read) = (vec![0; most + READ_BYTES], 0, 0);
        let limit = MAX_UNREAD_BYTES * self.peer(rank).sockets().count();
        while read < limit {
            let Ok(count @ 1..) = self.peer(rank).receive(&mut [], &mut bytes[filled..]) else { break };
            (filled, read) = (filled + count, read + count);
            let kept = filled.min(most);
            bytes.copy_within(filled - kept..filled, 0);
            filled = kept;
        }
        bytes.truncate(filled);
        bytes
    }

    /// Closes all connections both ways, so that the peers notice too.
    pub(crate) fn shut_down(&self) {
        for socket in self.peers.iter().flatten().flat_map(Stripes::sockets) {
            // The peer or an abort may have shut it down already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn stripes(&self, rank: usize) -> &Stripes {
        match &self.peers[rank] {
            Some(peer) => peer,
            None => panic!("rank {rank} is not connected with this one: in a star only its centre is"),
        }
    }

    fn peer(&mut self, rank: usize) -> &mut Stripes {
        match &mut self.peers[rank] {
            Some(peer) => peer,
            None => panic!("rank {rank} is not connected with this one: in a star only its centre is"),
        }
    }

    /// Returns the bytes that moved to or from `rank`, or `None` if the caller must wait.
    fn moved(&self, outcome: Result<usize, LinkError>, rank: usize) -> Result<Option<usize>, CollectiveError> {
        match outcome {
            Ok(count) => Ok(Some(count)),
            Err(broken) if broken.would_block() => Ok(None),
            Err(broken) => Err(self.error_of(broken, rank)),
        }
    }

    /// Attributes a broken connection to `rank`.
    fn error_of(&self, broken: LinkError, rank: usize) -> CollectiveError {
        let error = match broken {
            LinkError::Tls(source) => return CollectiveError::BadRecord { rank, source, at: None },
            LinkError::Segment(WrongSegment { field, expected, found }) => {
                return CollectiveError::WrongFrame { rank, field, expected, found, at: None };
            }
            LinkError::Unproved => return CollectiveError::PeerClosed { rank, at: None },
            LinkError::System(error) => error,
        };
        match error {
            Errno::PIPE | Errno::CONNRESET | Errno::CONNABORTED | Errno::NOTCONN | Errno::SHUTDOWN => {
                CollectiveError::PeerClosed { rank, at: None }
            }
            // The network's last word on a vanished host or a firewall comes after its silence.
            Errno::TIMEDOUT
            | Errno::HOSTUNREACH
            | Errno::HOSTDOWN
            | Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::NONET
            | Errno::CONNREFUSED
            | Errno::ACCESS
            | Errno::PERM => CollectiveError::PeerSilent { rank, waited: self.unacknowledged, at: None },
            error => CollectiveError::system(format!("exchange bytes with rank {rank}"), error.into()),
        }
    }
}

/// Returns how long a rank may still wait. It found nothing for `idle` and completed no frame for
/// `stalled`; its peer closed one of several connections `closed_for` ago.
fn time_left(
    silence: Duration,
    idle: Duration,
    stalled: Duration,
    closed_for: Option<Duration>,
) -> Result<Duration, Spent> {
    let left = |limit: Duration, waited: Duration| limit.checked_sub(waited).filter(|left| !left.is_zero());
    let silent = left(silence, stalled).ok_or(Spent::Silence)?;
    match closed_for {
        None => Ok(silent),
        Some(closed_for) => Ok(silent.min(left(MAX_CLOSING, idle.min(closed_for)).ok_or(Spent::Closing)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_waits_until_the_silence_limit_or_for_a_short_time_after_a_connection_closed() {
        const fn seconds(count: u64) -> Duration {
            Duration::from_secs(count)
        }
        let (none, some) = (None, |count| Some(seconds(count)));
        for (idle, stalled, closed_for, left) in [
            (seconds(0), seconds(0), none, Ok(seconds(30))),
            (seconds(29), seconds(29), none, Ok(seconds(1))),
            (seconds(30), seconds(30), none, Err(Spent::Silence)),
            (seconds(31), seconds(31), some(0), Err(Spent::Silence)),
            // A byte now and then does not end the silence.
            (seconds(1), seconds(29), none, Ok(seconds(1))),
            (seconds(1), seconds(30), none, Err(Spent::Silence)),
            // The connection closed just now, after a long wait.
            (seconds(20), seconds(20), some(0), Ok(MAX_CLOSING)),
            (seconds(29), seconds(29), some(0), Ok(seconds(1))),
            // The connection closed long ago, but a byte came just now.
            (seconds(0), seconds(20), some(20), Ok(MAX_CLOSING)),
            (MAX_CLOSING, seconds(20), some(20), Err(Spent::Closing)),
            (seconds(20), seconds(20), Some(MAX_CLOSING), Err(Spent::Closing)),
        ] {
            assert_eq!(
                time_left(seconds(30), idle, stalled, closed_for),
                left,
                "{idle:?}, {stalled:?}, {closed_for:?}"
            );
        }
    }
}
