//! Accepts incoming connections and answers their greetings.

use std::io;
use std::time::Instant;

use rustix::io::Errno;

use super::greeting::{PendingPeer, SocketIndex, describe, greeting, send_greeting, socket_mismatch, superseded};
use super::{Handshake, MAX_PAUSE};
use crate::CollectiveError;
use crate::connection::Connection;
use crate::frame::{FrameKind, Header};
use crate::listener::Listener;
use crate::socket::tune;

/// Connections beyond those of the group that may be in the middle of their greeting. A further one
/// displaces the oldest.
const MAX_UNIDENTIFIED: usize = 64;

impl Handshake {
    pub(super) fn accept(&mut self, listener: &Listener) -> Result<(), CollectiveError> {
        if !self.listens || Instant::now() < self.accepts_after {
            return Ok(());
        }
        let most = self.accepted.len() + MAX_UNIDENTIFIED;
        if self.pending.len() == most {
            self.pending.remove(0);
        }
        while self.pending.len() < most {
            match listener.socket.accept() {
                Ok((stream, _)) => {
                    if tune(&stream, self.silence).is_ok() {
                        match Connection::accepted(stream, listener) {
                            Ok(connection) => self.pending.push(PendingPeer::new(connection)),
                            Err(error) => self.last_refused = Some(describe(error)),
                        }
                    }
                }
                Err(error) => {
                    let attempted = || format!("accept a peer on {}", listener.address());
                    match AcceptFailure::from(&error) {
                        AcceptFailure::Nobody => {}
                        AcceptFailure::Gone => self.last_refused = Some(format!("cannot {}: {error}", attempted())),
                        AcceptFailure::NoRoom => {
                            self.last_refused = Some(format!("cannot {}: {error}", attempted()));
                            self.accepts_after = Instant::now() + MAX_PAUSE;
                        }
                        AcceptFailure::Fatal => return Err(CollectiveError::system(attempted(), error)),
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    pub(super) fn read_greetings(&mut self) -> Result<(), CollectiveError> {
        for mut peer in std::mem::take(&mut self.pending) {
            match peer.receive_header() {
                Ok(None) => self.pending.push(peer),
                Ok(Some(header)) => self.answer(peer.connection, header)?,
                Err(reason) => self.last_refused = Some(reason),
            }
        }
        Ok(())
    }

    /// Welcomes a rank before this one. Another rank of this job gets a refusal, and a stranger
    /// gets nothing; both are closed.
    fn answer(&mut self, mut connection: Connection, header: Header) -> Result<(), CollectiveError> {
        let (id, sender) = (self.id, header.sender as usize);
        if header.kind == FrameKind::Hello && header.job == id.job && header.generation > id.generation {
            return Err(superseded(id, sender, header.generation));
        }
        // No further than the last socket, so that a greater index differs.
        let index =
            SocketIndex { rank: sender, stripe: (header.chunk as usize).min(self.sockets.get() - 1), of: self.sockets };
        let hello = greeting(id, FrameKind::Hello, sender, index);
        let ignoring_sockets = Header { bucket: header.bucket, chunk: header.chunk, ..hello };
        let is_right = if header.bucket != hello.bucket && header.require(&ignoring_sockets, sender).is_ok() {
            Err(socket_mismatch(&header, self.sockets))
        } else {
            header.require(&hello, sender).map_err(|error| error.to_string())
        };
        let accepted = self.accepted.get_mut(sender * self.sockets.get() + index.stripe);
        match accepted.ok_or_else(|| format!("rank {sender} must be dialled by this rank")) {
            // A second greeting means that the rank has given its first connection up.
            Ok(accepted) if is_right.is_ok() => {
                match send_greeting(&mut connection, greeting(id, FrameKind::Welcome, id.rank, index)) {
                    Ok(()) => *accepted = Some(connection),
                    Err(reason) => self.last_refused = Some(reason),
                }
            }
            accepted => {
                self.last_refused = Some(is_right.err().or(accepted.err()).unwrap_or_default());
                if header.job == id.job {
                    // The connection closes anyway, so a failure changes nothing.
                    let _ = send_greeting(&mut connection, greeting(id, FrameKind::Refusal, id.rank, index));
                }
            }
        }
        Ok(())
    }
}

/// The reason why no connection was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptFailure {
    /// No connection is waiting.
    Nobody,
    /// The dialling rank has gone or cannot be reached. Another may come.
    Gone,
    /// The process or the system is out of files or memory. That may change.
    NoRoom,
    /// The listener no longer works.
    Fatal,
}

impl From<&io::Error> for AcceptFailure {
    /// Follows accept(2), which also reports network errors of a waiting connection.
    fn from(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::AGAIN) => Self::Nobody,
            Some(
                Errno::CONNABORTED
                | Errno::INTR
                | Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
                // A firewall's rules forbid it.
                | Errno::PERM,
            ) => Self::Gone,
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Self::NoRoom,
            _ => Self::Fatal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_broken_listener_ends_the_forming() {
        for (errors, means) in [
            (&[Errno::AGAIN, Errno::WOULDBLOCK][..], AcceptFailure::Nobody),
            (
                &[
                    Errno::CONNABORTED,
                    Errno::INTR,
                    Errno::NETDOWN,
                    Errno::PROTO,
                    Errno::NOPROTOOPT,
                    Errno::HOSTDOWN,
                    Errno::NONET,
                    Errno::HOSTUNREACH,
                    Errno::OPNOTSUPP,
                    Errno::NETUNREACH,
                    Errno::PERM,
                ],
                AcceptFailure::Gone,
            ),
            (&[Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM], AcceptFailure::NoRoom),
            (&[Errno::BADF, Errno::INVAL, Errno::NOTSOCK, Errno::FAULT], AcceptFailure::Fatal),
        ] {
            for error in errors {
                assert_eq!(AcceptFailure::from(&io::Error::from(*error)), means, "{error}");
            }
        }
        assert_eq!(AcceptFailure::from(&io::Error::other("no error of the system")), AcceptFailure::Fatal);
    }
}
