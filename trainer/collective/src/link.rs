use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::hosts::this_host;
use crate::{CollectiveError, Identity};

/// Connections that may wait to be accepted, where the system grants it: the last rank is called by all others at once.
const BACKLOG: i32 = 4096;
/// Send and receive buffer of a data socket, where the system grants it.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// When a peer that says nothing is asked after, and how often from then on.
const ASKED_AFTER: Duration = Duration::from_secs(10);
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// The system counts milliseconds in 31 bits.
const MAX_MILLISECONDS: u128 = i32::MAX as u128;
/// BBR is 3.3 times slower on a virtual link between two containers.
const CONGESTION_CONTROL: &str = "cubic";

/// The open data port of a worker. It outlives generations: each forms its group through it with fresh connections.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: TcpListener,
    address: SocketAddr,
    /// What every connection through it is proved with, on both ends.
    pub(crate) identity: Option<Identity>,
    /// The name of the host that it is on.
    pub(crate) host: u64,
}

impl Listener {
    /// Listens on `ip` and `port`; port 0 takes any that is free.
    ///
    /// # Errors
    /// [`CollectiveError::PortInUse`], or [`CollectiveError::Listen`] for anything else that the system refuses.
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

    /// Has all connections of the groups that form through it, called and calling, go inside TLS 1.3 from now on: both ends show a
    /// certificate that the job's authority has signed.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Self {
        Self { identity: Some(identity), ..self }
    }

    /// Has ranks that give the same number, except 0, count as sharing a host; without this, those under the same running kernel do.
    #[must_use]
    pub fn on_host(self, host: u64) -> Self {
        Self { host, ..self }
    }

    /// The address listened on, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Starts to connect to `address`; the socket is writable once it is connected or has failed.
pub(crate) fn dial(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Sets a data socket up for bulk transfer.
///
/// # Errors
/// When the socket is no longer usable. What a system may lack or forbid (a congestion control, a buffer size) is left
/// as it is.
pub(crate) fn tune(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    keep_alive(stream)?;
    set_unacknowledged(stream, silence)?;
    let _ = sockopt::set_tcp_congestion(stream, CONGESTION_CONTROL);
    if buffers_are_granted() {
        let socket = SockRef::from(stream);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    }
    Ok(())
}

/// Has the system ask after a peer that says nothing: its own system answers, however long it computes. Who does not is given up after the
/// time that [`set_unacknowledged`] sets.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASKED_AFTER)?;
    Ok(sockopt::set_tcp_keepintvl(stream, ASKED_EVERY)?)
}

/// Lets the system give up on bytes that stay unacknowledged for so long, or unwanted by a full receiver, or on a peer that says nothing
/// and answers nothing.
pub(crate) fn set_unacknowledged(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    let milliseconds = limit.as_millis().clamp(1, MAX_MILLISECONDS) as u32;
    Ok(sockopt::set_tcp_user_timeout(stream, milliseconds)?)
}

/// A fixed size switches the system's own tuning off, which is a loss where it is cut down to a small maximum.
fn buffers_are_granted() -> bool {
    let granted = || -> io::Result<bool> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        Ok(socket.send_buffer_size()?.min(socket.recv_buffer_size()?) >= SOCKET_BUFFER_BYTES)
    };
    granted().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_port_in_use_is_an_error_that_names_it_and_what_to_do() {
        let first = Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap();
        let error = Listener::bind(Ipv4Addr::LOCALHOST.into(), first.address().port()).unwrap_err();
        let expected = format!("cannot listen on {}: the port is in use; stop the process", first.address());
        assert!(error.to_string().starts_with(&expected), "{error}");
    }

    #[test]
    fn an_address_of_another_host_is_an_error_that_names_it() {
        let error = Listener::bind(Ipv4Addr::new(192, 0, 2, 1).into(), 4000).unwrap_err();
        assert!(error.to_string().starts_with("cannot listen on 192.0.2.1:4000; check"), "{error}");
    }
}
