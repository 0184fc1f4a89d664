//! How the ranks of one generation find their neighbours: each connects to the next one and is connected to by the
//! previous one, and both ends say which job, generation and rank they are before a connection counts.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use crate::error::Missing;
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::link::{Listener, dial, tune};
use crate::{Abort, CollectiveError};

/// Connections that may be in the middle of their greeting; the oldest goes when another comes.
const MAX_CALLERS: usize = 64;
/// The first pause before connecting again; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause before connecting again.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// How long an abort may go unnoticed while the ring forms.
const ABORT_TICK: Duration = Duration::from_millis(5);

/// A job's identity: the 16 bytes of its UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(pub [u8; 16]);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A place in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The job.
    pub job: JobId,
    /// The membership.
    pub generation: u64,
    /// This process's rank in it.
    pub rank: usize,
}

/// What a group may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a ring may take to form.
    pub forming: Duration,
    /// How long an operation may go without a byte moving. It must exceed the time by which one rank may come to a
    /// bucket later than another.
    pub silence: Duration,
    /// How a rank waits for bytes.
    pub waiting: Waiting,
}

/// How a rank waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It sleeps at once: right where ranks outnumber cores.
    Block,
    /// It looks again for some microseconds first: lower latency where each rank has a core to itself.
    SpinThenBlock,
}

impl Default for Limits {
    fn default() -> Self {
        Self { forming: Duration::from_secs(60), silence: Duration::from_secs(30), waiting: Waiting::Block }
    }
}

/// The two connections of a rank: it only sends on the one and only receives on the other.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) next: TcpStream,
    pub(crate) previous: TcpStream,
}

/// Connects `seat` with its neighbours among `peers` (the address of every rank).
pub(crate) fn form(
    listener: &Listener,
    seat: Seat,
    peers: &[SocketAddr],
    limits: Limits,
    abort: &Abort,
) -> Result<Links, CollectiveError> {
    let world = peers.len();
    let next = (seat.rank + 1) % world;
    let mut forming = Forming {
        seat,
        next,
        next_address: peers[next],
        previous: (seat.rank + world - 1) % world,
        silence: limits.silence,
        dialling: Dialling::Resting { until: Instant::now() },
        pause: MIN_PAUSE,
        last_attempt: "not yet connected".to_owned(),
        callers: Vec::new(),
        accepted: None,
        last_refused: None,
    };
    let started = Instant::now();
    loop {
        abort.check()?;
        forming.dial()?;
        forming.accept(listener)?;
        forming.hear_callers();
        match (forming.dialling, forming.accepted) {
            (Dialling::Joined(next), Some(previous)) => return Ok(Links { next, previous }),
            (dialling, accepted) => (forming.dialling, forming.accepted) = (dialling, accepted),
        }
        if started.elapsed() >= limits.forming {
            return Err(CollectiveError::NotFormed {
                generation: seat.generation,
                waited: limits.forming,
                missing: forming.missing(),
            });
        }
        forming.wait(listener, limits.forming.saturating_sub(started.elapsed()))?;
    }
}

struct Forming {
    seat: Seat,
    next: usize,
    next_address: SocketAddr,
    previous: usize,
    silence: Duration,
    dialling: Dialling,
    pause: Duration,
    last_attempt: String,
    callers: Vec<Caller>,
    accepted: Option<TcpStream>,
    last_refused: Option<String>,
}

/// How far the connection to the next rank has come.
enum Dialling {
    Resting { until: Instant },
    Connecting(Socket),
    Greeting(Caller),
    Joined(TcpStream),
}

/// A connection whose other end is yet to say who it is.
struct Caller {
    stream: TcpStream,
    header: [u8; HEADER_BYTES],
    filled: usize,
}

impl Forming {
    fn dial(&mut self) -> Result<(), CollectiveError> {
        let resting = Dialling::Resting { until: Instant::now() };
        let attempt = match std::mem::replace(&mut self.dialling, resting) {
            Dialling::Resting { until } if Instant::now() < until => Ok(Dialling::Resting { until }),
            Dialling::Resting { .. } => dial(self.next_address).map(Dialling::Connecting).map_err(|e| e.to_string()),
            Dialling::Connecting(socket) => self.greet(socket).map_err(|e| e.to_string()),
            Dialling::Greeting(caller) => self.hear_answer(caller)?,
            Dialling::Joined(stream) => Ok(Dialling::Joined(stream)),
        };
        self.dialling = attempt.unwrap_or_else(|met| {
            self.last_attempt = met;
            let until = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(MAX_PAUSE);
            Dialling::Resting { until }
        });
        Ok(())
    }

    fn greet(&self, socket: Socket) -> io::Result<Dialling> {
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        if socket.peer_addr().is_err() {
            return Ok(Dialling::Connecting(socket));
        }
        let stream = TcpStream::from(socket);
        tune(&stream, self.silence)?;
        self.send(&stream, Kind::Hello)?;
        Ok(Dialling::Greeting(Caller::new(stream)))
    }

