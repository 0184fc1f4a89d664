//! Dials a rank until it answers.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::MAX_PAUSE;
use super::greeting::{PendingPeer, SocketIndex, describe, extra_sockets, greeting, socket_mismatch, superseded};
use crate::connection::Connection;
use crate::frame::FrameKind;
use crate::rank_id::RankId;
use crate::socket::{dial, tune};
use crate::{CollectiveError, Identity};

/// The first pause before dialling again. It doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// The longest time for one attempt. The system's own retries would wait longer and longer.
const MAX_CONNECTING: Duration = Duration::from_secs(2);

/// A connection to one rank after this one.
pub(super) struct Dial {
    pub(super) index: SocketIndex,
    pub(super) address: SocketAddr,
    pub(super) state: DialState,
    pause: Duration,
    pub(super) last_attempt: String,
}

/// The state of a connection that is being dialled.
pub(super) enum DialState {
    Resting { until: Instant },
    Connecting { socket: Socket, since: Instant },
    Greeting(PendingPeer),
    Joined(Connection),
}

impl Dial {
    pub(super) fn new(index: SocketIndex, address: SocketAddr) -> Self {
        let state = DialState::Resting { until: Instant::now() };
        Self { index, address, state, pause: MIN_PAUSE, last_attempt: "not yet connected".to_owned() }
    }

    pub(super) fn advance(
        &mut self,
        id: RankId,
        silence: Duration,
        identity: Option<&Identity>,
    ) -> Result<(), CollectiveError> {
        let resting = DialState::Resting { until: Instant::now() };
        let attempt = match std::mem::replace(&mut self.state, resting) {
            DialState::Resting { until } if Instant::now() < until => Ok(DialState::Resting { until }),
            DialState::Resting { .. } => {
                let since = Instant::now();
                dial(self.address).map(|socket| DialState::Connecting { socket, since }).map_err(|e| e.to_string())
            }
            DialState::Connecting { since, .. } if since.elapsed() >= MAX_CONNECTING => {
                Err(format!("no answer within {MAX_CONNECTING:?}"))
            }
            DialState::Connecting { socket, since } => {
                let greeted = greet(socket, since, id, self.index, silence, identity);
                if matches!(greeted, Ok(DialState::Greeting(_))) {
                    self.last_attempt = "connected, but it is not forming this group yet".to_owned();
                }
                greeted
            }
            DialState::Greeting(peer) => self.read_answer(peer, id)?,
            DialState::Joined(connection) => Ok(DialState::Joined(connection)),
        };
        self.state = attempt.unwrap_or_else(|reason| {
            self.last_attempt = reason;
            let until = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(MAX_PAUSE);
            DialState::Resting { until }
        });
        Ok(())
    }

    /// Reads the answer to the greeting. The outer error ends the forming, the inner one only this
    /// attempt.
    fn read_answer(&self, mut peer: PendingPeer, id: RankId) -> Result<Result<DialState, String>, CollectiveError> {
        let header = match peer.receive_header() {
            Ok(None) => return Ok(Ok(DialState::Greeting(peer))),
            Ok(Some(header)) => header,
            Err(reason) => return Ok(Err(reason)),
        };
        let SocketIndex { rank, of, .. } = self.index;
        if header.kind == FrameKind::Refusal && header.job == id.job {
            if header.generation > id.generation {
                return Err(superseded(id, rank, header.generation));
            }
            if header.generation == id.generation && header.bucket != extra_sockets(of) {
                return Ok(Err(socket_mismatch(&header, of)));
            }
            return Ok(Err(format!("it is rank {} of generation {} and refused", header.sender, header.generation)));
        }
        Ok(match header.require(&greeting(id, FrameKind::Welcome, rank, self.index), rank) {
            Ok(()) => Ok(DialState::Joined(peer.connection)),
            Err(error) => Err(error.to_string()),
        })
    }
}

fn greet(
    socket: Socket,
    since: Instant,
    id: RankId,
    index: SocketIndex,
    silence: Duration,
    identity: Option<&Identity>,
) -> Result<DialState, String> {
    if let Some(error) = socket.take_error().map_err(|error| error.to_string())? {
        return Err(error.to_string());
    }
    if socket.peer_addr().is_err() {
        return Ok(DialState::Connecting { socket, since });
    }
    let stream = TcpStream::from(socket);
    tune(&stream, silence).map_err(|error| error.to_string())?;
    let mut peer = PendingPeer::new(Connection::dialled(stream, identity).map_err(describe)?);
    peer.unsent = Some(greeting(id, FrameKind::Hello, id.rank, index));
    peer.send_greeting()?;
    Ok(DialState::Greeting(peer))
}
