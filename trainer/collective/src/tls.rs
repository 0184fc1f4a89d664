//! TLS 1.3 over a socket that never blocks. Bytes are encrypted from their place into one buffer,
//! which is then sent whole.

use std::fmt;
use std::net::TcpStream;
use std::ops::Range;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError, InvalidMessage};

use crate::identity::Identity;
use crate::link_error::LinkError;

/// The most bytes of a record.
const RECORD_PLAINTEXT_BYTES: usize = 16 << 10;
/// Bytes that are encrypted at once: 8 records, which stay in the cache until the system has taken
/// them.
const BATCH_PLAINTEXT_BYTES: usize = 8 * RECORD_PLAINTEXT_BYTES;
/// Room for the overhead of records, and for messages of TLS itself.
const OVERHEAD_BYTES: usize = 8 << 10;
/// Bytes that are read from the socket at once. No record is longer than a seventh of it.
const READ_BYTES: usize = 128 << 10;
/// The longest record with its header.
const MAX_RECORD_BYTES: usize = 5 + RECORD_PLAINTEXT_BYTES + 256;

/// One end of a connection inside TLS.
pub(crate) struct TlsSession {
    end: End,
    /// Encrypted bytes, from the first unread record on.
    incoming: Buffer,
    /// Decrypted bytes for which the reader had no room.
    unread: Vec<u8>,
    outgoing: Buffer,
    /// A record of two parts.
    joined: Vec<u8>,
    /// The caller's bytes that are encrypted and not yet sent.
    accepted: usize,
    /// True once the other end has proved its identity.
    is_established: bool,
}

enum End {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// The result of reading a record.
enum Step {
    /// Something was done, and more may follow.
    Done,
    /// All available bytes are read; `is_established` is true once the other end has proved its
    /// identity.
    NeedsBytes { is_established: bool },
    /// The other end has closed the session.
    Closed,
}

#[derive(Debug)]
struct Buffer {
    bytes: Box<[u8]>,
    filled: Range<usize>,
}

impl TlsSession {
    /// Returns the end that dialled.
    pub(crate) fn client(identity: &Identity) -> Result<Self, LinkError> {
        let end = UnbufferedClientConnection::new(identity.client.clone(), identity.name.clone())?;
        Ok(Self::new(End::Client(end)))
    }

    /// Returns the end that accepted.
    pub(crate) fn server(identity: &Identity) -> Result<Self, LinkError> {
        Ok(Self::new(End::Server(UnbufferedServerConnection::new(identity.server.clone())?)))
    }

    fn new(end: End) -> Self {
        Self {
            end,
            incoming: Buffer::of(READ_BYTES),
            unread: Vec::new(),
            outgoing: Buffer::of(BATCH_PLAINTEXT_BYTES + OVERHEAD_BYTES),
            joined: Vec::with_capacity(RECORD_PLAINTEXT_BYTES),
            accepted: 0,
            is_established: false,
        }
    }

    /// Continues the mutual proof of identity. Returns true once it is done.
    pub(crate) fn establish(&mut self, socket: &TcpStream) -> Result<bool, LinkError> {
        while !self.is_established {
            match self.step(&mut [], &mut [], &mut 0).inspect_err(|_| self.send_alert(socket))? {
                Step::Done => {}
                Step::NeedsBytes { is_established: true } => self.is_established = true,
                Step::NeedsBytes { is_established: false } => {
                    self.flush(socket)?;
                    match self.fill(socket) {
                        Ok(0) | Err(Errno::CONNRESET) => return Err(LinkError::Unproved),
                        Ok(_) => {}
                        Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                        Err(error) => return Err(error.into()),
                    }
                }
                Step::Closed => return Err(LinkError::Unproved),
            }
        }
        Ok(true)
    }

    /// Sends bytes of two parts. Returns their number once the system has taken all of their
    /// ciphertext. A caller that has to try again must pass the same bytes, because they are
    /// already encrypted.
    pub(crate) fn send(&mut self, socket: &TcpStream, header: &[u8], payload: &[u8]) -> Result<usize, LinkError> {
        if !self.is_established {
            return Err(LinkError::System(Errno::AGAIN));
        }
        if self.accepted == 0 {
            let payload = &payload[..payload.len().min(BATCH_PLAINTEXT_BYTES - header.len())];
            let with_header =
                if header.is_empty() { 0 } else { payload.len().min(RECORD_PLAINTEXT_BYTES - header.len()) };
            let (first, rest) = payload.split_at(with_header);
            self.encrypt_joined(header, first)?;
            self.encrypt(rest)?;
            self.accepted = header.len() + payload.len();
        }
        self.flush(socket)?;
        Ok(std::mem::take(&mut self.accepted))
    }

