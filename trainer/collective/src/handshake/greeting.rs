//! The greeting at both ends of a connection: job, generation, rank, and the number of connections.

use std::io;

use crate::CollectiveError;
use crate::connection::Connection;
use crate::frame::{FrameKind, HEADER_BYTES, Header};
use crate::link_error::LinkError;
use crate::operation::OperationCode;
use crate::rank_id::RankId;
use crate::sockets::Sockets;
use crate::tls::refusal;

/// The first bytes of TLS records with which an encrypting rank answers: an alert or a handshake.
const TLS: [[u8; 2]; 2] = [[0x15, 3], [0x16, 3]];

/// One of the connections of a pair of ranks.
#[derive(Clone, Copy)]
pub(super) struct SocketIndex {
    pub(super) rank: usize,
    pub(super) stripe: usize,
    pub(super) of: Sockets,
}

/// A connection whose peer has not identified itself.
pub(super) struct PendingPeer {
    pub(super) connection: Connection,
    /// The header to send first.
    pub(super) unsent: Option<Header>,
    header: [u8; HEADER_BYTES],
    filled: usize,
}

impl PendingPeer {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, unsent: None, header: [0; HEADER_BYTES], filled: 0 }
    }

    /// Sends the first header once the connection allows it. Returns true after that.
    pub(super) fn send_greeting(&mut self) -> Result<bool, String> {
        match self.connection.establish() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(broken) if broken.would_block() => return Ok(false),
            Err(broken) => return Err(describe(broken)),
        }
        self.unsent.take().map_or(Ok(()), |header| send_greeting(&mut self.connection, header))?;
        Ok(true)
    }

    /// Returns the peer's header once all of it has arrived, or a text that says why it cannot
    /// arrive.
    pub(super) fn receive_header(&mut self) -> Result<Option<Header>, String> {
        if !self.send_greeting()? {
            return Ok(None);
        }
        while self.filled < HEADER_BYTES {
            match self.connection.receive(&mut self.header[self.filled..], &mut []) {
                Ok(0) => return Err("it closed the connection".to_owned()),
                Ok(count) => self.filled += count,
                Err(broken) if broken.would_block() => return Ok(None),
                Err(broken) => return Err(describe(broken)),
            }
            if TLS.iter().any(|begin| self.header[..self.filled].starts_with(begin)) {
                return Err("it encrypts, and this rank does not; all ranks of a job encrypt, or none".to_owned());
            }
        }
        Header::decode(&self.header).map(Some).map_err(|error| format!("it sent bytes that are no frame: {error}"))
    }
}

pub(super) fn greeting(id: RankId, kind: FrameKind, sender: usize, index: SocketIndex) -> Header {
    let RankId { job, generation, .. } = id;
    Header {
        kind,
        operation: OperationCode::default(),
        job,
        generation,
        step: 0,
        bucket: extra_sockets(index.of),
        chunk: index.stripe as u32,
        sender: sender as u32,
        length: 0,
        payload_crc32c: 0,
    }
}

/// Returns the number of a pair's connections minus one.
pub(super) fn extra_sockets(sockets: Sockets) -> u32 {
    sockets.get() as u32 - 1
}

/// Says that a peer has another number of sockets.
pub(super) fn socket_mismatch(header: &Header, own: Sockets) -> String {
    let found = u64::from(header.bucket) + 1;
    format!(
        "rank {} has {found} sockets for each peer, expected {}; all ranks of a job need the same number",
        header.sender,
        own.get()
    )
}

pub(super) fn superseded(id: RankId, rank: usize, newer: u64) -> CollectiveError {
    CollectiveError::Superseded { rank, generation: id.generation, newer }
}

pub(super) fn send_greeting(connection: &mut Connection, header: Header) -> Result<(), String> {
    let bytes = header.encode();
    // The first bytes on a fresh connection always fit its buffer.
    match connection.send(&bytes, &[]) {
        Ok(HEADER_BYTES) => Ok(()),
        Ok(_) => Err("it accepts no bytes".to_owned()),
        Err(error) => Err(describe(error)),
    }
}

/// Describes why a connection broke.
pub(super) fn describe(broken: LinkError) -> String {
    match broken {
        LinkError::System(error) => io::Error::from(error).to_string(),
        LinkError::Tls(error) => refusal(&error),
        LinkError::Segment(wrong) => format!("it sent {wrong:?}"),
        LinkError::Unproved => {
            "it closed the connection instead of proving its identity; all ranks encrypt, or none".to_owned()
        }
    }
}
