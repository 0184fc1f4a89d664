use std::io::{IoSlice, IoSliceMut};
use std::iter::Peekable;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crc_fast::crc32_iscsi;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::forming::{Limits, Links, Seat, Waiting, form};
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::link::{Listener, set_silence};
use crate::schedule::{Arrival, RingSchedule, Slot, Slots};
use crate::{Abort, BYTES_PER_ELEMENT, CollectiveError};

/// How long a rank looks for bytes before it sleeps, when told to look at all.
const SPIN: Duration = Duration::from_micros(50);

/// The members of one generation, each connected to the next, as one of them sees it.
///
/// One thread drives a ring: it sends and receives in turn without ever blocking on either, so that slices longer than
/// the sockets' buffers cannot deadlock it.
#[derive(Debug)]
pub struct Ring {
    seat: Seat,
    world: usize,
    next: Arc<TcpStream>,
    previous: Arc<TcpStream>,
    silence: Duration,
    waiting: Waiting,
    abort: Abort,
    /// One segment, while it arrives to be added.
    scratch: Box<[f32]>,
}

/// What an operation moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transferred {
    /// Bytes sent, headers included.
    pub bytes_sent: u64,
    /// Bytes received, headers included.
    pub bytes_received: u64,
    /// From the operation's start to its end.
    pub took: Duration,
}

impl Ring {
    /// Forms the ring of `seat` with `peers`, the data addresses of all ranks in rank order, through `listener`.
    ///
    /// Connections of another job, another generation or another rank are refused and closed without disturbing this.
    ///
    /// # Errors
    /// [`CollectiveError::NotFormed`] when a neighbour is missing at the end of `limits.forming`,
    /// [`CollectiveError::Superseded`] when one is in a newer generation, [`CollectiveError::Aborted`] within
    /// milliseconds of `abort`, [`CollectiveError::NotInGroup`] when `peers` lacks this rank or another.
    pub fn form(
        listener: &Listener,
        seat: Seat,
        peers: &[SocketAddr],
        limits: Limits,
        abort: &Abort,
    ) -> Result<Self, CollectiveError> {
        if seat.rank >= peers.len() || peers.len() < 2 {
            return Err(CollectiveError::NotInGroup { rank: seat.rank, world: peers.len() });
        }
        let Links { next, previous } = form(listener, seat, peers, limits, abort)?;
        let ring = Self {
            seat,
            world: peers.len(),
            next: Arc::new(next),
            previous: Arc::new(previous),
            silence: limits.silence,
            waiting: limits.waiting,
            abort: abort.clone(),
            scratch: vec![0.0; RingSchedule::max_segment()].into(),
        };
        abort.guard(&ring.next)?;
        abort.guard(&ring.previous)?;
        Ok(ring)
    }