    /// Returns true while the system has not taken all encrypted bytes.
    pub(crate) fn holds_bytes(&self) -> bool {
        self.accepted > 0
    }

    /// Receives available bytes into two parts. Returns 0 once the other end has closed.
    pub(crate) fn receive(
        &mut self,
        socket: &TcpStream,
        header: &mut [u8],
        payload: &mut [u8],
    ) -> Result<usize, LinkError> {
        let wanted = header.len() + payload.len();
        let mut taken = self.take_unread(header, payload);
        while taken < wanted {
            match self.step(header, payload, &mut taken).inspect_err(|_| self.send_alert(socket))? {
                Step::Done => {}
                Step::NeedsBytes { is_established } => {
                    self.is_established = is_established;
                    if self.accepted == 0 {
                        self.flush(socket)?;
                    }
                    match self.fill(socket) {
                        Ok(0) => break,
                        Ok(_) => {}
                        Err(Errno::AGAIN | Errno::INTR) if taken > 0 => break,
                        Err(error) => return Err(error.into()),
                    }
                }
                Step::Closed => break,
            }
        }
        Ok(taken)
    }

    /// Reads the next record into the two parts, after their first `taken` bytes.
    fn step(&mut self, header: &mut [u8], payload: &mut [u8], taken: &mut usize) -> Result<Step, LinkError> {
        let Self { end, incoming, unread, outgoing, .. } = self;
        let mut take = |plaintext: &[u8]| {
            let moved = copy_into(plaintext, header, payload, taken);
            unread.extend_from_slice(&plaintext[moved..]);
        };
        let bytes = &mut incoming.bytes[incoming.filled.clone()];
        let (done, step) = match end {
            End::Client(end) => process(end.process_tls_records(bytes), outgoing, &mut take),
            End::Server(end) => process(end.process_tls_records(bytes), outgoing, &mut take),
        };
        incoming.advance(done);
        let step = step?;
        if matches!(step, Step::NeedsBytes { is_established: true }) && incoming.begins_with_a_record() {
            // This is a fragment of a TLS message. No rank sends such fragments.
            return Err(LinkError::Tls(InvalidMessage::UnexpectedMessage("part of a message").into()));
        }
        Ok(step)
    }

    fn take_unread(&mut self, header: &mut [u8], payload: &mut [u8]) -> usize {
        let mut taken = 0;
        let moved = copy_into(&self.unread, header, payload, &mut taken);
        self.unread.drain(..moved);
        taken
    }

    /// Encrypts two parts into one record: every record costs an allocation at both ends.
    fn encrypt_joined(&mut self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.extend_from_slice(header);
        joined.extend_from_slice(payload);
        let encrypted = self.encrypt(&joined);
        self.joined = joined;
        encrypted
    }

    fn encrypt(&mut self, plaintext: &[u8]) -> Result<(), LinkError> {
        let Self { end, outgoing, .. } = self;
        // Messages are never fragmented, so received bytes do not matter here.
        let written = match end {
            End::Client(end) => write(end.process_tls_records(&mut []), plaintext, outgoing.room()),
            End::Server(end) => write(end.process_tls_records(&mut []), plaintext, outgoing.room()),
        }?;
        outgoing.filled.end += written;
        Ok(())
    }

    /// Sends all encrypted bytes.
    fn flush(&mut self, socket: &TcpStream) -> Result<(), Errno> {
        while !self.outgoing.filled.is_empty() {
            let rest = &self.outgoing.bytes[self.outgoing.filled.clone()];
            let sent = rustix::net::send(socket, rest, SendFlags::NOSIGNAL)?;
            self.outgoing.advance(sent);
        }
        Ok(())
    }

    /// Reads available bytes from the socket. Returns 0 once the other end has closed.
    fn fill(&mut self, socket: &TcpStream) -> Result<usize, Errno> {
        let came = rustix::io::read(socket, self.incoming.room())?;
        self.incoming.filled.end += came;
        Ok(came)
    }

