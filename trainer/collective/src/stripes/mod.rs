//! The connections of one pair of ranks as one stream of bytes.
//!
//! A single connection carries the stream as it is. Several connections share it, for networks that
//! limit each flow. The stream is cut into segments. Each goes to a connection that has room for
//! it, so that the faster ones carry more. A segment is a header, little endian, then the payload:
//! ```text
//! 0 sequence u64 · 8 length u32 · 12 crc32c of bytes 0..12
//! ```
//! A stripe keeps the bytes of its segment that its socket does not take. It takes no other segment
//! before they are sent, while the other stripes go on. Segments are read in sequence, straight to
//! their destination. Early segments wait in their sockets.
//!
//! No rank waits for ever, because the next segment can always move. The sequence grows along each
//! stripe. So everything before the next segment on its stripe has been read already, and nothing
//! stands between its two ends. While the receiver reads, its socket has room again, and the sender
//! puts the rest of the segment there, whatever the other stripes do. Hence the stripes together
//! move whenever a single connection would.

mod segment;
mod stripe;

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use socket2::SockRef;

use crate::connection::Connection;
use crate::frame::HEADER_BYTES;
use crate::link_error::{LinkError, WrongSegment};
use crate::poll_set::PollSet;
use crate::sockets::MAX_SOCKETS;
use segment::{MAX_SEGMENT_BYTES, SEGMENT_HEADER_BYTES, Segment};
use stripe::Stripe;

/// The unsent bytes that the system accepts on one of several connections. More would wait behind a
/// slow connection while others are free.
const UNSENT_BYTES: u32 = 128 << 10;

/// All connections with one peer.
#[derive(Debug)]
pub(crate) struct Stripes {
    stripes: Box<[Stripe]>,
    /// Segments that were begun.
    sent: u64,
    /// Segments that were read to their end.
    received: u64,
    /// The stripe that is offered the next segment first.
    next_to_send: usize,
    /// The stripe on which the next segment is looked for first.
    next_to_receive: usize,
}

impl Stripes {
    /// Returns the stripes over at least one connection.
    pub(crate) fn over(connections: Vec<Connection>) -> Self {
        let room = if connections.len() > 1 { SEGMENT_HEADER_BYTES + MAX_SEGMENT_BYTES } else { 0 };
        if connections.len() > 1 {
            for connection in &connections {
                // A system without this option lets more bytes wait behind a slow connection.
                let _ = SockRef::from(&**connection.socket()).set_tcp_notsent_lowat(UNSENT_BYTES);
            }
        }
        let stripe = |connection| Stripe::over(connection, room);
        Self {
            stripes: connections.into_iter().map(stripe).collect(),
            sent: 0,
            received: 0,
            next_to_send: 0,
            next_to_receive: 0,
        }
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        self.stripes.iter().map(|stripe| stripe.connection.socket())
    }

