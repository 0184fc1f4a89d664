use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::sync::Arc;

use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::identity::Identity;
use crate::link_error::LinkError;
use crate::listener::Listener;
use crate::tls::TlsSession;

/// Bytes to and from one peer, plain or inside TLS. It never blocks.
#[derive(Debug)]
pub(crate) struct Connection {
    /// An abort shuts it down.
    socket: Arc<TcpStream>,
    session: Option<Box<TlsSession>>,
}

impl Connection {
    /// Returns a connection over a socket that this rank has connected.
    pub(crate) fn dialled(socket: TcpStream, identity: Option<&Identity>) -> Result<Self, LinkError> {
        let session = identity.map(TlsSession::client).transpose()?.map(Box::new);
        Ok(Self { socket: Arc::new(socket), session })
    }

    /// Returns a connection over a socket that the listener accepted.
    pub(crate) fn accepted(socket: TcpStream, listener: &Listener) -> Result<Self, LinkError> {
        let session = listener.identity.as_ref().map(TlsSession::server).transpose()?.map(Box::new);
        Ok(Self { socket: Arc::new(socket), session })
    }

    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Continues the TLS handshake, if there is one. Returns true once it is done.
    pub(crate) fn establish(&mut self) -> Result<bool, LinkError> {
        match &mut self.session {
            Some(session) => session.establish(&self.socket),
            None => Ok(true),
        }
    }

    /// Sends as much of the two parts as the socket takes. A caller that has to try again must pass
    /// the same bytes.
    pub(crate) fn send(&mut self, header: &[u8], payload: &[u8]) -> Result<usize, LinkError> {
        if let Some(session) = &mut self.session {
            return session.send(&self.socket, header, payload);
        }
        let parts = [IoSlice::new(header), IoSlice::new(payload)];
        let parts = if header.is_empty() { &parts[1..] } else { &parts[..] };
        let mut nothing_besides = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(&self.socket, parts, &mut nothing_besides, SendFlags::NOSIGNAL)?)
    }

    /// Returns true while the connection holds bytes of a call that has to be repeated.
    pub(crate) fn holds_bytes(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.holds_bytes())
    }

    /// Receives the available bytes into two parts. Returns 0 once the peer has closed.
    pub(crate) fn receive(&mut self, header: &mut [u8], payload: &mut [u8]) -> Result<usize, LinkError> {
        if let Some(session) = &mut self.session {
            return session.receive(&self.socket, header, payload);
        }
        Ok(if header.is_empty() {
            rustix::io::read(&self.socket, payload)?
        } else {
            rustix::io::readv(&self.socket, &mut [IoSliceMut::new(header), IoSliceMut::new(payload)])?
        })
    }
}
