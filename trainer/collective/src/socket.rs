//! Data sockets: how they connect, and their options.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// The send and receive buffers of a data socket, if the system grants them.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// The silence after which the system probes a peer, and the interval of further probes.
const ASKED_AFTER: Duration = Duration::from_secs(10);
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// The system counts milliseconds in 31 bits.
const MAX_MILLISECONDS: u128 = i32::MAX as u128;
/// BBR is 3.3 times slower on a virtual link between two containers.
const CONGESTION_CONTROL: &str = "cubic";

/// Starts to connect to `address`. The socket becomes writable once it is connected or has failed.
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
/// If the socket is no longer usable. Options that a system may lack or forbid (a congestion
/// control, a buffer size) are not required.
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

/// Lets the system probe a silent peer. The peer's system answers even while the peer computes. A
/// peer that does not answer is given up after the time that [`set_unacknowledged`] sets.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASKED_AFTER)?;
    Ok(sockopt::set_tcp_keepintvl(stream, ASKED_EVERY)?)
}

/// Sets how long bytes may stay unacknowledged, or unwanted by a full receiver, and how long a
/// silent peer may leave probes unanswered. Then the system closes the connection.
pub(crate) fn set_unacknowledged(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    let milliseconds = limit.as_millis().clamp(1, MAX_MILLISECONDS) as u32;
    Ok(sockopt::set_tcp_user_timeout(stream, milliseconds)?)
}

/// Returns true if the system grants full buffers. A fixed size switches the system's own tuning
/// off, which loses speed if the system cuts it to a small maximum.
fn buffers_are_granted() -> bool {
    let granted = || -> io::Result<bool> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        Ok(socket.send_buffer_size()?.min(socket.recv_buffer_size()?) >= SOCKET_BUFFER_BYTES)
    };
    granted().unwrap_or(false)
}