    /// This process's place.
    pub fn seat(&self) -> Seat {
        self.seat
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The handle that ends this generation.
    pub fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    /// Changes how long an operation may go without a byte moving.
    ///
    /// # Errors
    /// [`CollectiveError::System`] when a socket is no longer usable.
    pub fn set_silence(&mut self, silence: Duration) -> Result<(), CollectiveError> {
        if silence == self.silence {
            return Ok(());
        }
        for stream in [&self.next, &self.previous] {
            set_silence(stream, silence).map_err(|error| CollectiveError::system("set a socket's timeout", error))?;
        }
        self.silence = silence;
        Ok(())
    }

    /// Sums `data` over all ranks in place. All ranks call with the same `step`, `bucket` and length, in the same
    /// order, and end with the same bits. A slice of length 0 moves nothing and waits for nobody.
    ///
    /// # Errors
    /// Whatever keeps the sum from being formed, naming the peer. `data` then holds neither the old values nor the sum,
    /// and the ring is shut down both ways so that the neighbours notice too.
    pub fn all_reduce(&mut self, step: u64, bucket: u32, data: &mut [f32]) -> Result<Transferred, CollectiveError> {
        let started = Instant::now();
        self.abort.check()?;
        let schedule = RingSchedule::new(self.seat.rank, self.world, data.len());
        let mut operation = Operation {
            step,
            bucket,
            schedule,
            sending: schedule.slots().peekable(),
            lag: schedule.slots().lag(),
            outgoing: None,
            receiving: schedule.slots().peekable(),
            header: [0; HEADER_BYTES],
            filled: 0,
            arriving: None,
            transferred: Transferred::default(),
        };
        match self.run(&mut operation, data) {
            Ok(()) => Ok(Transferred { took: started.elapsed(), ..operation.transferred }),
            Err(error) => {
                for stream in [&self.next, &self.previous] {
                    // It may be shut down already: by the peer, or by an abort.
                    let _ = stream.shutdown(Shutdown::Both);
                }
                // Sockets that an abort shut down look as if the peer had closed them.
                self.abort.check().and(Err(error))
            }
        }
    }

    fn run(&mut self, operation: &mut Operation, data: &mut [f32]) -> Result<(), CollectiveError> {
        let mut idle_since = None;
        operation.skip_empty();
        loop {
            let sent = self.send(operation, data)?;
            let received = self.receive(operation, data)?;
            if operation.is_done() {
                return Ok(());
            }
            if sent || received {
                idle_since = None;
                continue;
            }
            let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
            if self.waiting == Waiting::SpinThenBlock && idle < SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.wait(operation, idle)?;
        }
    }

    /// Sends what the socket takes of the next segment; whether it took any.
    fn send(&self, operation: &mut Operation, data: &[f32]) -> Result<bool, CollectiveError> {
        let Some(outgoing) = operation.outgoing(self.seat, data) else { return Ok(false) };
        let payload: &[u8] = bytemuck::cast_slice(&data[outgoing.elements.clone()]);
        let header = &outgoing.header[outgoing.sent.min(HEADER_BYTES)..];
        let rest = &payload[outgoing.sent.saturating_sub(HEADER_BYTES)..];
        let parts = [IoSlice::new(header), IoSlice::new(rest)];
        let parts = if header.is_empty() { &parts[1..] } else { &parts[..] };
        let sent = rustix::net::sendmsg(&*self.next, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        let Some(count) = self.moved(sent, self.next_rank())? else { return Ok(false) };
        outgoing.sent += count;
        if outgoing.sent == HEADER_BYTES + payload.len() {
            operation.outgoing = None;
        }
        operation.transferred.bytes_sent += count as u64;
        Ok(true)
    }

    /// Receives what has come of the next segment; whether any has.
    fn receive(&mut self, operation: &mut Operation, data: &mut [f32]) -> Result<bool, CollectiveError> {
        let Some((slot, elements, arrival)) = operation.incoming() else { return Ok(false) };
        let rank = self.previous_rank();
        let (filled, header) = (operation.filled, &mut operation.header);
        let place = match arrival {
            Arrival::Add => &mut self.scratch[..elements.len()],
            Arrival::Copy => &mut data[elements.clone()],
        };
        let payload: &mut [u8] = bytemuck::cast_slice_mut(place);
        let frame = HEADER_BYTES + payload.len();
        let came = if filled < HEADER_BYTES {
            let mut parts = [IoSliceMut::new(&mut header[filled..]), IoSliceMut::new(payload)];
            rustix::io::readv(&*self.previous, &mut parts)
        } else {
            rustix::io::read(&*self.previous, &mut payload[filled - HEADER_BYTES..])
        };
        let Some(count) = self.moved(came, rank)? else { return Ok(false) };
        if count == 0 {
            return Err(CollectiveError::PeerClosed { rank });
        }
        operation.transferred.bytes_received += count as u64;
        operation.filled += count;
        if operation.filled < HEADER_BYTES {
            return Ok(true);
        }
        let header = match operation.arriving {
            Some(header) => header,
            None => {
                let header =
                    Header::decode(&operation.header).map_err(|source| CollectiveError::BadFrame { rank, source })?;
                header.require(&operation.segment(self.seat, rank, slot, elements.len()), rank)?;
                *operation.arriving.insert(header)
            }
        };
        if operation.filled < frame {
            return Ok(true);
        }
        match arrival {
            Arrival::Add => {
                let terms = &self.scratch[..elements.len()];
                header.require_payload(bytemuck::cast_slice(terms), rank)?;
                add(&mut data[elements], terms);
            }
            Arrival::Copy => header.require_payload(bytemuck::cast_slice(&data[elements]), rank)?,
        }
        operation.received();
        Ok(true)
    }

    /// Sleeps until a socket is ready for what the operation still needs of it.
    fn wait(&self, operation: &mut Operation, idle: Duration) -> Result<(), CollectiveError> {
        let (sends, receives) = (operation.sends(), operation.receives());
        let Some(left) = self.silence.checked_sub(idle).filter(|left| !left.is_zero()) else {
            // While both are lacking, it is the starved rank that knows whom it waits for.
            let rank = if receives { self.previous_rank() } else { self.next_rank() };
            return Err(CollectiveError::PeerSilent { rank, waited: idle });
        };
        // Nothing comes from the next rank but word that it has closed.
        let room = if operation.outgoing.is_some() { PollFlags::OUT } else { PollFlags::empty() };
        let mut watched = [
            PollFd::new(&*self.previous, PollFlags::IN),
            PollFd::new(&*self.next, PollFlags::IN | PollFlags::RDHUP | room),
        ];
        // A neighbour that needs nothing more may go, and must not be watched any longer.
        let watched = &mut watched[usize::from(!receives)..1 + usize::from(sends)];
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(watched, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(CollectiveError::system("wait for the ring's sockets", error.into())),
        }
        let closing = PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        if sends && watched.last().is_some_and(|next| next.revents().intersects(closing)) {
            return self.hear_next();
        }
        Ok(())
    }

    /// Reads from the next rank, which is to send nothing.
    fn hear_next(&self) -> Result<(), CollectiveError> {
        let rank = self.next_rank();
        let came = rustix::net::recv(&*self.next, &mut [0_u8; 1][..], RecvFlags::PEEK).map(|(_, count)| count);
        match self.moved(came, rank)? {
            Some(0) => Err(CollectiveError::PeerClosed { rank }),
            Some(_) => Err(CollectiveError::UnexpectedBytes { rank }),
            None => Ok(()),
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
            Err(Errno::TIMEDOUT) => Err(CollectiveError::PeerSilent { rank, waited: self.silence }),
            Err(error) => Err(CollectiveError::system(format!("exchange bytes with rank {rank}"), error.into())),
        }
    }

    fn next_rank(&self) -> usize {
        (self.seat.rank + 1) % self.world
    }

    fn previous_rank(&self) -> usize {
        (self.seat.rank + self.world - 1) % self.world
    }
}

/// How far one all-reduce has come.
struct Operation {
    step: u64,
    bucket: u32,
    schedule: RingSchedule,
    /// Slots whose sending has not begun.
    sending: Peekable<Slots>,
    lag: usize,
    outgoing: Option<Outgoing>,
    /// Slots that have not arrived; the first may have in part.
    receiving: Peekable<Slots>,
    /// The bytes of the header that is arriving.
    header: [u8; HEADER_BYTES],
    /// Bytes of the arriving frame that are here.
    filled: usize,
    /// The header of the arriving frame, once it is known to belong here.
    arriving: Option<Header>,
    transferred: Transferred,
}

/// A frame on its way out.
struct Outgoing {
    header: [u8; HEADER_BYTES],
    elements: Range<usize>,
    sent: usize,
}

impl Operation {
    fn skip_empty(&mut self) {
        let schedule = self.schedule;
        while self.receiving.next_if(|&slot| schedule.hop(slot).receive.is_empty()).is_some() {}
        while self.sending.next_if(|&slot| schedule.hop(slot).send.is_empty()).is_some() {}
    }

    fn sends(&mut self) -> bool {
        self.outgoing.is_some() || self.sending.peek().is_some()
    }

    fn receives(&mut self) -> bool {
        self.receiving.peek().is_some()
    }

    fn is_done(&mut self) -> bool {
        self.skip_empty();
        !self.sends() && !self.receives()
    }

    /// The frame to go on sending: the one begun, or the next whose elements are final for this hop.
    fn outgoing(&mut self, seat: Seat, data: &[f32]) -> Option<&mut Outgoing> {
        if self.outgoing.is_none() {
            let arriving = self.receiving.peek().copied();
            let slot = self.sending.next_if(|slot| slot.may_be_sent(arriving, self.lag))?;
            let elements = self.schedule.hop(slot).send;
            let payload_crc32c = crc32_iscsi(bytemuck::cast_slice(&data[elements.clone()]));
            let header = Header { payload_crc32c, ..self.segment(seat, seat.rank, slot, elements.len()) };
            self.outgoing = Some(Outgoing { header: header.encode(), elements, sent: 0 });
        }
        self.outgoing.as_mut()
    }

    fn incoming(&mut self) -> Option<(Slot, Range<usize>, Arrival)> {
        let slot = *self.receiving.peek()?;
        let hop = self.schedule.hop(slot);
        Some((slot, hop.receive, hop.arrival))
    }

    fn received(&mut self) {
        self.receiving.next();
        self.filled = 0;
        self.arriving = None;
    }

    fn segment(&self, seat: Seat, sender: usize, slot: Slot, elements: usize) -> Header {
        Header {
            kind: Kind::Segment,
            job: seat.job,
            generation: seat.generation,
            step: self.step,
            bucket: self.bucket,
            chunk: self.schedule.chunk(slot),
            sender: sender as u32,
            length: (elements * BYTES_PER_ELEMENT) as u32,
            payload_crc32c: 0,
        }
    }
}

fn add(sums: &mut [f32], terms: &[f32]) {
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum += term;
    }
}
