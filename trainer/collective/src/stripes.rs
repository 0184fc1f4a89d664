//! The connections of one pair of ranks as one stream of bytes. A single one carries the stream as it is. Several share it, where the
//! network limits each flow: the stream is cut into segments, and each goes to a connection that has room for it, so that the faster
//! ones carry more. A segment is a header, little endian, then the payload:
//! ```text
//! 0 sequence u64 · 8 length u32 · 12 crc32c of bytes 0..12
//! ```
//! What a socket does not take of its segment stays with its stripe, which takes no other before that is out; the other stripes go on.
//! Segments are read in sequence, straight to where their bytes belong; those that are early wait in their sockets.
//!
//! Nobody waits for ever, because the next segment can always move. The sequence grows along each stripe, so that whatever was before
//! the next segment on its stripe has been read already, and nothing stands between the two ends of it but itself. While the receiver
//! reads, its socket has room again, and the sender puts the segment's rest there whatever the other stripes do. Hence the stripes
//! together move whenever a single connection would.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::CWD;
use rustix::io::Errno;
use socket2::SockRef;

use crate::connection::Connection;
use crate::crc32c::crc32c;
use crate::frame::HEADER_BYTES;
use crate::idle::LONGEST_SLEEP;
use crate::session::Broken;

/// The most connections that a pair of ranks may have.
pub const MAX_SOCKETS: usize = 8;
/// The longest payload of a segment: a part of a frame, so that the connections share it, and the frame's header.
const MAX_SEGMENT_BYTES: usize = (64 << 10) + HEADER_BYTES;
const SEGMENT_HEADER_BYTES: usize = 16;
/// Unsent bytes that the system takes over on one of several connections: more would wait behind a slow one while others are free.
const UNSENT_BYTES: u32 = 128 << 10;

/// How many connections each pair of ranks has: from 1 to [`MAX_SOCKETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sockets(usize);

impl Sockets {
    /// One connection, which is enough where it fills the line.
    pub const ONE: Self = Self(1);

