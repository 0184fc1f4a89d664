//! What both ends of a connection say before it counts: which job, generation and rank they are, and how many connections they expect.

use std::io;

use crate::CollectiveError;
use crate::connection::Connection;
use crate::frame::{FrameKind, HEADER_BYTES, Header};
use crate::link_error::LinkError;
use crate::operation::OperationCode;
use crate::rank_id::RankId;
use crate::sockets::Sockets;
use crate::tls::refusal;

/// How records of TLS begin with which a rank answers that encrypts: an alert, a handshake.
const TLS: [[u8; 2]; 2] = [[0x15, 3], [0x16, 3]];

/// One of the connections that a pair of ranks has.
#[derive(Clone, Copy)]
pub(super) struct SocketIndex {
    pub(super) rank: usize,
    pub(super) stripe: usize,
    pub(super) of: Sockets,
}

/// A connection whose other end is yet to say who it is.
pub(super) struct PendingPeer {
    pub(super) connection: Connection,
    /// What is to be said first.
    pub(super) unsent: Option<Header>,
    header: [u8; HEADER_BYTES],
    filled: usize,
}

impl PendingPeer {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, unsent: None, header: [0; HEADER_BYTES], filled: 0 }
    }

    /// Says what is to be said first, once the connection allows it; whether it has.
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

    /// The header, once all of it has come; what was met instead, when it cannot come any more.
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
                return Err("it encrypts, and this rank does not; all ranks of a job do, or none".to_owned());
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

/// The connections that a pair has besides one.
pub(super) fn extra_sockets(sockets: Sockets) -> u32 {
    sockets.get() as u32 - 1
}

/// What is wrong with a greeting of a rank that has other limits.
pub(super) fn socket_mismatch(header: &Header, own: Sockets) -> String {
    let found = u64::from(header.bucket) + 1;
    format!(
        "rank {} has {found} sockets for each peer, expected {}; all ranks of a job have as many",
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
        Ok(_) => Err("it takes no bytes".to_owned()),
        Err(error) => Err(describe(error)),
    }
}

/// What a connection that broke has met.
pub(super) fn describe(broken: LinkError) -> String {
    match broken {
        LinkError::System(error) => io::Error::from(error).to_string(),
        LinkError::Tls(error) => refusal(&error),
        LinkError::Segment(wrong) => format!("it sent {wrong:?}"),
        LinkError::Unproved => {
            "it closed the connection instead of proving who it is; all ranks encrypt, or none".to_owned()
        }
    }
}
