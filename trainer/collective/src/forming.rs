//! How the ranks of one generation find each other: each connects to those after it and is connected to by those before it, and both
//! ends say which job, generation and rank they are before a connection counts.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::Socket;

use crate::call::Call;
use crate::connection::Connection;
use crate::error::Missing;
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::link::{Listener, dial, tune};
use crate::session::{Broken, refusal};
use crate::stripes::Sockets;
use crate::{Abort, CollectiveError, Identity};

/// Connections besides those of the group that may be in the middle of their greeting; the oldest goes when another comes.
const MAX_STRANGERS: usize = 64;
/// The first pause before connecting again; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause before connecting again, and the pause before accepting again where the system has no room.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// How long the system may try to connect before the attempt is made anew: it may wait for ever longer times itself.
const MAX_CONNECTING: Duration = Duration::from_secs(2);
/// How long an abort may go unnoticed while a group forms.
const ABORT_TICK: Duration = Duration::from_millis(5);

/// How records of TLS begin with which a rank answers that encrypts: an alert, a handshake.
const TLS: [[u8; 2]; 2] = [[0x15, 3], [0x16, 3]];

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
    /// How long a group may take to form.
    pub forming: Duration,
    /// How long a rank may go without a byte moving in an operation. It must exceed the time by which one rank may come to
    /// an operation later than another, and the longest operation.
    pub silence: Duration,
    /// How a rank waits for bytes; [`Waiting::Adaptive`] on all ranks or none.
    pub waiting: Waiting,
    /// The threads that each rank computes with.
    pub threads: NonZeroUsize,
    /// Whether ranks that share a host, all at one IP address, may reduce through memory that all of them map; the same on all.
    pub shares_memory: bool,
    /// How many connections each pair of ranks has, more than one where the network limits each flow; the same on all. One thread drives
    /// them all: where a core is what limits it, more are no faster. A star has one for each rank in any case.
    pub sockets: Sockets,
}

/// How a rank waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It sleeps at once: right where ranks outnumber cores.
    Block,
    /// It looks again for some microseconds first: lower latency where each rank has a core to itself.
    SpinThenBlock,
    /// The latter where this process may use a core for each thread of the group's ranks on this host, else the former, as while the
    /// group forms and in a star. A rank whose host nobody knows counts as alone on it.
    Adaptive,
}

/// How long a rank looks before it sleeps, when told to look at all: ranks that compute the same come together sooner, and one that
/// sleeps costs them a wake-up, some 50 µs in a virtual machine.
const SPIN: Duration = Duration::from_micros(400);

impl Waiting {
    /// Whether a rank that has found nothing for so long looks again at once.
    pub(crate) fn looks_again(self, idle: Duration) -> bool {
        self == Self::SpinThenBlock && idle < SPIN
    }

    /// What [`Waiting::Adaptive`] means where so many ranks, of so many threads each, share so many cores.
    pub(crate) fn resolved(self, ranks: usize, threads: NonZeroUsize, cores: usize) -> Self {
        match self {
            Self::Adaptive if ranks.saturating_mul(threads.get()) <= cores => Self::SpinThenBlock,
            Self::Adaptive => Self::Block,
            Self::Block | Self::SpinThenBlock => self,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            forming: Duration::from_secs(60),
            silence: Duration::from_secs(30),
            waiting: Waiting::Block,
            threads: NonZeroUsize::MIN,
            shares_memory: true,
            sockets: Sockets::ONE,
        }
    }
}

/// Which ranks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each with each.
    Mesh,
    /// The last with each of the others.
    Star,
}

/// One of the connections that a pair of ranks has.
#[derive(Clone, Copy)]
struct Place {
    rank: usize,
    stripe: usize,
    of: Sockets,
}