    /// Sends as much of the two parts as fits. A caller that has to try again must pass the same
    /// bytes.
    pub(crate) fn send(&mut self, header: &[u8], payload: &[u8]) -> Result<usize, LinkError> {
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
        for at in in_turn(self.next_to_send, self.stripes.len()) {
            if self.stripes[at].take(begin, payload)? {
                self.next_to_send = at + 1;
                self.sent += 1;
                return Ok(segment.length);
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Sends unsent bytes as far as there is room. Returns true if any moved.
    pub(crate) fn flush(&mut self) -> Result<bool, LinkError> {
        let ready = self.ready(PollFlags::OUT, |stripe| stripe.is_full);
        let mut moved = false;
        for (stripe, ready) in self.stripes.iter_mut().zip(ready) {
            stripe.is_full &= !ready;
            moved |= stripe.flush()?;
        }
        Ok(moved)
    }

    /// Returns true while bytes that [`Stripes::send`] accepted are unsent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.stripes.iter().any(|stripe| !stripe.rest.is_empty())
    }

    /// Returns true while a connection holds bytes of a [`Stripes::send`] that has to be repeated.
    pub(crate) fn holds_bytes(&self) -> bool {
        self.stripes.iter().any(|stripe| stripe.connection.holds_bytes())
    }

    /// Receives the available bytes into two parts. Returns 0 once the peer has closed and nothing
    /// more can come.
    pub(crate) fn receive(&mut self, header: &mut [u8], payload: &mut [u8]) -> Result<usize, LinkError> {
        if let [Stripe { connection, .. }] = &mut *self.stripes {
            return connection.receive(header, payload);
        }
        let Some(at) = self.find_next()? else { return Ok(0) };
        let (taken, is_whole) = self.stripes[at].read(header, payload)?;
        if is_whole {
            self.received += 1;
            self.next_to_receive = at + 1;
        }
        Ok(taken)
    }

    /// Returns the stripe at whose head the next segment is. Returns `None` once the peer has
    /// closed all stripes on which it could come.
    fn find_next(&mut self) -> Result<Option<usize>, LinkError> {
        let next = self.received;
        if let Some(at) = self.stripes.iter().position(|stripe| stripe.holds(next)) {
            return Ok(Some(at));
        }
        let ready = self.ready(PollFlags::IN, |stripe| stripe.awaits_header() && stripe.is_dry);
        for at in in_turn(self.next_to_receive, self.stripes.len()) {
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

    /// Returns the time since the peer was found to have closed the first of several connections.
    pub(crate) fn closed_for(&self) -> Option<Duration> {
        self.stripes.iter().filter_map(|stripe| stripe.closed).min().map(|closed| closed.elapsed())
    }

    /// Returns the sockets that need room before more can be sent. All of them also report that the
    /// peer has closed.
    pub(crate) fn room(&self, for_more: bool) -> impl Iterator<Item = PollFd<'_>> {
        self.stripes.iter().map(move |stripe| {
            let lacks_room = for_more || !stripe.rest.is_empty();
            let room = if lacks_room { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(stripe.connection.socket(), room | PollFlags::RDHUP)
        })
    }

    /// Returns the sockets on which the next bytes may come.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = PollFd<'_>> {
        let next = self.received;
        let found = self.stripes.iter().any(|stripe| stripe.holds(next));
        let may_bring = move |stripe: &&Stripe| if found { stripe.holds(next) } else { stripe.awaits_header() };
        self.stripes.iter().filter(may_bring).map(|stripe| PollFd::new(stripe.connection.socket(), PollFlags::IN))
    }

    /// Returns which of the selected stripes are ready, without waiting.
    fn ready(&self, events: PollFlags, is_asked: impl Fn(&Stripe) -> bool) -> [bool; MAX_SOCKETS] {
        let mut ready = std::array::from_fn(|at| self.stripes.get(at).is_some_and(&is_asked));
        if ready == [false; MAX_SOCKETS] {
            return ready;
        }
        let mut watched = PollSet::default();
        for (at, stripe) in self.stripes.iter().enumerate().filter(|(at, _)| ready[*at]) {
            watched.slots[at] = PollFd::new(stripe.connection.socket(), events);
        }
        // A failure to poll shows when the stripes are tried.
        if watched.poll(Duration::ZERO).is_ok() {
            ready = std::array::from_fn(|at| !watched.slots[at].revents().is_empty());
        }
        ready
    }
}

/// Returns all stripes once, starting with the first one.
fn in_turn(first: usize, stripes: usize) -> impl Iterator<Item = usize> {
    (first..first + stripes).map(move |turn| turn % stripes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, TcpListener};

    /// Returns both ends of several connections that take less than a segment at once.
    fn narrow(sockets: usize) -> [Stripes; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connection = |stream: TcpStream| {
            stream.set_nonblocking(true).unwrap();
            SockRef::from(&stream).set_send_buffer_size(20_000).unwrap();
            Connection::dialled(stream, None).unwrap()
        };
        let (here, there): (Vec<_>, Vec<_>) = (0..sockets)
            .map(|_| {
                let calling = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                (connection(calling), connection(listener.accept().unwrap().0))
            })
            .unzip();
        [Stripes::over(here), Stripes::over(there)]
    }

    fn moved(outcome: Result<usize, LinkError>) -> usize {
        match outcome {
            Ok(count) => count,
            Err(broken) if broken.would_block() => 0,
            Err(broken) => panic!("{broken:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn a_stream_arrives_unchanged_however_it_is_cut_and_offered(
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
}
