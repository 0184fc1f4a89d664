//! Hears those who call, and answers them.

use std::io;
use std::time::Instant;

use rustix::io::Errno;

use super::greeting::{Caller, Place, greeting, met, other_sockets, say, superseded};
use super::{Forming, MAX_PAUSE};
use crate::CollectiveError;
use crate::connection::Connection;
use crate::frame::{Header, Kind};
use crate::link::{Listener, tune};

/// Connections besides those of the group that may be in the middle of their greeting; the oldest goes when another comes.
const MAX_STRANGERS: usize = 64;

impl Forming {
    pub(super) fn accept(&mut self, listener: &Listener) -> Result<(), CollectiveError> {
        if !self.listens || Instant::now() < self.accepts_after {
            return Ok(());
        }
        let most = self.accepted.len() + MAX_STRANGERS;
        if self.callers.len() == most {
            self.callers.remove(0);
        }
        while self.callers.len() < most {
            match listener.socket.accept() {
                Ok((stream, _)) => {
                    if tune(&stream, self.silence).is_ok() {
                        match Connection::called(stream, listener) {
                            Ok(connection) => self.callers.push(Caller::new(connection)),
                            Err(error) => self.last_refused = Some(met(error)),
                        }
                    }
                }
                Err(error) => {
                    let attempted = || format!("accept a peer on {}", listener.address());
                    match NoCaller::from(&error) {
                        NoCaller::Nobody => {}
                        NoCaller::Gone => self.last_refused = Some(format!("cannot {}: {error}", attempted())),
                        NoCaller::NoRoom => {
                            self.last_refused = Some(format!("cannot {}: {error}", attempted()));
                            self.accepts_after = Instant::now() + MAX_PAUSE;
                        }
                        NoCaller::Never => return Err(CollectiveError::system(attempted(), error)),
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    pub(super) fn hear_callers(&mut self) -> Result<(), CollectiveError> {
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.hear() {
                Ok(None) => self.callers.push(caller),
                Ok(Some(header)) => self.answer(caller.connection, header)?,
                Err(met) => self.last_refused = Some(met),
            }
        }
        Ok(())
    }

    /// Welcomes a rank before this one. Tells another of this job who is here, and closes; closes on a stranger.
    fn answer(&mut self, mut connection: Connection, header: Header) -> Result<(), CollectiveError> {
        let (seat, sender) = (self.seat, header.sender as usize);
        if header.kind == Kind::Hello && header.job == seat.job && header.generation > seat.generation {
            return Err(superseded(seat, sender, header.generation));
        }
        // No further than the last, so that one beyond it differs.
        let place =
            Place { rank: sender, stripe: (header.chunk as usize).min(self.sockets.get() - 1), of: self.sockets };
        let hello = greeting(seat, Kind::Hello, sender, place);
        let but_for_sockets = Header { bucket: header.bucket, chunk: header.chunk, ..hello };
        let is_right = if header.bucket != hello.bucket && header.require(&but_for_sockets, sender).is_ok() {
            Err(other_sockets(&header, self.sockets))
        } else {
            header.require(&hello, sender).map_err(|error| error.to_string())
        };
        let accepted = self.accepted.get_mut(sender * self.sockets.get() + place.stripe);
        match accepted.ok_or_else(|| format!("rank {sender} is to be called, not to call")) {
            // A second greeting of a rank means that it has given its first connection up.
            Ok(accepted) if is_right.is_ok() => {
                match say(&mut connection, greeting(seat, Kind::Welcome, seat.rank, place)) {
                    Ok(()) => *accepted = Some(connection),
                    Err(met) => self.last_refused = Some(met),
                }
            }
            accepted => {
                self.last_refused = Some(is_right.err().or(accepted.err()).unwrap_or_default());
                if header.job == seat.job {
                    // It is being turned away; whether it hears why makes no difference here.
                    let _ = say(&mut connection, greeting(seat, Kind::Refusal, seat.rank, place));
                }
            }
        }
        Ok(())
    }
}

/// Why no connection was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoCaller {
    /// Nobody is calling.
    Nobody,
    /// Whoever called has gone, or cannot be reached: another may call.
    Gone,
    /// The process, or the system, has as many files or as little memory as it may: that may change.
    NoRoom,
    /// The listener is of no use.
    Never,
}

impl From<&io::Error> for NoCaller {
    /// By accept(2), where errors of a connection that waits are those of its network too.
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
            _ => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listener_that_is_of_no_use_ends_the_forming() {
        for (errors, means) in [
            (&[Errno::AGAIN, Errno::WOULDBLOCK][..], NoCaller::Nobody),
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
                NoCaller::Gone,
            ),
            (&[Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM], NoCaller::NoRoom),
            (&[Errno::BADF, Errno::INVAL, Errno::NOTSOCK, Errno::FAULT], NoCaller::Never),
        ] {
            for error in errors {
                assert_eq!(NoCaller::from(&io::Error::from(*error)), means, "{error}");
            }
        }
        assert_eq!(NoCaller::from(&io::Error::other("no error of the system")), NoCaller::Never);
    }
}
