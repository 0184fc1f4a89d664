use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};

use crate::CollectiveError;
use crate::hosts::this_host;
use crate::identity::Identity;

/// Connections that may wait to be accepted, if the system grants it. All other ranks dial the last
/// one at once.
const BACKLOG: i32 = 4096;

/// The open data port of a worker. It outlives generations: each forms its group through it with
/// fresh connections.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: TcpListener,
    address: SocketAddr,
    /// The identity for both ends of every connection through the listener.
    pub(crate) identity: Option<Identity>,
    /// The name of this host.
    pub(crate) host: u64,
}

impl Listener {
    /// Listens on `ip` and `port`. Port 0 takes any free port.
    ///
    /// # Errors
    /// [`CollectiveError::PortInUse`], or [`CollectiveError::Listen`] if the system refuses for
    /// another reason.
    pub fn bind(ip: IpAddr, port: u16) -> Result<Self, CollectiveError> {
        let address = SocketAddr::new(ip, port);
        let listen = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            // A restarted worker takes its port again while the old connections fade.
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            let socket = TcpListener::from(socket);
            Ok(Self { address: socket.local_addr()?, socket, identity: None, host: this_host() })
        };
        listen().map_err(|source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => CollectiveError::PortInUse { address },
            _ => CollectiveError::Listen { address, source: Arc::new(source) },
        })
    }

    /// Puts all connections of later groups inside TLS 1.3, dialled and accepted ones. Both ends
    /// show a certificate that the job's authority signed.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Self {
        Self { identity: Some(identity), ..self }
    }

    /// Names this host. Ranks that give the same number, except 0, count as sharing a host. Without
    /// this, ranks under the same running kernel do.
    #[must_use]
    pub fn on_host(self, host: u64) -> Self {
        Self { host, ..self }
    }

    /// Returns the address of the listener, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_port_in_use_is_an_error_that_names_the_port_and_the_remedy() {
        let first = Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap();
        let error = Listener::bind(Ipv4Addr::LOCALHOST.into(), first.address().port()).unwrap_err();
        let expected = format!("cannot listen on {}: the port is in use; stop the process", first.address());
        assert!(error.to_string().starts_with(&expected), "{error}");
    }

    #[test]
    fn an_address_of_another_host_is_an_error_that_names_the_address() {
        let error = Listener::bind(Ipv4Addr::new(192, 0, 2, 1).into(), 4000).unwrap_err();
        assert!(error.to_string().starts_with("cannot listen on 192.0.2.1:4000; check"), "{error}");
    }
}
