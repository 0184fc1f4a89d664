//! One of several connections with a peer.

use std::time::Instant;

use rustix::io::Errno;

use super::segment::{SEGMENT_HEADER_BYTES, Segment};
use crate::connection::Connection;
use crate::link_error::LinkError;

#[derive(Debug)]
pub(super) struct Stripe {
    pub(super) connection: Connection,
    /// The bytes of a segment that the socket has not taken, after the first `sent` bytes.
    pub(super) rest: Vec<u8>,
    pub(super) sent: usize,
    /// True if the socket took less than it was offered.
    pub(super) is_full: bool,
    /// The header of a segment while it arrives.
    pub(super) header: [u8; SEGMENT_HEADER_BYTES],
    pub(super) filled: usize,
    /// The unread rest of the segment whose header has come.
    pub(super) head: Option<Segment>,
    /// True if the socket had less than it was asked for.
    pub(super) is_dry: bool,
    /// The time at which the peer was found to have closed it after a whole segment. Other stripes
    /// may hold more.
    pub(super) closed: Option<Instant>,
}

impl Stripe {
    /// Returns a stripe with `room` bytes for the rest of a segment.
    pub(super) fn over(connection: Connection, room: usize) -> Self {
        Self {
            connection,
            rest: Vec::with_capacity(room),
            sent: 0,
            is_full: false,
            header: [0; SEGMENT_HEADER_BYTES],
            filled: 0,
            head: None,
            is_dry: false,
            closed: None,
        }
    }

    /// Takes all of a segment, or nothing of it. Returns true if it took the segment.
    pub(super) fn take(&mut self, begin: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
        if self.is_full {
            return Ok(false);
        }
        let sent = match self.connection.send(begin, payload) {
            Ok(sent) => sent,
            Err(broken) if broken.would_block() => {
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

    /// Sends the rest. Returns true if any of it moved.
    pub(super) fn flush(&mut self) -> Result<bool, LinkError> {
        if self.is_full || self.rest.is_empty() {
            return Ok(false);
        }
        match self.connection.send(&[], &self.rest[self.sent..]) {
            Ok(sent) => self.sent += sent,
            Err(broken) if broken.would_block() => {
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

    pub(super) fn holds(&self, next: u64) -> bool {
        self.head.is_some_and(|head| head.sequence == next)
    }

    pub(super) fn awaits_header(&self) -> bool {
        self.head.is_none() && self.closed.is_none()
    }

    /// Reads a header if one is awaited, as far as it has come.
    pub(super) fn look(&mut self, next: u64) -> Result<(), LinkError> {
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
                Err(broken) if broken.would_block() => self.is_dry = true,
                Err(broken) => return Err(broken),
            }
        }
        Ok(())
    }

    /// Reads the segment at the head into two parts. With its end it reads the header behind it, if
    /// that has come. Returns the segment's bytes, and true if they were its last.
    pub(super) fn read(&mut self, header: &mut [u8], payload: &mut [u8]) -> Result<(usize, bool), LinkError> {
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