    /// So many; `None` for 0, and for more than [`MAX_SOCKETS`].
    pub const fn new(sockets: usize) -> Option<Self> {
        if matches!(sockets, 1..=MAX_SOCKETS) { Some(Self(sockets)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// All connections with one peer.
#[derive(Debug)]
pub(crate) struct Stripes {
    stripes: Box<[Stripe]>,
    /// Segments that were begun.
    sent: u64,
    /// Segments that were read to their end.
    received: u64,
    /// The stripe that is the first to be offered the next segment.
    sends: usize,
    /// The stripe on which the next segment is looked for first.
    receives: usize,
}

#[derive(Debug)]
struct Stripe {
    connection: Connection,
    /// What the socket has not taken of a segment, after the first `sent` bytes.
    rest: Vec<u8>,
    sent: usize,
    /// Whether the socket took less than it was offered.
    is_full: bool,
    /// The header of a segment while it arrives.
    header: [u8; SEGMENT_HEADER_BYTES],
    filled: usize,
    /// What is yet to be read of the segment whose header has come.
    head: Option<Segment>,
    /// Whether the socket had less than it was asked for.
    is_dry: bool,
    /// When the peer was found to have closed it after a whole segment: the others may hold more.
    closed: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    sequence: u64,
    length: usize,
}

/// A segment that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongSegment {
    pub(crate) field: &'static str,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl Stripes {
    /// Over at least one connection.
    pub(crate) fn over(connections: Vec<Connection>) -> Self {
        let room = if connections.len() > 1 { SEGMENT_HEADER_BYTES + MAX_SEGMENT_BYTES } else { 0 };
        if connections.len() > 1 {
            for connection in &connections {
                // A system that cannot only has more wait behind a slow one.
                let _ = SockRef::from(&**connection.socket()).set_tcp_notsent_lowat(UNSENT_BYTES);
            }
        }
        let stripe = |connection| Stripe {
            connection,
            rest: Vec::with_capacity(room),
            sent: 0,
            is_full: false,
            header: [0; SEGMENT_HEADER_BYTES],
            filled: 0,
            head: None,
            is_dry: false,
            closed: None,
        };
        Self { stripes: connections.into_iter().map(stripe).collect(), sent: 0, received: 0, sends: 0, receives: 0 }
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        self.stripes.iter().map(|stripe| stripe.connection.socket())
    }

    /// Sends what fits of two parts. Whoever is told to try again calls with the same bytes.
    pub(crate) fn send(&mut self, header: &[u8], payload: &[u8]) -> Result<usize, Broken> {
        if let [Stripe { connection, .. }] = &mut *self.stripes {
            return connection.send(header, payload);
        }
        self.flush()?;
        let payload = &payload[..payload.len().min(MAX_SEGMENT_BYTES - header.len())];
        let segment = Segment { sequence: self.sent, length: header.len() + payload.len() };
        let mut begin = [0; SEGMENT_HEADER_BYTES + HEADER_BYTES];
        let begin = &mut begin[..SEGMENT_HEADER_BYTES + header.len()];
        begin[..SEGMENT_HEADER_BYTES].copy_from_slice(&segment.encode());
        begin[SEGMENT_HEADER_BYTES..].copy_from_slice(header);
        for at in in_turn(self.sends, self.stripes.len()) {
            if self.stripes[at].take(begin, payload)? {
                self.sends = at + 1;
                self.sent += 1;
                return Ok(segment.length);
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Sends what is unsent, as far as there is room for it; whether any of it moved.
    pub(crate) fn flush(&mut self) -> Result<bool, Broken> {
        let ready = self.ready(PollFlags::OUT, |stripe| stripe.is_full);
        let mut moved = false;
        for (stripe, ready) in self.stripes.iter_mut().zip(ready) {
            stripe.is_full &= !ready;
            moved |= stripe.flush()?;
        }
        Ok(moved)
    }

    /// Whether bytes that [`Stripes::send`] has accepted are not out.
    pub(crate) fn has_unsent(&self) -> bool {
        self.stripes.iter().any(|stripe| !stripe.rest.is_empty())
    }

    /// Whether a connection has taken bytes that [`Stripes::send`] is to be called with again.
    pub(crate) fn holds_bytes(&self) -> bool {
        self.stripes.iter().any(|stripe| stripe.connection.holds_bytes())
    }

    /// Receives what is there of two parts; 0 once the peer has closed and nothing more can come.
    pub(crate) fn receive(&mut self, header: &mut [u8], payload: &mut [u8]) -> Result<usize, Broken> {
        if let [Stripe { connection, .. }] = &mut *self.stripes {
            return connection.receive(header, payload);
        }
        let Some(at) = self.find_next()? else { return Ok(0) };
        let (taken, is_whole) = self.stripes[at].read(header, payload)?;
        if is_whole {
            self.received += 1;
            self.receives = at + 1;
        }
        Ok(taken)
    }

    /// The stripe at whose head the next segment is; `None` once the peer has closed those on which it could come.
    fn find_next(&mut self) -> Result<Option<usize>, Broken> {
        let next = self.received;
        if let Some(at) = self.stripes.iter().position(|stripe| stripe.holds(next)) {
            return Ok(Some(at));
        }
        let ready = self.ready(PollFlags::IN, |stripe| stripe.awaits_header() && stripe.is_dry);
        for at in in_turn(self.receives, self.stripes.len()) {
            let stripe = &mut self.stripes[at];
            stripe.is_dry &= !ready[at];
            stripe.look(next)?;
            if stripe.holds(next) {
                return Ok(Some(at));
            }
        }
        if self.stripes.iter().any(Stripe::awaits_header) {
            return Err(Errno::AGAIN.into());
        }
        if self.closed_for().is_some() {
            return Ok(None);
        }
        let found = self.stripes.iter().filter_map(|stripe| stripe.head).map(|head| head.sequence).min();
        Err(WrongSegment::of("segment", next, found.unwrap_or_default()).into())
    }

    /// How long ago the peer was found to have closed the first of several connections.
    pub(crate) fn closed_for(&self) -> Option<Duration> {
        self.stripes.iter().filter_map(|stripe| stripe.closed).min().map(|closed| closed.elapsed())
    }

    /// The sockets with what is to be waited for on them before more can be sent, and in any case word that the other end has closed.
    pub(crate) fn room(&self, for_more: bool) -> impl Iterator<Item = PollFd<'_>> {
        self.stripes.iter().map(move |stripe| {
            let lacks_room = for_more || !stripe.rest.is_empty();
            let room = if lacks_room { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(stripe.connection.socket(), room | PollFlags::RDHUP)
        })
    }

    /// The sockets on which the next bytes may come.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = PollFd<'_>> {
        let next = self.received;
        let found = self.stripes.iter().any(|stripe| stripe.holds(next));
        let may_bring = move |stripe: &&Stripe| if found { stripe.holds(next) } else { stripe.awaits_header() };
        self.stripes.iter().filter(may_bring).map(|stripe| PollFd::new(stripe.connection.socket(), PollFlags::IN))
    }

    /// On which of the stripes asked about there is something to do, without waiting.
    fn ready(&self, events: PollFlags, is_asked: impl Fn(&Stripe) -> bool) -> [bool; MAX_SOCKETS] {
        let mut ready = std::array::from_fn(|at| self.stripes.get(at).is_some_and(&is_asked));
        if ready == [false; MAX_SOCKETS] {
            return ready;
        }
        let mut watched = Watched::default();
        for (at, stripe) in self.stripes.iter().enumerate().filter(|(at, _)| ready[*at]) {
            watched.slots[at] = PollFd::new(stripe.connection.socket(), events);
        }
        // Whatever keeps it from looking shows when they are tried.
        if watched.poll(Duration::ZERO).is_ok() {
            ready = std::array::from_fn(|at| !watched.slots[at].revents().is_empty());
        }
        ready
    }
}

/// All stripes once, from the first on.
fn in_turn(first: usize, stripes: usize) -> impl Iterator<Item = usize> {
    (first..first + stripes).map(move |turn| turn % stripes)
}

impl Stripe {
    /// Takes all of a segment, or nothing of it.
    fn take(&mut self, begin: &[u8], payload: &[u8]) -> Result<bool, Broken> {
        if self.is_full {
            return Ok(false);
        }
        let sent = match self.connection.send(begin, payload) {
            Ok(sent) => sent,
            Err(broken) if broken.is_nothing() => {
                self.is_full = true;
                if !self.connection.holds_bytes() {
                    return Ok(false);
                }
                0
            }
            Err(broken) => return Err(broken),
        };
        self.rest.extend_from_slice(&begin[sent.min(begin.len())..]);
        self.rest.extend_from_slice(&payload[sent.saturating_sub(begin.len())..]);
        self.is_full |= !self.rest.is_empty();
        Ok(true)
    }

    /// Whether some of the rest moved.
    fn flush(&mut self) -> Result<bool, Broken> {
        if self.is_full || self.rest.is_empty() {
            return Ok(false);
        }
        match self.connection.send(&[], &self.rest[self.sent..]) {
            Ok(sent) => self.sent += sent,
            Err(broken) if broken.is_nothing() => {
                self.is_full = true;
                return Ok(false);
            }
            Err(broken) => return Err(broken),
        }
        if self.sent == self.rest.len() {
            self.rest.clear();
            self.sent = 0;
        }
        self.is_full = !self.rest.is_empty();
        Ok(true)
    }

    fn holds(&self, next: u64) -> bool {
        self.head.is_some_and(|head| head.sequence == next)
    }

    fn awaits_header(&self) -> bool {
        self.head.is_none() && self.closed.is_none()
    }

    /// Reads a header if one is awaited, as far as it has come.
    fn look(&mut self, next: u64) -> Result<(), Broken> {
        while self.awaits_header() {
            if self.filled == SEGMENT_HEADER_BYTES {
                self.head = Some(Segment::decode(&self.header, next)?);
                self.filled = 0;
                return Ok(());
            }
            if self.is_dry {
                return Ok(());
            }
            match self.connection.receive(&mut [], &mut self.header[self.filled..]) {
                Ok(0) => self.closed = Some(Instant::now()),
                Ok(count) => self.filled += count,
                Err(broken) if broken.is_nothing() => self.is_dry = true,
                Err(broken) => return Err(broken),
            }
        }
        Ok(())
    }

    /// Reads the segment at its head into two parts, and with its end the header after it if that has come; how many bytes of the
    /// segment, and whether they were its last.
    fn read(&mut self, header: &mut [u8], payload: &mut [u8]) -> Result<(usize, bool), Broken> {
        let Some(Segment { length, .. }) = &mut self.head else { return Err(Errno::AGAIN.into()) };
        let in_header = header.len().min(*length);
        let in_payload = payload.len().min(*length - in_header);
        let (header, payload) = (&mut header[..in_header], &mut payload[..in_payload]);
        let came = if header.is_empty() && payload.len() == *length {
            self.connection.receive(payload, &mut self.header)?
        } else {
            self.connection.receive(header, payload)?
        };
        let taken = came.min(*length);
        self.filled = came - taken;
        *length -= taken;
        let is_whole = *length == 0;
        if is_whole {
            self.head = None;
        }
        Ok((taken, is_whole))
    }
}

impl Segment {
    fn encode(self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.length as u32).to_le_bytes());
        let checksum = crc32c(&bytes[..12]);
        bytes[12..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header that comes while all segments before `next` have been read. Never panics, whatever the bytes.
    fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES], next: u64) -> Result<Self, WrongSegment> {
        let word = |at| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (expected, found) = (crc32c(&bytes[..12]), word(12));
        if found != expected {
            return Err(WrongSegment::of("segment checksum", format!("{expected:08x}"), format!("{found:08x}")));
        }
        let (sequence, length) = (u64::from_le_bytes(std::array::from_fn(|i| bytes[i])), word(8) as usize);
        if sequence < next {
            return Err(WrongSegment::of("segment", format!("{next} or a later one"), sequence));
        }
        if !(1..=MAX_SEGMENT_BYTES).contains(&length) {
            return Err(WrongSegment::of("segment length", format!("1 to {MAX_SEGMENT_BYTES}"), length));
        }
        Ok(Self { sequence, length })
    }
}

impl WrongSegment {
    fn of(field: &'static str, expected: impl ToString, found: impl ToString) -> Self {
        Self { field, expected: expected.to_string(), found: found.to_string() }
    }
}

impl From<WrongSegment> for Broken {
    fn from(wrong: WrongSegment) -> Self {
        Self::Segment(wrong)
    }
}

/// The sockets of two peers, to be waited for without a place of their own in memory.
pub(crate) struct Watched<'a> {
    /// Those that hold no socket are no descriptor either, which the system skips.
    pub(crate) slots: [PollFd<'a>; 2 * MAX_SOCKETS],
}

impl Default for Watched<'_> {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| PollFd::from_borrowed_fd(CWD, PollFlags::empty())) }
    }
}

impl Watched<'_> {
    /// Sleeps until something is there, but no longer than `limit`, and [`LONGEST_SLEEP`].
    pub(crate) fn poll(&mut self, limit: Duration) -> Result<(), Errno> {
        let limit = limit.min(LONGEST_SLEEP);
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        poll(&mut self.slots, Some(&limit)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, TcpListener};

    /// With a checksum that fits.
    fn header(sequence: u64, length: u32) -> [u8; SEGMENT_HEADER_BYTES] {
        Segment { sequence, length: length as usize }.encode()
    }

    proptest! {
        #[test]
        fn a_segment_reads_back_as_it_was_written(next in any::<u64>(), ahead in any::<u32>(), length in 1..=MAX_SEGMENT_BYTES) {
            let segment = Segment { sequence: next.saturating_add(ahead.into()), length };
            prop_assert_eq!(Segment::decode(&segment.encode(), next), Ok(segment));
        }

        #[test]
        fn a_segment_with_one_damaged_byte_is_refused(
            sequence in any::<u64>(), length in 1..=MAX_SEGMENT_BYTES, at in 0..SEGMENT_HEADER_BYTES, damage in 1u8..,
        ) {
            let mut bytes = Segment { sequence, length }.encode();
            bytes[at] ^= damage;
            prop_assert_eq!(Segment::decode(&bytes, 0).unwrap_err().field, "segment checksum");
        }

        #[test]
        fn any_bytes_are_a_segment_within_bounds_or_none(sequence in any::<u64>(), length in any::<u32>(), next in any::<u64>()) {
            if let Ok(segment) = Segment::decode(&header(sequence, length), next) {
                prop_assert!(segment.sequence >= next && (1..=MAX_SEGMENT_BYTES).contains(&segment.length));
            }
        }
    }

    /// Both ends of several connections that take less than a segment at once.
    fn narrow(sockets: usize) -> [Stripes; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connection = |stream: TcpStream| {
            stream.set_nonblocking(true).unwrap();
            SockRef::from(&stream).set_send_buffer_size(20_000).unwrap();
            Connection::calling(stream, None).unwrap()
        };
        let (here, there): (Vec<_>, Vec<_>) = (0..sockets)
            .map(|_| {
                let calling = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                (connection(calling), connection(listener.accept().unwrap().0))
            })
            .unzip();
        [Stripes::over(here), Stripes::over(there)]
    }

    fn moved(outcome: Result<usize, Broken>) -> usize {
        match outcome {
            Ok(count) => count,
            Err(broken) if broken.is_nothing() => 0,
            Err(broken) => panic!("{broken:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn a_stream_arrives_as_it_was_sent_however_it_is_cut_and_offered(
            sockets in 1..=MAX_SOCKETS, offers in prop::collection::vec((0..=HEADER_BYTES, 1..200_000_usize), 1..20),
        ) {
            let [mut here, mut there] = narrow(sockets);
            let bytes: Vec<u8> = (0..1_000_003_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let (mut sent, mut came, mut turn) = (0, vec![0; bytes.len()], 0);
            let mut received = 0;
            while received < bytes.len() {
                let (header, payload) = offers[turn % offers.len()];
                let rest = &bytes[sent..bytes.len().min(sent + header + payload)];
                if rest.is_empty() {
                    here.flush().unwrap();
                } else {
                    let (header, payload) = rest.split_at(header.min(rest.len()));
                    sent += moved(here.send(header, payload));
                }
                let (header, payload) = offers[(turn / 2 + 1) % offers.len()];
                let end = came.len().min(received + header + payload);
                let room = &mut came[received..end];
                let (header, payload) = room.split_at_mut(header.min(room.len()));
                received += moved(there.receive(header, payload));
                turn += 1;
            }
            prop_assert!(came == bytes && !here.has_unsent());
        }
    }

    #[test]
    fn a_segment_that_cannot_be_is_refused_for_what_is_wrong_with_it() {
        let longest = MAX_SEGMENT_BYTES as u32;
        for (sequence, length, field) in [
            (6, 1, "segment"),
            (0, 1, "segment"),
            (7, 0, "segment length"),
            (7, longest + 1, "segment length"),
            (7, u32::MAX, "segment length"),
        ] {
            assert_eq!(Segment::decode(&header(sequence, length), 7).unwrap_err().field, field);
        }
        for (sequence, length) in [(7, 1), (7, longest), (8, 1), (u64::MAX, longest)] {
            Segment::decode(&header(sequence, length), 7).unwrap();
        }
    }

    #[test]
    fn the_wire_format_is_pinned() {
        let bytes = header(0x0102_0304_0506_0708, 0x1_0040);
        assert_eq!(&bytes[..12], b"\x08\x07\x06\x05\x04\x03\x02\x01\x40\0\x01\0");
        assert_eq!(bytes[12..], crc32c(&bytes[..12]).to_le_bytes());
    }

    #[test]
    fn a_pair_has_one_connection_at_least_and_no_more_than_the_limit() {
        let counts: Vec<usize> = (0..20).filter_map(Sockets::new).map(Sockets::get).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
