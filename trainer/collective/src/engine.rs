//! Runs any [`Schedule`] over a mesh.
//!
//! The engine sends and receives in turn and blocks on neither, so frames longer than the sockets'
//! buffers cannot deadlock it.

use std::ops::Range;
use std::time::Instant;

use crate::algorithm::{Arrival, MAX_FRAME, Receive, Schedule, Send};
use crate::crc32c::crc32c;
use crate::element::MAX_ELEMENT_BYTES;
use crate::error_site::ErrorSite;
use crate::failure_notice::{self, NOTICE_BYTES};
use crate::frame::{FrameKind, HEADER_BYTES, Header};
use crate::idle::Idle;
use crate::mesh::{Mesh, Needs};
use crate::outcome::Transferred;
use crate::rank_id::RankId;
use crate::waiting::{Wait, WaitAction, Waiter};
use crate::wire::Coding;
use crate::{Abort, CollectiveError, Hosts};

/// Room for a frame of any elements, aligned for each type.
#[derive(Debug)]
struct Room(Box<[u64]>);

impl Room {
    fn new() -> Self {
        Self(vec![0; MAX_FRAME * MAX_ELEMENT_BYTES / size_of::<u64>()].into())
    }

    fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..bytes]
    }
}

/// Room for one arriving frame, and for one outgoing frame that is encoded first.
#[derive(Debug)]
pub(crate) struct Scratch {
    arriving: Room,
    leaving: Room,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { arriving: Room::new(), leaving: Room::new() }
    }
}

/// Frames that one connection has carried so far, modulo 2³². Both ends count. So ranks that
/// disagree on the number of frames of an operation notice it in the next one at the latest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    sent: u32,
    received: u32,
}

/// One operation under way on one rank.
pub(crate) struct Execution<'a> {
    pub(crate) mesh: &'a mut Mesh,
    /// By rank.
    pub(crate) counts: &'a mut [Counts],
    pub(crate) schedule: &'a Schedule,
    /// The fields that all frames of the operation share, with this rank as the sender.
    pub(crate) header: Header,
    /// Operations that all ranks of the group began before it.
    pub(crate) operation: u64,
    /// Bytes of an element in memory.
    pub(crate) element_bytes: usize,
    pub(crate) codings: Codings<'a>,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) waiter: &'a Waiter,
    pub(crate) abort: &'a Abort,
}

/// The formats in which elements travel within hosts and between them.
pub(crate) struct Codings<'a> {
    pub(crate) hosts: &'a Hosts,
    pub(crate) within: Coding,
    pub(crate) between: Coding,
}

impl Codings<'_> {
    /// Returns the format between two ranks.
    fn of(&self, one: usize, other: usize) -> Coding {
        let hosts = self.hosts.numbers();
        if hosts[one] == hosts[other] { self.within } else { self.between }
    }
}

/// The progress of an operation.
#[derive(Default)]
struct Progress {
    /// Frames that were sent.
    sent: usize,
    outgoing: Option<Outgoing>,
    /// Frames that were received and taken in.
    received: usize,
    incoming: Option<Incoming>,
    transferred: Transferred,
}

impl Progress {
    fn frames(&self) -> usize {
        self.sent + self.received
    }
}

/// A frame that is being sent.
struct Outgoing {
    header: [u8; HEADER_BYTES],
    sent: usize,
}

/// A frame that is arriving.
struct Incoming {
    bytes: [u8; HEADER_BYTES],
    /// Bytes of the frame that have arrived.
    filled: usize,
    /// True if the payload goes to the scratch space first.
    in_scratch: bool,
    /// Set once the whole frame has arrived and matches the expected one.
    header: Option<Header>,
}

/// Hop, sender and receiver. All ranks do transfers in this order.
type Transfer = (usize, usize, usize);

