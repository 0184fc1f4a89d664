//! Calls a rank until it answers.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::MAX_PAUSE;
use super::greeting::{Caller, Place, greeting, met, other_sockets, others, superseded};
use crate::connection::Connection;
use crate::frame::Kind;
use crate::link::{dial, tune};
use crate::seat::Seat;
use crate::{CollectiveError, Identity};

/// The first pause before connecting again; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// How long the system may try to connect before the attempt is made anew: it may wait for ever longer times itself.
const MAX_CONNECTING: Duration = Duration::from_secs(2);

/// A connection to one rank after this one.
pub(super) struct Dial {
    pub(super) place: Place,
    pub(super) address: SocketAddr,
    pub(super) state: Dialling,
    pause: Duration,
    pub(super) last_attempt: String,
}

/// How far it has come.
pub(super) enum Dialling {
    Resting { until: Instant },
    Connecting { socket: Socket, since: Instant },
    Greeting(Caller),
    Joined(Connection),
}

impl Dial {
    pub(super) fn new(place: Place, address: SocketAddr) -> Self {
        let state = Dialling::Resting { until: Instant::now() };
        Self { place, address, state, pause: MIN_PAUSE, last_attempt: "not yet connected".to_owned() }
    }

    pub(super) fn go_on(
        &mut self,
        seat: Seat,
        silence: Duration,
        identity: Option<&Identity>,
    ) -> Result<(), CollectiveError> {
        let resting = Dialling::Resting { until: Instant::now() };
        let attempt = match std::mem::replace(&mut self.state, resting) {
            Dialling::Resting { until } if Instant::now() < until => Ok(Dialling::Resting { until }),
            Dialling::Resting { .. } => {
                let since = Instant::now();
                dial(self.address).map(|socket| Dialling::Connecting { socket, since }).map_err(|e| e.to_string())
            }
            Dialling::Connecting { since, .. } if since.elapsed() >= MAX_CONNECTING => {
                Err(format!("no answer within {MAX_CONNECTING:?}"))
            }
            Dialling::Connecting { socket, since } => {
                let greeted = greet(socket, since, seat, self.place, silence, identity);
                if matches!(greeted, Ok(Dialling::Greeting(_))) {
                    self.last_attempt = "connected, but it is not forming this group yet".to_owned();
                }
                greeted
            }
            Dialling::Greeting(caller) => self.hear_answer(caller, seat)?,
            Dialling::Joined(connection) => Ok(Dialling::Joined(connection)),
        };
        self.state = attempt.unwrap_or_else(|met| {
            self.last_attempt = met;
            let until = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(MAX_PAUSE);
            Dialling::Resting { until }
        });
        Ok(())
    }

    /// The outer error ends the forming, the inner one this attempt.
    fn hear_answer(&self, mut caller: Caller, seat: Seat) -> Result<Result<Dialling, String>, CollectiveError> {
        let header = match caller.hear() {
            Ok(None) => return Ok(Ok(Dialling::Greeting(caller))),
            Ok(Some(header)) => header,
            Err(met) => return Ok(Err(met)),
        };
        let Place { rank, of, .. } = self.place;
        if header.kind == Kind::Refusal && header.job == seat.job {
            if header.generation > seat.generation {
                return Err(superseded(seat, rank, header.generation));
            }
            if header.generation == seat.generation && header.bucket != others(of) {
                return Ok(Err(other_sockets(&header, of)));
            }
            return Ok(Err(format!("it is rank {} of generation {} and refused", header.sender, header.generation)));
        }
        Ok(match header.require(&greeting(seat, Kind::Welcome, rank, self.place), rank) {
            Ok(()) => Ok(Dialling::Joined(caller.connection)),
            Err(error) => Err(error.to_string()),
        })
    }
}

fn greet(
    socket: Socket,
    since: Instant,
    seat: Seat,
    place: Place,
    silence: Duration,
    identity: Option<&Identity>,
) -> Result<Dialling, String> {
    if let Some(error) = socket.take_error().map_err(|error| error.to_string())? {
        return Err(error.to_string());
    }
    if socket.peer_addr().is_err() {
        return Ok(Dialling::Connecting { socket, since });
    }
    let stream = TcpStream::from(socket);
    tune(&stream, silence).map_err(|error| error.to_string())?;
    let mut caller = Caller::new(Connection::calling(stream, identity).map_err(met)?);
    caller.unsaid = Some(greeting(seat, Kind::Hello, seat.rank, place));
    caller.say()?;
    Ok(Dialling::Greeting(caller))
}
