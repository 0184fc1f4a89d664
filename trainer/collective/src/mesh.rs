//! The connections of one rank with all others: bytes go and come without ever blocking.

use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::link::set_silence;
use crate::session::Broken;
use crate::{Abort, CollectiveError};

/// Room for bytes, or word that the other end has closed.
const ROOM: PollFlags = PollFlags::OUT.union(PollFlags::RDHUP);
/// Sleeps are cut into pieces of a length that the system can count.
const LONGEST_SLEEP: Duration = Duration::from_secs(1 << 20);

/// The members of one generation, each connected to each, as one of them sees it.
#[derive(Debug)]
pub(crate) struct Mesh {
    /// By rank; none to this one itself.
    peers: Box<[Option<Connection>]>,
    silence: Duration,
}

/// What a rank waits for; at least one of the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Room for bytes to this rank.
    pub(crate) to: Option<usize>,
    /// Bytes from this rank.
    pub(crate) from: Option<usize>,
}

impl Mesh {
    /// Takes over the connections that a group has formed; `abort` shuts them down.
    pub(crate) fn over(
        peers: Vec<Option<Connection>>,
        silence: Duration,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        peers.iter().flatten().try_for_each(|peer| abort.guard(peer.socket()))?;
        Ok(Self { peers: peers.into(), silence })
    }

    pub(crate) fn world(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn set_silence(&mut self, silence: Duration) -> Result<(), CollectiveError> {
        if silence != self.silence {
            for peer in self.peers.iter().flatten() {
                set_silence(peer.socket(), silence)
                    .map_err(|error| CollectiveError::system("set a socket's timeout", error))?;
            }
            self.silence = silence;
        }
        Ok(())
    }

    /// Sends what the connection takes of two parts; `None` when it takes nothing now, and wants the same bytes again later.
    pub(crate) fn send(&mut self, to: usize, header: &[u8], payload: &[u8]) -> Result<Option<usize>, CollectiveError> {
        let sent = self.peer(to).send(header, payload);
        self.moved(sent, to)
    }

    /// Receives what is there of two parts; `None` when nothing is.
    pub(crate) fn receive(
        &mut self,
        from: usize,
        header: &mut [u8],
        payload: &mut [u8],
    ) -> Result<Option<usize>, CollectiveError> {
        let came = self.peer(from).receive(header, payload);
        match self.moved(came, from)? {
            Some(0) => Err(CollectiveError::PeerClosed { rank: from }),
            moved => Ok(moved),
        }
    }

    /// Sleeps until what is wanted is there, having found nothing to do for `idle`.
    pub(crate) fn wait(&self, wanted: Wanted, idle: Duration) -> Result<(), CollectiveError> {
        let Wanted { to, from } = wanted;
        let Some(left) = self.silence.checked_sub(idle).filter(|left| !left.is_zero()) else {
            // While both are lacking, it is the starved rank that knows whom it waits for.
            let Some(rank) = from.or(to) else { unreachable!("a rank that wants nothing does not wait") };
            return Err(CollectiveError::PeerSilent { rank, waited: idle });
        };
        let (to_stream, from_stream) = (to.map(|rank| self.stream(rank)), from.map(|rank| self.stream(rank)));
        let limit = Timespec { tv_sec: left.min(LONGEST_SLEEP).as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let polled = match (to_stream, from_stream) {
            (Some(to_stream), Some(from_stream)) => {
                let mut watched = [PollFd::new(to_stream, ROOM), PollFd::new(from_stream, PollFlags::IN)];
                poll(&mut watched, Some(&limit)).map(|_| watched[0].revents())
            }
            (Some(to_stream), None) => {
                let mut watched = [PollFd::new(to_stream, ROOM)];
                poll(&mut watched, Some(&limit)).map(|_| watched[0].revents())
            }
            (None, Some(from_stream)) => {
                poll(&mut [PollFd::new(from_stream, PollFlags::IN)], Some(&limit)).map(|_| PollFlags::empty())
            }
            (None, None) => Ok(PollFlags::empty()),
        };
        match polled {
            Ok(events) if events.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) => {
                let Some((rank, stream)) = to.zip(to_stream) else { return Ok(()) };
                match rustix::net::sockopt::socket_error(stream) {
                    Ok(Err(error)) => self.moved(Err(error.into()), rank).map(drop),
                    // It needs what is to be sent, and has gone without it.
                    _ => Err(CollectiveError::PeerClosed { rank }),
                }
            }
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(CollectiveError::system("wait for the peers' sockets", error.into())),
        }
    }

    /// Fails when a rank that has been waited for elsewhere for `waited` has closed its connection, or has been silent for too long.
    pub(crate) fn check(&self, rank: usize, waited: Duration) -> Result<(), CollectiveError> {
        let mut watched = [PollFd::new(self.stream(rank), PollFlags::RDHUP)];
        match poll(&mut watched, Some(&Timespec::default())) {
            Ok(0) | Err(Errno::INTR) if waited < self.silence => Ok(()),
            Ok(0) | Err(Errno::INTR) => Err(CollectiveError::PeerSilent { rank, waited }),
            Ok(_) => Err(CollectiveError::PeerClosed { rank }),
            Err(error) => Err(CollectiveError::system("look at a peer's socket", error.into())),
        }
    }

    /// Closes all connections both ways, so that the peers notice too.
    pub(crate) fn shut_down(&self) {
        for peer in self.peers.iter().flatten() {
            // It may be shut down already: by the peer, or by an abort.
            let _ = peer.socket().shutdown(Shutdown::Both);
        }
    }

    fn stream(&self, rank: usize) -> &TcpStream {
        match &self.peers[rank] {
            Some(peer) => peer.socket(),
            None => unreachable!("no schedule has a rank send to itself"),
        }
    }

    fn peer(&mut self, rank: usize) -> &mut Connection {
        match &mut self.peers[rank] {
            Some(peer) => peer,
            None => unreachable!("no schedule has a rank send to itself"),
        }
    }

    /// The bytes that moved to or from `rank`; `None` when it would have been necessary to wait.
    fn moved(&self, outcome: Result<usize, Broken>, rank: usize) -> Result<Option<usize>, CollectiveError> {
        let error = match outcome {
            Ok(count) => return Ok(Some(count)),
            Err(broken) if broken.is_nothing() => return Ok(None),
            Err(Broken::Tls(source)) => return Err(CollectiveError::BadRecord { rank, source }),
            Err(Broken::Unproved) => return Err(CollectiveError::PeerClosed { rank }),
            Err(Broken::System(error)) => error,
        };
        match error {
            Errno::PIPE | Errno::CONNRESET | Errno::CONNABORTED | Errno::NOTCONN | Errno::SHUTDOWN => {
                Err(CollectiveError::PeerClosed { rank })
            }
            // A host that has vanished is unreachable by the time that its silence is over.
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => {
                Err(CollectiveError::PeerSilent { rank, waited: self.silence })
            }
            error => Err(CollectiveError::system(format!("exchange bytes with rank {rank}"), error.into())),
        }
    }
}