impl Execution<'_> {
    /// Runs the whole operation over `data`.
    pub(crate) fn run(&mut self, data: &mut [u8]) -> Result<Transferred, CollectiveError> {
        let mut progress = Progress::default();
        self.transfer_all(&mut progress, data).map_err(|error| match self.abort.check() {
            // Sockets that an abort shut down look as if the peer had closed them.
            Err(aborted) => self.aborted(aborted, &progress),
            Ok(()) => self.give_up(error, &progress, data),
        })
    }

    /// Adds the site at which the operation was aborted.
    fn aborted(&self, aborted: CollectiveError, progress: &Progress) -> CollectiveError {
        let Some(site) = self.lacked(progress, None) else { return aborted };
        let ErrorSite { from, to, .. } = site;
        let other = if from == self.header.sender { to } else { from };
        aborted.at_site(site).awaiting(other as usize)
    }

    /// Returns the error with its site, and tells the other ranks.
    fn give_up(&mut self, error: CollectiveError, progress: &Progress, data: &mut [u8]) -> CollectiveError {
        let Header { job, generation, sender, .. } = self.header;
        let id = RankId { job, generation, rank: sender as usize };
        let error = match self.lacked(progress, error.peer()) {
            Some(site) => error.at_site(site),
            None => error,
        };
        let received = self.partial_notice(progress, error.peer(), data);
        let error = failure_notice::explain(self.mesh, id, error, &received);
        if let Some(origin) = error.origin() {
            let is_halfway = progress.outgoing.as_ref().is_some_and(|outgoing| outgoing.sent > 0);
            let halfway = self.schedule.sends.get(progress.sent).filter(|_| is_halfway).map(|send| send.to);
            failure_notice::send(self.mesh, id, origin, halfway);
        }
        error
    }

    /// Returns the received bytes of a frame from `peer` that may be its failure notice.
    fn partial_notice(&mut self, progress: &Progress, peer: Option<usize>, data: &[u8]) -> Vec<u8> {
        let receive = self.schedule.receives.get(progress.received).filter(|receive| Some(receive.from) == peer);
        let (Some(receive), Some(incoming)) = (receive, &progress.incoming) else { return Vec::new() };
        let (place, length) = (self.place(&receive.elements), self.length(receive.from, &receive.elements));
        let payload = if incoming.in_scratch { self.scratch.arriving.first(length) } else { &data[place] };
        let filled = incoming.filled.min(NOTICE_BYTES);
        let in_payload = filled.saturating_sub(HEADER_BYTES).min(payload.len());
        [&incoming.bytes[..filled.min(HEADER_BYTES)], &payload[..in_payload]].concat()
    }

    fn transfer_all(&mut self, progress: &mut Progress, data: &mut [u8]) -> Result<Transferred, CollectiveError> {
        let started = Instant::now();
        // Times since the last byte and since the last whole frame.
        let (mut idle, mut stalled): (Option<(Idle, Wait)>, Option<Idle>) = (None, None);
        loop {
            let frames = progress.frames();
            let sent = self.send(progress, data)?;
            let received = self.receive(progress, data)?;
            if sent || received {
                idle.take().into_iter().for_each(|(_, wait)| self.waiter.found(wait));
            }
            if self.is_done(progress) {
                return Ok(Transferred { took: started.elapsed(), ..progress.transferred });
            }
            if progress.frames() > frames {
                stalled = None;
                continue;
            }
            let now = Instant::now();
            let without_frame = stalled.get_or_insert_with(|| Idle::since(now)).look(now);
            // A peer that brings a byte now and then is silent too.
            let is_over = without_frame >= self.mesh.silence();
            if (sent || received) && !is_over {
                continue;
            }
            let (since, wait) = idle.get_or_insert_with(|| (Idle::since(now), Wait::default()));
            let found_nothing = since.look(now);
            match self.waiter.next(wait, found_nothing) {
                WaitAction::Look if !is_over => {
                    std::hint::spin_loop();
                    continue;
                }
                WaitAction::Yield if !is_over => {
                    self.waiter.give_way(wait);
                    continue;
                }
                WaitAction::Move if !is_over => {
                    self.waiter.move_to_own();
                    continue;
                }
                WaitAction::Look | WaitAction::Yield | WaitAction::Move | WaitAction::Sleep => {}
            }
            self.mesh.wait(self.needs(progress), found_nothing, without_frame)?;
        }
    }

    fn is_done(&self, progress: &Progress) -> bool {
        let Schedule { sends, receives, .. } = self.schedule;
        progress.sent == sends.len() && progress.received == receives.len() && self.mesh.is_flushed()
    }

    /// Returns the transfers that are still lacking.
    fn needs(&self, progress: &Progress) -> Needs {
        let to = progress.outgoing.as_ref().map(|_| self.schedule.sends[progress.sent].to);
        let from = self.missing(progress).map(|receive| receive.from);
        let first = self.transfers(progress).into_iter().flatten().min().map(|transfer| self.other(transfer));
        Needs { to, from, first }
    }

    /// Returns the first transfer that is lacking; transfers with `peer` come first.
    fn lacked(&self, progress: &Progress, peer: Option<usize>) -> Option<ErrorSite> {
        let lacking = || self.transfers(progress).into_iter().flatten();
        let with_peer = lacking().filter(|transfer| peer == Some(self.other(*transfer)));
        let (hop, from, to) = with_peer.min().or(lacking().min())?;
        let Header { step, bucket, .. } = self.header;
        let [hop, hops] = [hop + 1, self.schedule.hops].map(|count| count as u32);
        Some(ErrorSite { operation: self.operation, step, bucket, hop, from: from as u32, to: to as u32, hops })
    }

    /// Returns the transfer that is being sent and the one that is awaited.
    fn transfers(&self, progress: &Progress) -> [Option<Transfer>; 2] {
        let own = self.header.sender as usize;
        let outgoing = self.unsent(progress).map(|send| (send.hop, own, send.to));
        [outgoing, self.missing(progress).map(|receive| (receive.hop, receive.from, own))]
    }

    /// Returns the first frame that is due and not sent.
    fn unsent(&self, progress: &Progress) -> Option<&Send> {
        let sends = &self.schedule.sends;
        match &progress.outgoing {
            Some(Outgoing { sent: 1.., .. }) => sends.get(progress.sent),
            // Accepted bytes of the frame before it are still unsent.
            _ if !self.mesh.is_flushed() => sends.get(progress.sent.checked_sub(1)?),
            Some(_) => sends.get(progress.sent),
            None => None,
        }
    }

    /// Returns the next frame to arrive, if it is not here.
    fn missing(&self, progress: &Progress) -> Option<&Receive> {
        let is_here = progress.incoming.as_ref().is_some_and(|incoming| incoming.header.is_some());
        self.schedule.receives.get(progress.received).filter(|_| !is_here)
    }

    fn other(&self, (_, from, to): Transfer) -> usize {
        if from == self.header.sender as usize { to } else { from }
    }

    /// Sends as much of the next frame as the mesh takes, or else the unsent bytes of earlier
    /// frames. Returns true if any bytes moved.
    fn send(&mut self, progress: &mut Progress, data: &mut [u8]) -> Result<bool, CollectiveError> {
        let schedule = self.schedule;
        let is_due = |send: &&Send| progress.outgoing.is_some() || send.after <= progress.received;
        let Some(send) = schedule.sends.get(progress.sent).filter(is_due) else { return self.mesh.flush() };
        let (place, length) = (self.place(&send.elements), self.length(send.to, &send.elements));
        let payload = match self.coding(send.to).write {
            None => &data[place],
            Some(write) => {
                let frame = self.scratch.leaving.first(length);
                if progress.outgoing.is_none() {
                    write(&mut data[place], frame);
                }
                frame
            }
        };
        let header = Header { chunk: self.counts[send.to].sent, length: length as u32, ..self.header };
        let outgoing = progress.outgoing.get_or_insert_with(|| {
            let payload_crc32c = crc32c(payload);
            Outgoing { header: Header { payload_crc32c, ..header }.encode(), sent: 0 }
        });
        let header = &outgoing.header[outgoing.sent.min(HEADER_BYTES)..];
        let rest = &payload[outgoing.sent.saturating_sub(HEADER_BYTES)..];
        let Some(count) = self.mesh.send(send.to, header, rest)? else { return Ok(false) };
        outgoing.sent += count;
        progress.transferred.bytes_sent += count as u64;
        if outgoing.sent == HEADER_BYTES + payload.len() {
            progress.outgoing = None;
            progress.sent += 1;
            self.counts[send.to].sent = self.counts[send.to].sent.wrapping_add(1);
        }
        Ok(true)
    }

    /// Receives the next frame as far as it has arrived, and takes it in once it is whole and due.
    /// Returns true if anything was done.
    fn receive(&mut self, progress: &mut Progress, data: &mut [u8]) -> Result<bool, CollectiveError> {
        let schedule = self.schedule;
        let Some(receive) = schedule.receives.get(progress.received) else { return Ok(false) };
        let is_due = receive.after <= progress.sent;
        let coding = self.coding(receive.from);
        let (place, length) = (self.place(&receive.elements), self.length(receive.from, &receive.elements));
        let expected = Header {
            sender: receive.from as u32,
            chunk: self.counts[receive.from].received,
            length: length as u32,
            ..self.header
        };
        let incoming = progress.incoming.get_or_insert_with(|| Incoming {
            bytes: [0; HEADER_BYTES],
            filled: 0,
            in_scratch: receive.arrival == Arrival::Reduce || !is_due || coding.write.is_some(),
            header: None,
        });
        if incoming.header.is_none() {
            let payload =
                if incoming.in_scratch { self.scratch.arriving.first(length) } else { &mut data[place.clone()] };
            let (to_header, to_payload) =
                (incoming.filled.min(HEADER_BYTES), incoming.filled.saturating_sub(HEADER_BYTES));
            let came = self.mesh.receive(receive.from, &mut incoming.bytes[to_header..], &mut payload[to_payload..])?;
            let Some(count) = came else { return Ok(false) };
            incoming.filled += count;
            progress.transferred.bytes_received += count as u64;
            if incoming.filled < HEADER_BYTES + length {
                // A frame that does not belong here is refused before the rest of it arrives.
                if to_header < HEADER_BYTES && incoming.filled >= HEADER_BYTES {
                    require(&incoming.bytes, &expected)?;
                }
                return Ok(true);
            }
            let header = require(&incoming.bytes, &expected)?;
            header.require_payload(payload, receive.from)?;
            incoming.header = Some(header);
        }
        if !is_due {
            return Ok(false);
        }
        if incoming.in_scratch {
            let take_in = match receive.arrival {
                Arrival::Reduce => coding.reduce,
                Arrival::Copy => coding.copy,
            };
            take_in(&mut data[place], self.scratch.arriving.first(length));
        }
        progress.incoming = None;
        progress.received += 1;
        self.counts[receive.from].received = self.counts[receive.from].received.wrapping_add(1);
        Ok(true)
    }

    /// Returns the bytes of elements in memory.
    fn place(&self, elements: &Range<usize>) -> Range<usize> {
        elements.start * self.element_bytes..elements.end * self.element_bytes
    }

    /// Returns the payload bytes of elements on the way from or to `peer`.
    fn length(&self, peer: usize, elements: &Range<usize>) -> usize {
        elements.len() * self.coding(peer).element_bytes
    }

    fn coding(&self, peer: usize) -> Coding {
        self.codings.of(self.header.sender as usize, peer)
    }
}

/// Reads a header, which must be `expected` or belong to the peer's failure notice.
fn require(bytes: &[u8; HEADER_BYTES], expected: &Header) -> Result<Header, CollectiveError> {
    let rank = expected.sender as usize;
    let header = Header::decode(bytes).map_err(|source| CollectiveError::BadFrame { rank, source, at: None })?;
    if header.kind == FrameKind::FailureNotice && header.job == expected.job && header.generation == expected.generation
    {
        return Err(CollectiveError::PeerClosed { rank, at: None });
    }
    header.require(expected, rank)?;
    Ok(header)
}