    /// Tells the other end the reason of a failure, if it still listens.
    fn send_alert(&mut self, socket: &TcpStream) {
        // The other end may have gone, and this rank knows the failure anyway.
        if let Ok(Step::Done) = self.step(&mut [], &mut [], &mut 0) {
            let _ = self.flush(socket);
        }
    }
}

/// Copies bytes into the room of two parts after `taken`. Returns the number that fitted.
fn copy_into(bytes: &[u8], header: &mut [u8], payload: &mut [u8], taken: &mut usize) -> usize {
    let mut moved = 0;
    let skipped = [*taken, taken.saturating_sub(header.len())];
    for (part, skipped) in [header, payload].into_iter().zip(skipped) {
        let room = part.get_mut(skipped..).unwrap_or_default();
        let count = room.len().min(bytes.len() - moved);
        room[..count].copy_from_slice(&bytes[moved..moved + count]);
        moved += count;
    }
    *taken += moved;
    moved
}

/// Does what the next record asks for. Returns the bytes that can be discarded.
fn process<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Buffer,
    take: &mut impl FnMut(&[u8]),
) -> (usize, Result<Step, LinkError>) {
    let UnbufferedStatus { discard: mut done, state } = status;
    let step = state.map_err(LinkError::Tls).and_then(|state| match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                done += record.discard;
                take(record.payload);
            }
            Ok(Step::Done)
        }
        ConnectionState::EncodeTlsData(mut message) => {
            // Encrypted data always leaves room for a message.
            let written = message.encode(outgoing.room()).map_err(|_| LinkError::System(Errno::NOBUFS))?;
            outgoing.filled.end += written;
            Ok(Step::Done)
        }
        ConnectionState::TransmitTlsData(transmission) => {
            // The buffer keeps the order.
            transmission.done();
            Ok(Step::Done)
        }
        ConnectionState::BlockedHandshake => Ok(Step::NeedsBytes { is_established: false }),
        ConnectionState::WriteTraffic(_) => Ok(Step::NeedsBytes { is_established: true }),
        ConnectionState::PeerClosed | ConnectionState::Closed => Ok(Step::Closed),
        _ => Err(LinkError::Tls(InvalidMessage::UnexpectedMessage("a state that this rank does not expect").into())),
    });
    (done, step)
}

fn write<Data>(status: UnbufferedStatus<'_, '_, Data>, plaintext: &[u8], room: &mut [u8]) -> Result<usize, LinkError> {
    match status.state? {
        ConnectionState::WriteTraffic(mut traffic) => {
            traffic.encrypt(plaintext, room).map_err(|_| LinkError::System(Errno::NOBUFS))
        }
        // The other end has closed the session.
        _ => Err(LinkError::System(Errno::PIPE)),
    }
}

impl Buffer {
    fn of(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into(), filled: 0..0 }
    }

    fn advance(&mut self, bytes: usize) {
        self.filled.start += bytes;
        if self.filled.is_empty() {
            self.filled = 0..0;
        }
    }

    /// Returns the room for further bytes: at least one record, if the buffer holds several and no
    /// whole one is in it.
    fn room(&mut self) -> &mut [u8] {
        if self.filled.start > 0 && self.bytes.len() - self.filled.end < MAX_RECORD_BYTES {
            self.bytes.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        &mut self.bytes[self.filled.end..]
    }

    fn begins_with_a_record(&self) -> bool {
        match self.bytes[self.filled.clone()] {
            [_, _, _, high, low, ref rest @ ..] => rest.len() >= usize::from(u16::from_be_bytes([high, low])),
            _ => false,
        }
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession").field("is_established", &self.is_established).finish_non_exhaustive()
    }
}

/// Says why a connection could not be established.
pub(crate) fn refusal(error: &rustls::Error) -> String {
    use rustls::Error::{AlertReceived, InvalidCertificate, NoCertificatesPresented};
    match error {
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is not signed by this job's authority".to_owned()
        }
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired, or this host's clock is wrong".to_owned()
        }
        InvalidCertificate(error) => format!("its certificate is not accepted: {error}"),
        NoCertificatesPresented => "it has no certificate; expected one signed by this job's authority".to_owned(),
        AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError),
        ) => format!("it does not accept this rank's certificate: {alert:?}"),
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS, which this rank expects; all ranks of a job encrypt, or none".to_owned()
        }
        other => format!("TLS failed: {other}"),
    }
}