    /// The outer error ends the forming, the inner one this attempt.
    fn hear_answer(&self, mut caller: Caller) -> Result<Result<Dialling, String>, CollectiveError> {
        let header = match caller.hear() {
            Ok(None) => return Ok(Ok(Dialling::Greeting(caller))),
            Ok(Some(header)) => header,
            Err(met) => return Ok(Err(met)),
        };
        if header.kind == Kind::Refusal && header.job == self.seat.job {
            if header.generation > self.seat.generation {
                return Err(CollectiveError::Superseded {
                    rank: self.next,
                    generation: self.seat.generation,
                    newer: header.generation,
                });
            }
            return Ok(Err(format!("it is rank {} of generation {} and refused", header.sender, header.generation)));
        }
        let expected = self.header(Kind::Welcome, self.next);
        Ok(match header.require(&expected, self.next) {
            Ok(()) => Ok(Dialling::Joined(caller.stream)),
            Err(error) => Err(error.to_string()),
        })
    }

    fn accept(&mut self, listener: &Listener) -> Result<(), CollectiveError> {
        loop {
            match listener.socket.accept() {
                Ok((stream, _)) => {
                    if self.callers.len() == MAX_CALLERS {
                        self.callers.remove(0);
                    }
                    if tune(&stream, self.silence).is_ok() {
                        self.callers.push(Caller::new(stream));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The caller has gone again before it was accepted.
                Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {
                }
                Err(error) => {
                    return Err(CollectiveError::system(format!("accept a peer on {}", listener.address()), error));
                }
            }
        }
    }

    fn hear_callers(&mut self) {
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.hear() {
                Ok(None) => self.callers.push(caller),
                Ok(Some(header)) => self.answer(caller.stream, header),
                Err(met) => self.last_refused = Some(met),
            }
        }
    }

    /// Welcomes the previous rank. Tells another of this job who is here, and closes; closes on a stranger.
    fn answer(&mut self, stream: TcpStream, header: Header) {
        if let Err(error) = header.require(&self.header(Kind::Hello, self.previous), header.sender as usize) {
            self.last_refused = Some(error.to_string());
            if header.job == self.seat.job {
                // It is being turned away; whether it hears why makes no difference here.
                let _ = self.send(&stream, Kind::Refusal);
            }
            return;
        }
        // A second greeting of the previous rank means that it has given its first connection up.
        match self.send(&stream, Kind::Welcome) {
            Ok(()) => self.accepted = Some(stream),
            Err(error) => self.last_refused = Some(error.to_string()),
        }
    }

    fn send(&self, mut stream: &TcpStream, kind: Kind) -> io::Result<()> {
        // The first bytes on a fresh connection always fit its buffer.
        stream.write_all(&self.header(kind, self.seat.rank).encode())
    }

    fn header(&self, kind: Kind, sender: usize) -> Header {
        let Seat { job, generation, .. } = self.seat;
        Header {
            kind,
            job,
            generation,
            step: 0,
            bucket: 0,
            chunk: 0,
            sender: sender as u32,
            length: 0,
            payload_crc32c: 0,
        }
    }

    fn missing(&self) -> Missing {
        match self.dialling {
            Dialling::Joined(_) => Missing::Previous { rank: self.previous, last_refused: self.last_refused.clone() },
            _ => Missing::Next { rank: self.next, address: self.next_address, last_attempt: self.last_attempt.clone() },
        }
    }

    fn wait(&self, listener: &Listener, left: Duration) -> Result<(), CollectiveError> {
        let mut limit = left.min(ABORT_TICK);
        let mut watched = vec![PollFd::new(&listener.socket, PollFlags::IN)];
        match &self.dialling {
            Dialling::Resting { until } => limit = limit.min(until.saturating_duration_since(Instant::now())),
            Dialling::Connecting(socket) => watched.push(PollFd::new(socket, PollFlags::OUT)),
            Dialling::Greeting(caller) => watched.push(PollFd::new(&caller.stream, PollFlags::IN)),
            Dialling::Joined(_) => {}
        }
        watched.extend(self.callers.iter().map(|caller| PollFd::new(&caller.stream, PollFlags::IN)));
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut watched, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(CollectiveError::system("wait for the peers to connect", error.into())),
        }
    }
}

impl Caller {
    fn new(stream: TcpStream) -> Self {
        Self { stream, header: [0; HEADER_BYTES], filled: 0 }
    }

    /// The header, once all of it has come; what was met instead, when it cannot come any more.
    fn hear(&mut self) -> Result<Option<Header>, String> {
        while self.filled < HEADER_BYTES {
            match self.stream.read(&mut self.header[self.filled..]) {
                Ok(0) => return Err("it closed the connection".to_owned()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Header::decode(&self.header).map(Some).map_err(|error| format!("it sent bytes that are no frame: {error}"))
    }
}
