//! The connections of one rank with all others: bytes go and come without ever blocking.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::link::set_silence;
use crate::{Abort, CollectiveError};

/// Room for bytes, or word that the other end has closed.
const ROOM: PollFlags = PollFlags::OUT.union(PollFlags::RDHUP);
/// Sleeps are cut into pieces of a length that the system can count.
const LONGEST_SLEEP: Duration = Duration::from_secs(1 << 20);

/// The members of one generation, each connected to each, as one of them sees it.
#[derive(Debug)]
pub(crate) struct Mesh {
    /// By rank; none to this one itself.
    peers: Box<[Option<Arc<TcpStream>>]>,
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
        streams: Vec<Option<TcpStream>>,
        silence: Duration,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        let peers: Box<[_]> = streams.into_iter().map(|stream| stream.map(Arc::new)).collect();
        peers.iter().flatten().try_for_each(|stream| abort.guard(stream))?;
        Ok(Self { peers, silence })
    }

    pub(crate) fn world(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn set_silence(&mut self, silence: Duration) -> Result<(), CollectiveError> {
        if silence != self.silence {
            for stream in self.peers.iter().flatten() {
                set_silence(stream, silence)
                    .map_err(|error| CollectiveError::system("set a socket's timeout", error))?;
            }
            self.silence = silence;
        }
        Ok(())
    }

    /// Sends what the socket takes of two parts; `None` when it takes nothing now.
    pub(crate) fn send(&self, to: usize, header: &[u8], payload: &[u8]) -> Result<Option<usize>, CollectiveError> {
        let parts = [IoSlice::new(header), IoSlice::new(payload)];
        let parts = if header.is_empty() { &parts[1..] } else { &parts[..] };
        let mut nothing_besides = SendAncillaryBuffer::default();
        let sent = rustix::net::sendmsg(self.stream(to), parts, &mut nothing_besides, SendFlags::NOSIGNAL);
        self.moved(sent, to)
    }

    /// Receives what is there of two parts; `None` when nothing is.
    pub(crate) fn receive(
        &self,
        from: usize,
        header: &mut [u8],
        payload: &mut [u8],
    ) -> Result<Option<usize>, CollectiveError> {
        let came = if header.is_empty() {
            rustix::io::read(self.stream(from), payload)
        } else {
            rustix::io::readv(self.stream(from), &mut [IoSliceMut::new(header), IoSliceMut::new(payload)])
        };
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
                    Ok(Err(error)) => self.moved(Err(error), rank).map(drop),
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
        for stream in self.peers.iter().flatten() {
            // It may be shut down already: by the peer, or by an abort.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn stream(&self, rank: usize) -> &TcpStream {
        match &self.peers[rank] {
            Some(stream) => stream,
            None => unreachable!("no schedule has a rank send to itself"),
        }
    }

    /// The bytes that a system call moved to or from `rank`; `None` when it would have had to wait.
    fn moved(&self, outcome: Result<usize, Errno>, rank: usize) -> Result<Option<usize>, CollectiveError> {
        match outcome {
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::CONNABORTED | Errno::NOTCONN | Errno::SHUTDOWN) => {
                Err(CollectiveError::PeerClosed { rank })
            }
            // A host that has vanished is unreachable by the time that its silence is over.
            Err(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                Err(CollectiveError::PeerSilent { rank, waited: self.silence })
            }
            Err(error) => Err(CollectiveError::system(format!("exchange bytes with rank {rank}"), error.into())),
        }
    }
}