/// Connects `seat` with the other ranks of `peers` (the address of every rank); the connections by rank, none to itself.
pub(crate) fn form(
    listener: &Listener,
    seat: Seat,
    peers: &[SocketAddr],
    shape: Shape,
    limits: Limits,
    abort: &Abort,
) -> Result<Vec<Vec<Connection>>, CollectiveError> {
    let hub = peers.len() - 1;
    let (dialled, called) = match shape {
        Shape::Mesh => (seat.rank + 1..peers.len(), 0..seat.rank),
        Shape::Star if seat.rank == hub => (0..0, 0..hub),
        Shape::Star => (hub..peers.len(), 0..0),
    };
    let sockets = match shape {
        Shape::Mesh => limits.sockets,
        // A part of a state at a time.
        Shape::Star => Sockets::ONE,
    };
    let places = |rank| (0..sockets.get()).map(move |stripe| Place { rank, stripe, of: sockets });
    let started = Instant::now();
    let mut forming = Forming {
        seat,
        sockets,
        silence: limits.silence,
        dials: dialled.flat_map(places).map(|place| Dial::new(place, peers[place.rank])).collect(),
        callers: Vec::new(),
        accepted: called.flat_map(places).map(|_| None).collect(),
        listens: shape == Shape::Mesh || seat.rank == hub,
        accepts_after: started,
        last_refused: None,
    };
    loop {
        abort.check()?;
        forming.dial(listener.identity.as_ref())?;
        forming.accept(listener)?;
        forming.hear_callers()?;
        if forming.is_joined() {
            return Ok(forming.into_connections(peers.len()));
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
    sockets: Sockets,
    silence: Duration,
    /// To the ranks after this one, in their order, each as often as it has sockets.
    dials: Vec<Dial>,
    callers: Vec<Caller>,
    /// From the ranks before this one, in their order, each as often as it has sockets.
    accepted: Vec<Option<Connection>>,
    /// Whether connections that come are for this group.
    listens: bool,
    /// Until when the system has no room for them.
    accepts_after: Instant,
    last_refused: Option<String>,
}

/// A connection to one rank after this one.
struct Dial {
    place: Place,
    address: SocketAddr,
    state: Dialling,
    pause: Duration,
    last_attempt: String,
}

/// How far it has come.
enum Dialling {
    Resting { until: Instant },
    Connecting { socket: Socket, since: Instant },
    Greeting(Caller),
    Joined(Connection),
}

/// A connection whose other end is yet to say who it is.
struct Caller {
    connection: Connection,
    /// What is to be said first.
    unsaid: Option<Header>,
    header: [u8; HEADER_BYTES],
    filled: usize,
}

impl Dial {
    fn new(place: Place, address: SocketAddr) -> Self {
        let state = Dialling::Resting { until: Instant::now() };
        Self { place, address, state, pause: MIN_PAUSE, last_attempt: "not yet connected".to_owned() }
    }

    fn go_on(&mut self, seat: Seat, silence: Duration, identity: Option<&Identity>) -> Result<(), CollectiveError> {
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
            Dialling::Connecting { socket, since } => greet(socket, since, seat, self.place, silence, identity),
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

impl Forming {
    fn dial(&mut self, identity: Option<&Identity>) -> Result<(), CollectiveError> {
        let Self { seat, silence, .. } = *self;
        self.dials.iter_mut().try_for_each(|dial| dial.go_on(seat, silence, identity))
    }

    fn accept(&mut self, listener: &Listener) -> Result<(), CollectiveError> {
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

    fn hear_callers(&mut self) -> Result<(), CollectiveError> {
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

    fn is_joined(&self) -> bool {
        self.dials.iter().all(|dial| matches!(dial.state, Dialling::Joined(_)))
            && self.accepted.iter().all(Option::is_some)
    }

    /// The connections by rank, those that are there.
    fn into_connections(self, world: usize) -> Vec<Vec<Connection>> {
        let mut connections: Vec<Vec<Connection>> = (0..world).map(|_| Vec::new()).collect();
        for (index, accepted) in self.accepted.into_iter().enumerate() {
            connections[index / self.sockets.get()].extend(accepted);
        }
        for Dial { place, state, .. } in self.dials {
            if let Dialling::Joined(connection) = state {
                connections[place.rank].push(connection);
            }
        }
        connections
    }

    fn missing(&self) -> Missing {
        let unreached: Vec<&Dial> =
            self.dials.iter().filter(|dial| !matches!(dial.state, Dialling::Joined(_))).collect();
        let unheard = (0..self.accepted.len()).filter(|index| self.accepted[*index].is_none());
        let mut unheard: Vec<usize> = unheard.map(|index| index / self.sockets.get()).collect();
        unheard.dedup();
        let mut ranks: Vec<usize> = unreached.iter().map(|dial| dial.place.rank).collect();
        ranks.dedup();
        let others = ranks.len() + unheard.len() - 1;
        match (unreached.first(), unheard.first()) {
            (Some(Dial { place, address, last_attempt, .. }), _) => {
                Missing::Unreached { rank: place.rank, address: *address, last_attempt: last_attempt.clone(), others }
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
                Dialling::Resting { until } => limit = limit.min(until.saturating_duration_since(Instant::now())),
                Dialling::Connecting { socket, .. } => watched.push(PollFd::new(socket, PollFlags::OUT)),
                Dialling::Greeting(caller) => watched.push(PollFd::new(caller.connection.socket(), PollFlags::IN)),
                Dialling::Joined(_) => {}
            }
        }
        watched.extend(self.callers.iter().map(|caller| PollFd::new(caller.connection.socket(), PollFlags::IN)));
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut watched, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(CollectiveError::system("wait for the peers to connect", error.into())),
        }
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
                | Errno::NETUNREACH,
            ) => Self::Gone,
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Self::NoRoom,
            _ => Self::Never,
        }
    }
}

fn say(connection: &mut Connection, header: Header) -> Result<(), String> {
    let bytes = header.encode();
    // The first bytes on a fresh connection always fit its buffer.
    match connection.send(&bytes, &[]) {
        Ok(HEADER_BYTES) => Ok(()),
        Ok(_) => Err("it takes no bytes".to_owned()),
        Err(error) => Err(met(error)),
    }
}

/// What a connection that broke has met.
fn met(broken: Broken) -> String {
    match broken {
        Broken::System(error) => io::Error::from(error).to_string(),
        Broken::Tls(error) => refusal(&error),
        Broken::Segment(wrong) => format!("it sent {wrong:?}"),
        Broken::Unproved => {
            "it closed the connection instead of proving who it is; all ranks encrypt, or none".to_owned()
        }
    }
}

fn greeting(seat: Seat, kind: Kind, sender: usize, place: Place) -> Header {
    let Seat { job, generation, .. } = seat;
    Header {
        kind,
        call: Call::default(),
        job,
        generation,
        step: 0,
        bucket: others(place.of),
        chunk: place.stripe as u32,
        sender: sender as u32,
        length: 0,
        payload_crc32c: 0,
    }
}

/// The connections that a pair has besides one.
fn others(sockets: Sockets) -> u32 {
    sockets.get() as u32 - 1
}

/// What is wrong with a greeting of a rank that has other limits.
fn other_sockets(header: &Header, own: Sockets) -> String {
    let found = u64::from(header.bucket) + 1;
    format!(
        "rank {} has {found} sockets for each peer, expected {}; all ranks of a job have as many",
        header.sender,
        own.get()
    )
}

fn superseded(seat: Seat, rank: usize, newer: u64) -> CollectiveError {
    CollectiveError::Superseded { rank, generation: seat.generation, newer }
}

impl Caller {
    fn new(connection: Connection) -> Self {
        Self { connection, unsaid: None, header: [0; HEADER_BYTES], filled: 0 }
    }

    /// Says what is to be said first, once the connection allows it; whether it has.
    fn say(&mut self) -> Result<bool, String> {
        match self.connection.establish() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(broken) if broken.is_nothing() => return Ok(false),
            Err(broken) => return Err(met(broken)),
        }
        self.unsaid.take().map_or(Ok(()), |header| say(&mut self.connection, header))?;
        Ok(true)
    }

    /// The header, once all of it has come; what was met instead, when it cannot come any more.
    fn hear(&mut self) -> Result<Option<Header>, String> {
        if !self.say()? {
            return Ok(None);
        }
        while self.filled < HEADER_BYTES {
            match self.connection.receive(&mut self.header[self.filled..], &mut []) {
                Ok(0) => return Err("it closed the connection".to_owned()),
                Ok(count) => self.filled += count,
                Err(broken) if broken.is_nothing() => return Ok(None),
                Err(broken) => return Err(met(broken)),
            }
            if TLS.iter().any(|begin| self.header[..self.filled].starts_with(begin)) {
                return Err("it encrypts, and this rank does not; all ranks of a job do, or none".to_owned());
            }
        }
        Header::decode(&self.header).map(Some).map_err(|error| format!("it sent bytes that are no frame: {error}"))
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

    #[test]
    fn ranks_spin_only_where_each_of_their_threads_has_a_core() {
        for (ranks, threads, cores, meant) in [
            (1, 1, 1, Waiting::SpinThenBlock),
            (2, 1, 2, Waiting::SpinThenBlock),
            (3, 1, 2, Waiting::Block),
            (2, 2, 4, Waiting::SpinThenBlock),
            (2, 2, 3, Waiting::Block),
            (1, 2, 1, Waiting::Block),
            (2, usize::MAX, 64, Waiting::Block),
        ] {
            let threads = NonZeroUsize::new(threads).unwrap();
            assert_eq!(Waiting::Adaptive.resolved(ranks, threads, cores), meant, "{ranks} of {threads} on {cores}");
        }
        for given in [Waiting::Block, Waiting::SpinThenBlock] {
            assert_eq!(given.resolved(2, NonZeroUsize::MIN, 1), given);
            assert_eq!(given.resolved(1, NonZeroUsize::MIN, 1), given);
        }
    }
}
